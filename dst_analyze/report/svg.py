"""Figures as SVG within the page: in the page's colours, with names of their own, and a third of matplotlib's length."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from markupsafe import Markup, escape
from matplotlib.figure import Figure

# Stand-ins that the page's own colours replace, so that one picture serves light and dark.
TEXT, PAGE, LINE = "#0a0b0c", "#fafbfc", "#c0c1c2"
_COLOURS = {TEXT: "currentColor", PAGE: "var(--page)", LINE: "var(--line)"}
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d*\.\d+(?:e-?\d+)?")
_ROUNDED = ("d", "x", "y", "width", "height", "transform", "points")
_DROPPED = ("font-family", "font-style", "font-weight", "font-variant", "font-stretch", "stroke-miterlimit")
_PLAIN = {"stroke-linejoin": "miter", "stroke-linecap": "butt", "stroke-opacity": "1", "opacity": "1"}


def svg_of(figure: Figure, name: str, label: str) -> Markup:
    """A figure as an image with a label, to be put into the page as it is: what it writes has been escaped."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The browser draws the text with its own fonts; which glyphs matplotlib's font lacks is no matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format")))
    root = ET.fromstring(buffer.getvalue())
    used = set(re.findall(r"#([\w-]+)", buffer.getvalue()))
    inner = "".join(part for child in root for part in _written(child, name, used))
    width, height = (float(root.attrib[side].removesuffix("pt")) for side in ("width", "height"))
    return Markup(
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width / 0.75:.0f}" height="{height / 0.75:.0f}">{inner}</svg>'
    )


def _written(element: ET.Element, name: str, used: set[str]) -> Iterator[str]:
    """An element and all in it as text, without what says nothing; identifiers get the figure's name."""
    tag = element.tag.rpartition("}")[2]
    if tag in ("metadata", "style"):
        return
    attributes = dict(_attributes(element, name, used))
    inner = "".join(part for child in element for part in _written(child, name, used))
    text = str(escape(element.text)) if tag in ("text", "tspan") and element.text else ""
    if tag in ("g", "defs") and not (inner or text):
        return
    if tag == "g" and not attributes:
        yield inner
    else:
        head = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
        yield f"<{tag}{head}>{text}{inner}</{tag}>" if inner or text else f"<{tag}{head}/>"


def _attributes(element: ET.Element, name: str, used: set[str]) -> Iterator[tuple[str, str]]:
    for key, value in element.attrib.items():
        if key == "id":
            if value in used:
                yield key, f"{name}-{value}"
        elif key == _HREF:
            yield "href", f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "clip-path":
            yield key, value.replace("url(#", f"url(#{name}-")
        elif key == "style":
            if style := _style(value):
                yield key, style
        elif key == "transform" and element.tag.endswith("text") and value.startswith("rotate(-0 "):
            continue
        elif key in _ROUNDED:
            yield key, _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), _tight(value))
        else:
            yield key, value


def _style(value: str) -> str:
    pairs = [(key.strip(), setting.strip()) for key, _, setting in (part.partition(":") for part in value.split(";"))]
    kept = [(k, _COLOURS.get(s, s)) for k, s in pairs if k and k not in _DROPPED and _PLAIN.get(k) != s]
    return ";".join(f"{key}:{setting}" for key, setting in kept if (key, setting) != ("fill", ""))


def _tight(path: str) -> str:
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", " ".join(path.split()))

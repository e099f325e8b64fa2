"""Matplotlib figures as compact inline SVG, in the page's colours and with unique ids."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise

from markupsafe import Markup, escape
from matplotlib.figure import Figure

# Placeholders that CSS colours replace, so that one figure serves light and dark pages.
TEXT, PAGE, LINE = "#0a0b0c", "#fafbfc", "#c0c1c2"
TOOLTIP = "tooltip:"
"""The beginning of an artist's gid whose rest becomes its tooltip on the page."""
_COLOURS = {TEXT: "currentColor", PAGE: "var(--page)", LINE: "var(--line)"}
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d*\.\d+(?:e-?\d+)?")
_POINT = re.compile(r"([ML]) (\S+) (\S+)|(z)")
_ROUNDED = ("x", "y", "width", "height", "transform", "points")
# Properties that have these values by default, or by page.css.
_DEFAULTS = {"stroke-linejoin": "miter", "stroke-linecap": "butt", "stroke-opacity": "1", "opacity": "1"}
_TEXT_DEFAULTS = {"font-size": "9px", "fill": "currentColor", "text-anchor": "start"}
_DROPPED = ("font-family", "font-style", "font-weight", "font-variant", "font-stretch", "stroke-miterlimit")


class Styles:
    """CSS classes for the styles of a page's figures, which repeat a few styles many times."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, style: str) -> str:
        """Return the class of a style, a new one if it is not known yet."""
        return self._names.setdefault(style, f"s{len(self._names)}")

    @property
    def css(self) -> str:
        """The rules of all classes."""
        return "\n".join(f".{name}{{{style}}}" for style, name in self._names.items())


def svg_of(figure: Figure, name: str, label: str, styles: Styles) -> Markup:
    """Return a figure as safe inline SVG with an aria-label."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The browser draws text with its fonts, so that glyphs missing in matplotlib's do not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format")))
    text = buffer.getvalue()
    root = ET.fromstring(text)
    used = dict.fromkeys(re.findall(r"href=\"#([\w-]+)", text))
    writer = _Writer({old: f"{name}-{number}" for number, old in enumerate(used)}, styles)
    inner = "".join(part for child in root for part in writer.written(child))
    width, height = (float(root.attrib[side].removesuffix("pt")) for side in ("width", "height"))
    return Markup(
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width / 0.75:.0f}" height="{height / 0.75:.0f}">{inner}</svg>'
    )


class _Writer:
    """Writes elements as text without redundant attributes; ``names`` maps old ids to new ones."""

    def __init__(self, names: dict[str, str], styles: Styles) -> None:
        self._names, self._styles = names, styles

    def written(self, element: ET.Element) -> Iterator[str]:
        tag = element.tag.rpartition("}")[2]
        if tag in ("metadata", "style", "clipPath"):  # not needed: nothing is drawn outside its axes
            return
        attributes = dict(self._attributes(element, tag))
        inner = "".join(part for child in element for part in self.written(child))
        if inner and element.get("id", "").startswith(TOOLTIP):
            inner = f"<title>{escape(element.get('id', '').removeprefix(TOOLTIP))}</title>{inner}"
        text = str(escape(element.text)) if tag in ("text", "tspan") and element.text else ""
        invisible = tag == "path" and attributes.get("class") == self._styles.name("fill:none")
        if invisible or (tag in ("g", "defs") and not inner):
            return
        if tag == "g" and not attributes and not inner.startswith("<title>"):
            yield inner
        else:
            head = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
            yield f"<{tag}{head}>{text}{inner}</{tag}>" if inner or text else f"<{tag}{head}/>"

    def _attributes(self, element: ET.Element, tag: str) -> Iterator[tuple[str, str]]:
        given = element.attrib
        if style := _style(given.get("style", ""), tag):
            yield "class", self._styles.name(style)
        for key, value in given.items():
            if key == "id" and value in self._names:
                yield key, self._names[value]
            elif key == _HREF:
                yield "href", f"#{self._names[value[1:]]}" if value.startswith("#") else value
            elif key == "d":
                yield key, shortened(value)
            elif key == "transform" and tag == "text" and value.startswith("rotate(-0 "):
                continue
            elif key in _ROUNDED:
                yield key, _NUMBER.sub(lambda found: _rounded(found[0]), value)
            elif key not in ("id", "style", "clip-path"):
                yield key, value


def _style(style: str, tag: str) -> str:
    pairs = [(key.strip(), value.strip()) for key, _, value in (part.partition(":") for part in style.split(";"))]
    said = _DEFAULTS | (_TEXT_DEFAULTS if tag == "text" else {})
    kept = [(k, _COLOURS.get(v, v)) for k, v in pairs if k and k not in _DROPPED]
    if tag == "text" and not any(key == "fill" for key, _ in kept):
        kept.append(("fill", "#000"))  # matplotlib leaves black out
    return ";".join(f"{key}:{value}" for key, value in kept if said.get(key) != value)


def shortened(path: str) -> str:
    """Return a path rounded to a tenth of a point, with H, V and z in place of L where possible."""
    found = _POINT.findall(path)
    if " ".join(path.split()) != " ".join("z" if end else f"{what} {x} {y}" for what, x, y, end in found):
        return _NUMBER.sub(lambda number: _rounded(number[0]), " ".join(path.split()))  # curves, as they are
    points = [("z", "", "") if end else (what, _rounded(x), _rounded(y)) for what, x, y, end in found]
    start, out = ("", ""), []
    for (_, before_x, before_y), (what, x, y) in pairwise([("", "", ""), *points]):
        if what == "M":
            start = (x, y)
            out.append(f"M{x} {y}")
        elif what == "z":
            out.append("z")
        elif (x, y) == (before_x, before_y):
            continue
        else:
            out.append(f"V{y}" if x == before_x else f"H{x}" if y == before_y else f"L{x} {y}")
        if what == "L" and (x, y) == start:
            out[-1] = "z" if out[-1] != "z" else ""
    return re.sub("z+", "z", "".join(out))


def _rounded(number: str) -> str:
    return f"{float(number):.1f}".removesuffix(".0")

"""Templates of pages, the policy that keeps them inert, and values as text."""

from __future__ import annotations

import base64
import hashlib
import math
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dst_analyze.ranking.formats.serialize import agreement, rank_text
from dst_analyze.report.glossary import GLOSSARY, Term, term_named
from dst_analyze.report.overview.answer import score_words
from dst_analyze.report.rows import shown_name
from dst_analyze.run.record import alpha_label
from dst_analyze.text import duration, escape_control, lower_first, package_paths, percent, short, shorten_middle

_LONGEST_TEXT = 1000


def rendered(template: str, **context: Any) -> str:
    """Return a rendered template, with the style, script and security policy that all pages share."""
    environment = Environment(
        loader=PackageLoader("dst_analyze.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escape_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=percent, part=part, score=score_words, count=count, interval=interval, px=px, tenths=tenths,
        alpha=alpha_label, shown=shown_name, place=rank_text, agreement=agreement, short=short, duration=duration,
        meaning=meaning, fitted=shorten_middle, lower_first=lower_first, capital=capital,
        ms=milliseconds, paths=package_paths, held=held,
    )  # fmt: skip
    style, script = (
        _compact(files("dst_analyze.report").joinpath("assets", name).read_text("utf-8"))
        for name in ("page.css", "page.js")
    )
    return environment.get_template(template).render(
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script),
        glossary=GLOSSARY,
        **context,  # style and script are our own files
    )


def _compact(text: str) -> str:
    """Return our own style or script without indentation, empty lines and lines that are comments."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def _escape_value(value: Any) -> Any:
    """Return template values with control characters escaped and very long texts shortened."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) > _LONGEST_TEXT:
        value = f"{value[: _LONGEST_TEXT // 2]}…{value[-_LONGEST_TEXT // 2 :]}"
    return escape_control(value)


def _policy(script: str) -> str:
    """Return a content security policy: our script only, no network; data: holds large heatmap images."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


# --- values as text ------------------------------------------------------------------------------------------------


def meaning(word: str) -> str:
    """Return what a word of the glossary means; an unknown word is an error of the template."""
    found: Term = term_named(word)
    return found.meaning


def held(text: str) -> Markup:
    """Return text in which no line breaks between a number and its percent sign."""
    return Markup(str(escape(_escape_value(text))).replace(" %", "&nbsp;%"))


def capital(clause: str) -> str:
    """Return a clause that begins with a capital."""
    return f"{clause[:1].upper()}{clause[1:]}"


def part(ratio: float | None) -> str:
    """Return the length of a bar, from 0 to 1."""
    return "0" if ratio is None or math.isnan(ratio) else f"{ratio:.3f}"


def interval(row: Any, kind: str) -> str:
    """Return the interval of a mean score; a dash for a single training, which has none."""
    if not (math.isfinite(row.low) and math.isfinite(row.high)):
        return "–"
    low, high = row.low, row.high
    if kind == "accuracy":  # an interval of few seeds may be wider than what is possible
        low, high = max(low, 0.0), min(high, 1.0)
    return f"{score_words(low, kind)} to {score_words(high, kind)}"


def count(number: float | None) -> str:
    """Return a count with thousands separators; a dash if it is not known."""
    return "–" if number is None or math.isnan(number) else f"{int(number):,}"


def milliseconds(value: float) -> str:
    """Return a latency with three digits; a dash for one that was not kept."""
    return "–" if math.isnan(value) else f"{value:.3g}"


def tenths(value: float) -> str:
    """Return a coordinate in tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def px(value: float) -> str:
    """Return a coordinate in whole pixels."""
    return f"{value:.0f}"

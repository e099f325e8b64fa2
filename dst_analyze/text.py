"""Text for people: escaped names, short numbers, tables that fit the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from textwrap import fill

from rich.cells import cell_len

NARROWEST_NAME = 12
_PACKAGES = re.compile(r"(?<![^\s(,])[^\s(,]{1,400}[/\\](?:site|dist)-packages[/\\]")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def escape_control(text: str) -> str:
    """Return text with control characters and bidirectional marks as visible escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def package_paths(text: str) -> str:
    """Return text in which paths into installed packages begin at the package.

    Example:
        >>> package_paths("Embedding at /usr/lib/python3/site-packages/transformers/models/gpt2.py:511")
        'Embedding at transformers/models/gpt2.py:511'
    """
    return _PACKAGES.sub("", text)


def elide(name: str, width: int) -> str:
    """Return a name on one line of at most ``width`` cells, shortened in the middle."""
    name = escape_control(name).replace("\n", "\\n")
    if cell_len(name) <= width:
        return name
    head, tail = name[:width], name[-width:]
    while cell_len(head) > (width - 1) // 2:
        head = head[:-1]
    while cell_len(head) + 1 + cell_len(tail) > width:
        tail = tail[1:]
    return f"{head}…{tail}"


def shorten_middle(name: str, width: int) -> str:
    """Return a layer's name on one line of at most ``width`` cells that keeps its end and its numbers.

    Of the parts between dots the last is kept first, then those with a digit, then the others, each from
    the right; what is left out is an ellipsis. Room that remains shows the beginning of the name.

    Example:
        >>> shorten_middle("transformer.h.11.attn.c_attn", 19)
        'tr…h.11.attn.c_attn'
        >>> shorten_middle("encoder.layer.11.attention.self.query", 16)
        'en…11…self.query'
    """
    name = escape_control(name).replace("\n", "\\n")
    if cell_len(name) <= width:
        return name
    parts = name.split(".")
    places = range(len(parts) - 1, -1, -1)
    numbered = [at for at in places[1:] if any(c.isdigit() for c in parts[at])]
    kept: set[int] = set()
    for at in (places[0], *numbered, *(place for place in places[1:] if place not in numbered)):
        if cell_len(_with_gaps(parts, kept | {at})) <= width:
            kept.add(at)
    if places[0] not in kept:
        return elide(name, width)
    short_name = _with_gaps(parts, kept)
    head = "" if 0 in kept else name
    while head and cell_len(head) + cell_len(short_name) > width:
        head = head[:-1]
    return f"{head.removesuffix('.')}{short_name}"


def layer_words(name: str, width: int = 40) -> str:
    """Return a layer's name in a sentence: "layer 3" if it is only a number."""
    return f"layer {name}" if name.split(" ")[0].isdigit() else shorten_middle(name, width)


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most ``width`` cells; of more where two of them would look the same."""
    most = max((cell_len(escape_control(name)) for name in names), default=0)
    while True:
        shown = [shorten_middle(name, width) for name in names]
        if width >= most or len(set(shown)) == len(set(names)):
            return shown
        width += 1


def _with_gaps(parts: Sequence[str], kept: set[int]) -> str:
    """Return the kept parts joined by dots, with an ellipsis where others are left out."""
    text = ""
    for at in sorted(kept):
        text += f"{'.' if at == 0 or at - 1 in kept else '…'}{parts[at]}"
    return text.removeprefix(".")


def short(number: float | None) -> str:
    """Return a number with three digits and a unit: 1234567 as 1.23M."""
    if number is None or math.isnan(number):
        return "–"
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= 0.9995 * size:
            scaled = number / size
            return f"{scaled:.{0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2}f}{unit}"
    return f"{number:.0f}"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) as a percentage without the sign."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def size_text(share: float) -> str:
    """Return the size of a slim model, a share (0 to 1), with up to three digits and the sign: 12.5 %."""
    return f"{100 * share:.3g} %"


def lower_first(sentence: str) -> str:
    """Return a sentence that continues another one."""
    return f"{sentence[:1].lower()}{sentence[1:]}"


def listed(words: Sequence[str]) -> str:
    """Return words as a list: "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def spreadsheet_name(name: str) -> str:
    """Return a name that a spreadsheet reads as text: formulas get an apostrophe in front."""
    return f"'{name}" if name[:1] in (*_FORMULA, "'") and name else name


def from_spreadsheet(cell: str) -> str:
    """Return the name that `spreadsheet_name` escaped; other cells unchanged."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in (*_FORMULA, "'") and len(cell) > 1 else cell


def wrapped(sentences: Iterable[str], width: int) -> list[str]:
    """Return sentences as escaped lines, wrapped at ``width``."""
    return [fill(escape_control(one).replace("\n", " "), max(width, 40), subsequent_indent="  ") for one in sentences]


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return a text table of names and values; names are shortened if it is too wide."""
    values = [max(cell_len(row[i]) for row in [heads, *rows]) for i in range(1, len(heads))]
    room = max(NARROWEST_NAME, width - sum(values) - 2 * len(values))
    names = shorten_names([row[0] for row in rows], room)
    first = max(cell_len(name) for name in [heads[0], *names])
    between = "  " if first + sum(values) + 2 * len(values) <= width else " "

    def line(name: str, cells: Sequence[str]) -> str:
        padded = (" " * (size - cell_len(cell)) + cell for cell, size in zip(cells, values, strict=True))
        return between.join([name + " " * (first - cell_len(name)), *padded]).rstrip()

    body = [line(name, row[1:]) for name, row in zip(names, rows, strict=True)]
    head = line(heads[0], heads[1:])
    return "\n".join([head, "─" * max(map(cell_len, [head, *body])), *body])


def duration(seconds: float) -> str:
    """Return a time with two digits in a fitting unit."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{_two_digits(seconds / size)} {unit}"
    return f"{_two_digits(seconds)} s"


def minutes(seconds: float) -> str:
    """Return a time that is only foreseen: in minutes, or hours where these are many."""
    if seconds < 45:
        return "less than a minute"
    if seconds < 90 * 60:
        return f"about {max(1, round(seconds / 60))} min"
    return f"about {_two_digits(seconds / 3600)} h"


def _two_digits(value: float) -> str:
    return f"{value:.2g}" if value < 9.95 else f"{value:.0f}"

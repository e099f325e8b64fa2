"""Pieces of source text whose literals may become arguments of a class.

A template is a tuple of pieces: plain text, a `Slot` for a literal, or an `Entry` for one of a list of modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dst_analyze.slimming.source.literals import literal

_ABSENT: Any = object()


@dataclass(frozen=True)
class Slot:
    """A literal in the text.

    Attributes:
        value: The literal's value.
        role: What it is, for the name of an argument: ``conv1_out``.
        before: The text before it, left out together with it: ``", padding="``.
        default: The value at which it is left out.
        was: The literal before slimming, for a comment; empty if it is not known to be another.
        key: The name of the constructor's argument, for the comment; without one there is no comment.
        about: True if the value need not be exact, such as the spread of new weights.
    """

    value: Any
    role: str = ""
    before: str = ""
    default: Any = _ABSENT
    was: str = ""
    key: str = ""
    about: bool = False

    @property
    def is_default(self) -> bool:
        return self.default is not _ABSENT and bool(self.value == self.default)

    @property
    def text(self) -> str:
        return literal(self.value)

    @property
    def had(self) -> str:
        """The literal before slimming."""
        return self.was or self.text


@dataclass(frozen=True)
class Entry:
    """One module of a list: ``self.layers[2]``, or the variable of a loop over the list."""

    owner: str
    index: int


def bare(slot: Slot) -> Slot:
    """Return a slot that is always written, and without the text before it."""
    return replace(slot, before="", default=_ABSENT)


def merged(alike: Sequence[Slot]) -> Slot:
    """Return one slot for the same literal of several modules."""
    had = list(dict.fromkeys(slot.had for slot in alike))
    first = replace(alike[0], was=had[0] if len(had) == 1 else " or ".join(had))
    if first.about and isinstance(first.value, float):
        mean = sum(slot.value for slot in alike) / len(alike)
        return replace(first, value=float(f"{mean:.2g}"), was="")
    return first


Piece = str | Slot | Entry
Template = tuple[Piece, ...]


def joined(*parts: Template | str) -> Template:
    """Return templates and texts as one template."""
    pieces: list[Piece] = []
    for part in parts:
        for piece in (part,) if isinstance(part, str) else part:
            if isinstance(piece, str) and pieces and isinstance(pieces[-1], str):
                pieces[-1] += piece
            else:
                pieces.append(piece)
    return tuple(piece for piece in pieces if piece != "")


def separated(parts: Iterable[Template], separator: str = ", ") -> Template:
    """Return templates with a text between them."""
    found: list[Template | str] = []
    for part in parts:
        found += [separator, part] if found else [part]
    return joined(*found)


def rendered(template: Template, names: Iterator[str | None] | None = None) -> str:
    """Return the text of a template; ``names`` yields what stands in place of each slot, None for its literal."""
    text = ""
    for piece in template:
        if isinstance(piece, str):
            text += piece
        elif isinstance(piece, Entry):
            text += f"{piece.owner}[{piece.index}]"
        else:
            name = next(names) if names is not None else None
            if name is None and piece.is_default:
                continue
            before = piece.before.removeprefix(", ") if text.endswith("(") else piece.before
            text += before + (piece.text if name is None else name)
    return text


def skeleton(template: Template) -> str:
    """Return the text with a mark in place of each literal: what all instances of a class have in common."""
    marks = ((f"{p.before}\0{p.about}" if isinstance(p, Slot) else rendered((p,))) for p in template)
    return "".join(marks)


def slots(template: Template) -> list[Slot]:
    """Return the slots of a template, in their order."""
    return [piece for piece in template if isinstance(piece, Slot)]


def with_role(template: Template, prefix: str) -> Template:
    """Return a template whose slots' roles begin with the name of the part that it describes."""
    return tuple(
        replace(piece, role=f"{prefix}_{piece.role}".strip("_")) if isinstance(piece, Slot) else piece
        for piece in template
    )


def note(slots_shown: Iterable[Slot], also: Mapping[str, str] | None = None) -> str:
    """Return the comment that says what a line's literals were before slimming; empty if none was changed."""
    found: dict[str, list[Slot]] = {}
    for slot in slots_shown:
        if slot.key:
            found.setdefault(slot.key, []).append(slot)
    texts = {
        key: group[0].had if len({slot.had for slot in group}) == 1 else f"({', '.join(s.had for s in group)})"
        for key, group in found.items()
        if any(slot.had != slot.text for slot in group)
    }
    texts |= {key: text for key, text in (also or {}).items() if key not in found}
    return (
        f"# was {', '.join(f'{key}={text}' if key else text for key, text in sorted(texts.items()))}" if texts else ""
    )

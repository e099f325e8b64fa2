"""Statements that repeat for one module of a list after another, as a loop over the list."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import nn

from dst_analyze.slimming.source.literals import identifier, is_plain
from dst_analyze.slimming.source.templates import Entry, Slot, Template, joined, rendered

_LONGEST = 24  # statements of one round


@dataclass(frozen=True)
class Loop:
    """A loop over modules of a list."""

    head: str
    body: tuple[Template, ...]


def with_loops(
    statements: Sequence[Template], owners: dict[str, nn.Module], taken: Collection[str]
) -> list[Template | Loop]:
    """Return statements with loops in place of repetitions.

    Args:
        statements: The statements of a forward.
        owners: The lists of modules, by the expressions for them.
        taken: Names that a loop's variable must not have.
    """
    found: list[Template | Loop] = []
    place = 0
    while place < len(statements):
        length, rounds = _longest_repetition(statements, place)
        if rounds < 2:
            found.append(statements[place])
            place += 1
            continue
        body = statements[place : place + length]
        first = _entries(body)[0]
        size = len(owners[first.owner]._modules) if first.owner in owners else 0
        if (start := _assigned_first(found, body, first)) is not None:
            found[-1], first, rounds = (start,), Entry(first.owner, first.index - 1), rounds + 1
            body = [tuple(first if isinstance(piece, Entry) else piece for piece in template) for template in body]
            place -= 1
        found.append(_loop(body, first, rounds, size, set(taken)))
        place += length * rounds
    return found


def _entries(statements: Sequence[Template]) -> list[Entry]:
    return list(dict.fromkeys(piece for template in statements for piece in template if isinstance(piece, Entry)))


def _longest_repetition(statements: Sequence[Template], place: int) -> tuple[int, int]:
    """Return how many statements from a place on repeat, and how often."""
    best = (1, 1)
    for length in range(1, min(_LONGEST, (len(statements) - place) // 2) + 1):
        body = statements[place : place + length]
        entries = _entries(body)
        if len(entries) != 1:
            continue
        rounds = 1
        while _shifted(body, entries[0], rounds) == [
            *map(_comparable, statements[place + length * rounds : place + length * (rounds + 1)])
        ]:
            rounds += 1
        if rounds > 1 and length * rounds > best[0] * best[1]:
            best = (length, rounds)
    return best


def _shifted(body: Sequence[Template], entry: Entry, by: int) -> list[Template]:
    later = Entry(entry.owner, entry.index + by)
    return [_comparable(tuple(later if piece == entry else piece for piece in template)) for template in body]


def _comparable(template: Template) -> Template:
    return joined(tuple(piece.text if isinstance(piece, Slot) else piece for piece in template))


def _assigned_first(found: Sequence[Template | Loop], body: Sequence[Template], first: Entry) -> str | None:
    """Return ``x = y`` if the statement before a loop is its first round, of ``y`` in place of ``x``."""
    before = found[-1] if found else None
    if before is None or isinstance(before, Loop) or len(body) != 1 or first.index == 0:
        return None
    earlier = rendered(tuple(Entry(first.owner, first.index - 1) if piece == first else piece for piece in body[0]))
    target, _, _ = earlier.partition(" = ")
    for name in sorted(set(re.findall(r"\b[A-Za-z_]\w*\b", rendered(before)))):
        if f"{target} = {re.sub(rf'(?<![.]){name}(?!=)', target, rendered(before).partition(' = ')[2])}" == earlier:
            return f"{target} = {name}"
    return None


def _loop(body: Sequence[Template], first: Entry, rounds: int, size: int, taken: set[str]) -> Loop:
    last = first.index + rounds
    start, stop = str(first.index or ""), "" if last == size else str(last)
    whole = first.owner if not start and not stop else f"{first.owner}[{start}:{stop}]"
    variable = _singular(first.owner.rpartition(".")[2], taken)
    inside = tuple(joined(tuple(variable if piece == first else piece for piece in template)) for template in body)
    return Loop(f"for {variable} in {whole}:", inside)


def _singular(name: str, taken: set[str]) -> str:
    """Return a name for one of a list: ``layer`` of ``layers``."""
    name = name if is_plain(name) else "part"
    one = name[:-1] if name.endswith("s") and len(name) > 2 else "block" if len(name) < 3 else f"one_{name}"
    return identifier(one, taken)

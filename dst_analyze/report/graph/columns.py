"""A tall layout cut into columns that stand side by side, so that a wide frame shows it at a readable size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dst_analyze.report.graph.layout import Layout, Point

ROOM: Point = (1300.0, 680.0)  # of the frame on a common screen
_MOST = 6
_BETTER = 1.06  # a further column must make the picture this much larger
_GAP, _ENTRY, _EXIT, _TOP = 44.0, 22.0, 12.0, 6.0

Span = tuple[int, int]  # the first row of a column, and the row after its last


@dataclass(frozen=True)
class Column:
    """What stands in a column: its left and right ends, with half of the gap to the next one."""

    left: float
    right: float


@dataclass(frozen=True)
class Columns:
    """A layout in columns; ``turns`` are lines from the end of one column to the top of the next."""

    layout: Layout
    columns: tuple[Column, ...]
    turns: tuple[tuple[Point, ...], ...]


def in_columns(layout: Layout, sizes: Sequence[Point], room: Point = ROOM) -> Columns:
    """Return the layout in as many columns as make it largest in the room; it is cut where one box leads on."""
    spans = _best_spans(layout, sizes, room)
    if len(spans) < 2:
        return Columns(layout, (Column(0.0, layout.width),), ())
    rows = [bisect_left([bottom for _, bottom in layout.rows], _middle(layout, sizes, at)) for at in range(len(sizes))]
    column = {at: next(k for k, (first, end) in enumerate(spans) if first <= row < end) for at, row in enumerate(rows)}
    ends = _extents(layout, sizes, column, len(spans))
    shifts, left = [], 0.0
    for number, ((low, high), (first, _)) in enumerate(zip(ends, spans, strict=True)):
        top = _ENTRY if number else _TOP
        shifts.append((left - low, top - layout.rows[first][0]))
        left += high - low + _GAP
    corners = {at: _moved(corner, shifts[column[at]]) for at, corner in layout.corners.items()}
    lines: dict[tuple[int, int], tuple[Point, ...]] = {}
    turns: dict[int, tuple[Point, ...]] = {}
    for (source, target), points in layout.lines.items():
        shift = shifts[column[target]]
        moved = [_moved(point, shift) for point in points]
        if column[source] != column[target]:
            start = _moved(points[0], shifts[column[source]])
            moved[0] = (moved[0][0], _ENTRY - 8)
            low, high = ends[column[source]]
            gutter = high + shifts[column[source]][0] + _GAP / 2
            last = layout.rows[spans[column[source]][1] - 1][1] + shifts[column[source]][1] + _EXIT
            turns[source] = (
                start, (start[0], last), (gutter, last), (gutter, _TOP), (moved[0][0], _TOP), moved[0],
            )  # fmt: skip
        lines[source, target] = tuple(moved)
    height = max(layout.rows[end - 1][1] - layout.rows[first][0] for first, end in spans) + _ENTRY + _EXIT
    kept = tuple(
        Column(low + shift[0], high + shift[0] + _GAP / 2 + 1) for (low, high), shift in zip(ends, shifts, strict=True)
    )
    return Columns(Layout(corners, lines, left - _GAP, height, layout.rows), kept, tuple(turns.values()))


def _best_spans(layout: Layout, sizes: Sequence[Point], room: Point) -> list[Span]:
    cuts = _cuts(layout, sizes)
    best: list[Span] = [(0, len(layout.rows))]
    size = _scale(layout.width, layout.height, room)
    for count in range(2, _MOST + 1):
        spans = _spans(layout, cuts, layout.height / count)
        if len(spans) > _MOST:
            continue
        height = max(layout.rows[end - 1][1] - layout.rows[first][0] for first, end in spans) + _ENTRY + _EXIT
        column = {}
        for at in range(len(sizes)):
            middle = _middle(layout, sizes, at)
            column[at] = next(k for k, (_, end) in enumerate(spans) if middle <= layout.rows[end - 1][1])
        wide = sum(high - low for low, high in _extents(layout, sizes, column, len(spans))) + _GAP * (len(spans) - 1)
        found = _scale(wide, height, room)
        if found > _BETTER * size:
            best, size = spans, found
    return best


def _scale(width: float, height: float, room: Point) -> float:
    return min(1.0, room[0] / max(width, 1.0), room[1] / max(height, 1.0))


def _cuts(layout: Layout, sizes: Sequence[Point]) -> list[int]:
    """Return the rows after which only lines of one box lead on, which stands in that row."""
    bottoms = [bottom for _, bottom in layout.rows]
    row = [bisect_left(bottoms, _middle(layout, sizes, at)) for at in range(len(sizes))]
    crossing: list[set[int]] = [set() for _ in layout.rows]
    for source, target in layout.lines:
        for at in range(row[source], row[target]):
            crossing[at].add(source)
    return [at for at, sources in enumerate(crossing) if len(sources) == 1 and row[next(iter(sources))] == at]


def _spans(layout: Layout, cuts: Sequence[int], target: float) -> list[Span]:
    """Return columns of about the wanted height."""
    chosen, start = [], 0
    for cut, following in pairwise([*cuts, len(layout.rows) - 1]):
        now = layout.rows[cut][1] - layout.rows[start][0]
        then = layout.rows[following][1] - layout.rows[start][0]
        if cut < len(layout.rows) - 1 and then > target and (then - target > abs(target - now) or now > target):
            chosen.append((start, cut + 1))
            start = cut + 1
    return [*chosen, (start, len(layout.rows))]


def _middle(layout: Layout, sizes: Sequence[Point], at: int) -> float:
    return layout.corners[at][1] + sizes[at][1] / 2


def _extents(
    layout: Layout, sizes: Sequence[Point], column: Mapping[int, int], count: int
) -> list[tuple[float, float]]:
    """Return the left and the right end of each column."""
    lows, highs = [float("inf")] * count, [float("-inf")] * count
    spots = [(column[at], x, x + sizes[at][0]) for at, (x, _) in layout.corners.items()]
    spots += [(column[target], x - 2, x + 2) for (_, target), points in layout.lines.items() for x, _ in points]
    for at, low, high in spots:
        lows[at], highs[at] = min(lows[at], low), max(highs[at], high)
    return list(zip(lows, highs, strict=True))


def _moved(point: Point, by: Point) -> Point:
    return point[0] + by[0], point[1] + by[1]

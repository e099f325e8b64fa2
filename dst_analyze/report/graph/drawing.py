"""The drawing of a model's graph: boxes, cells, words and lines with coordinates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from dst_analyze.ranking.formats.serialize import rank_text, signed
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.figures.colours import ink_on, shade
from dst_analyze.report.graph.columns import Column, Columns, in_columns
from dst_analyze.report.graph.layout import Point, layered
from dst_analyze.report.graph.structure import Part, Structure
from dst_analyze.text import elide, shorten_middle

CHAR = 6.7  # width of a character in the drawing's monospace font of 11 pixels
_MARGIN = 8.0
_LINE = 18.0
_LONGEST_NAME, _LONGEST_COLUMN = 32, 18
_TALLEST, _MOST_STACKS = 40, 4  # rows of a folded run in one stack
_WITHIN = 0.95  # share of layers within the colour scale, so that an outlier does not flatten the others
_WEAKEST_SCALE = math.log(2)  # the colour scale reaches at least half and twice what the typical layer keeps


@dataclass(frozen=True)
class Word:
    """A text at a position."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    soft: bool = False


@dataclass(frozen=True)
class Cell:
    """A layer, coloured and labelled by its redundancy."""

    layer: str
    x: float
    y: float
    width: float
    height: float
    fill: str
    ink: str
    words: tuple[Word, ...]
    mark: str = ""  # all that is known of the layer, in a few words


@dataclass(frozen=True)
class Box:
    """A part of the structure at its position."""

    kind: str
    title: str  # the tooltip: full name and source line
    x: float
    y: float
    width: float
    height: float
    words: tuple[Word, ...] = ()
    cells: tuple[Cell, ...] = ()
    block: Picture | None = None  # of folded blocks: one of them drawn in full, with the texts of the first
    across: int = 0  # layers of one folded block
    column: Column | None = None  # where the box stands


@dataclass(frozen=True)
class Picture:
    """The whole drawing; ``lines`` are curved between layers, ``turns`` lead from column to column."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[tuple[Point, ...], ...]
    limit: float  # the redundancy at the end of the colours
    folded: bool
    turns: tuple[tuple[Point, ...], ...] = ()

    @property
    def paths(self) -> Iterator[str]:
        """The lines as SVG path data."""
        for turn in self.turns:
            yield "".join(f"{'L' if at else 'M'}{x:.0f} {y:.0f}" for at, (x, y) in enumerate(turn))
        for points in self.lines:
            x, y = points[0]
            parts = [f"M{x:.0f} {y:.0f}"]
            for (x0, y0), (x1, y1) in pairwise(points):
                middle = (y0 + y1) / 2
                straight = abs(x0 - x1) < 1
                curve = f"C{x0:.0f} {middle:.0f} {x1:.0f} {middle:.0f} {x1:.0f} {y1:.0f}"
                parts.append(f"V{y1:.0f}" if straight else curve)
            yield "".join(parts)


def picture_of(
    structure: Structure,
    ranking: Ranking,
    widths: Mapping[str, tuple[int, int]] | None = None,
    *,
    room: Point | None = None,
) -> Picture:
    """Return the structure as a drawing, its layers coloured by the ranking; ``widths`` are before and after.

    With the ``room`` of a frame a tall drawing stands in columns.
    """
    return _arranged(structure, _LayerMarks(ranking, widths or {}), room)


def _arranged(structure: Structure, marks: _LayerMarks, room: Point | None) -> Picture:
    drafts = [_draft(part, marks) for part in structure.parts]
    sizes = [(box.width, box.height) for box in drafts]
    found = layered(sizes, structure.lines)
    arranged = in_columns(found, sizes, room) if room is not None else Columns(found, (Column(0.0, found.width),), ())
    layout = arranged.layout
    columns = [Column(column.left + _MARGIN, column.right + _MARGIN) for column in arranged.columns]
    boxes = []
    for at, box in enumerate(drafts):
        x, y = layout.corners[at]
        middle = x + _MARGIN + box.width / 2
        column = next((one for one in columns if one.left <= middle <= one.right), columns[-1])
        boxes.append(replace(_moved(box, x + _MARGIN, y + _MARGIN), column=column))
    lines, turns = (
        tuple(tuple((x + _MARGIN, y + _MARGIN) for x, y in points) for points in given)
        for given in (layout.lines.values(), arranged.turns)
    )
    width, height = layout.width + 2 * _MARGIN, layout.height + 2 * _MARGIN
    return Picture(width, height, tuple(boxes), lines, marks.limit, structure.folded, turns)


class _LayerMarks:
    """The text and the colour of each layer."""

    def __init__(self, ranking: Ranking, widths: Mapping[str, tuple[int, int]]) -> None:
        self._widths = widths
        table = ranking.table.set_index("layer")
        self._rows: Mapping[str, Mapping[str, float | str]] = table.to_dict("index")
        far = table["redundancy"].abs().quantile(_WITHIN)
        self.limit = max(_WEAKEST_SCALE, 0.0 if math.isnan(far) else float(far))

    def value(self, layer: str) -> float:
        return float(self._rows[layer]["redundancy"]) if layer in self._rows else math.nan

    def short(self, layer: str) -> str:
        return signed(self.value(layer))

    def long(self, layer: str) -> str:
        row = self._rows.get(layer)
        if row is None or math.isnan(self.value(layer)):
            return f"{self._width(layer)}not measured"
        return f"{self._width(layer)}{self.short(layer)} {row['label']}, rank {rank_text(float(row['rank']))}"

    def _width(self, layer: str) -> str:
        before, after = self._widths.get(layer, (0, 0))
        return "" if not before else f"{before}, " if before == after else f"{before} → {after}, "

    def cell(self, layer: str, x: float, y: float, size: Point, lines: Sequence[str]) -> Cell:
        fill = shade((self.value(layer) / self.limit + 1) / 2, given=True)
        middle, first = x + size[0] / 2, y + size[1] / 2 + 4 - 7 * (len(lines) - 1)
        words = tuple(Word(middle, first + 14 * at, line, "middle") for at, line in enumerate(lines))
        return Cell(layer, x, y, *size, fill, ink_on(fill), words, self.long(layer))


class _BlockMarks(_LayerMarks):
    """The text of a block that stands for all that are built like it: with room for the longest."""

    def __init__(self, marks: _LayerMarks, longest: Mapping[str, str]) -> None:
        self._widths, self._rows, self.limit = marks._widths, marks._rows, marks.limit
        self._longest = longest

    def long(self, layer: str) -> str:
        return self._longest[layer]


def _draft(part: Part, marks: _LayerMarks) -> Box:
    """Return a part as a box at the origin."""
    if part.kind in ("join", "end", "other"):
        text = elide(part.title, _LONGEST_NAME)
        width, height = max(24.0, CHAR * len(text) + 16), 24.0
        tip = f"{elide(part.title, 200)}, not analysed" if part.kind == "other" else text
        return Box(part.kind, tip, 0, 0, width, height, (Word(width / 2, 16, text, "middle"),))
    if part.columns == ("",) and part.kind == "layers":
        return _single(part, marks)
    box = _panel(part, marks)
    if part.block is None:
        return box
    longest = {
        first: max((marks.long(row[at]) for _, row in part.rows), key=len) for at, first in enumerate(part.rows[0][1])
    }
    return replace(box, block=_arranged(part.block, _BlockMarks(marks, longest), None), across=len(part.columns))


def _single(part: Part, marks: _LayerMarks) -> Box:
    (layer,) = part.layers
    lines = shorten_middle(part.title, _LONGEST_NAME), marks.long(layer)
    size = (max(150.0, CHAR * max(map(len, lines)) + 18), 38.0)
    tip = f"{elide(layer, 200)}{f' ({part.place})' if part.place else ''}"
    return Box(part.kind, tip, 0, 0, *size, cells=(marks.cell(layer, 0, 0, size, lines),))


def _panel(part: Part, marks: _LayerMarks) -> Box:
    """Return a box for layers of one module, or for folded blocks with a row each."""
    columns = [shorten_middle(column, _LONGEST_COLUMN) for column in part.columns]
    labels = [shorten_middle(label, _LONGEST_NAME) for label, _ in part.rows]
    room = 10 + (2 * CHAR if part.block else 0)  # for the sign before a block that can be unfolded
    beside = max((CHAR * len(label) + room for label in labels if label), default=0.0)
    widths = [max(52.0, CHAR * len(column) + 10) for column in columns]
    head = 2 * _LINE if any(columns) else _LINE
    stack = max(_TALLEST, math.ceil(len(part.rows) / _MOST_STACKS))
    across, words, cells = beside + sum(widths) + 10, [Word(8, 14, elide(part.title, 44))], []
    stacks = math.ceil(len(part.rows) / stack)
    for number, (label, (_, layers)) in enumerate(zip(labels, part.rows, strict=True)):
        left, y = 6 + across * (number // stack), head + _LINE * (number % stack)
        if label:
            words.append(Word(left + 2, y + 13, label, soft=True))
        x = left + beside
        for layer, column, width in zip(layers, columns, widths, strict=True):
            if number % stack == 0 and column:
                words.append(Word(x + width / 2, 2 * _LINE - 5, column, "middle", soft=True))
            cells.append(marks.cell(layer, x, y, (width - 2, _LINE - 2), [marks.short(layer)]))
            x += width
    width = max(stacks * across + 4, CHAR * len(words[0].text) + 16)
    height = head + _LINE * min(stack, len(part.rows)) + 4
    return Box(part.kind, elide(part.title, 200), 0, 0, width, height, tuple(words), tuple(cells))


def _moved(box: Box, x: float, y: float) -> Box:
    def words(given: Sequence[Word]) -> tuple[Word, ...]:
        return tuple(Word(w.x + x, w.y + y, w.text, w.anchor, w.soft) for w in given)

    cells = tuple(replace(cell, x=cell.x + x, y=cell.y + y, words=words(cell.words)) for cell in box.cells)
    return replace(box, x=x, y=y, words=words(box.words), cells=cells)

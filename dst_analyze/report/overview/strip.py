"""The network as a strip of blocks, widths to scale, before and after."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import pandas as pd

from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import LABELS, UNCLEAR
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.text import shorten_middle

_MOST_BLOCKS, _MOST_SEGMENTS = 200, 16
_LETTERS, _LETTERS_PHONE = 110, 34  # that fit below the strip
_HEIGHT, _STEP, _GAP = 100.0, 10.0, 1.2
OUT_SECOND = ("Conv1D", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")  # outputs are the second axis


@dataclass(frozen=True)
class Block:
    """A layer, or neighbouring layers where there are many; widths in channels."""

    layer: str
    label: str
    tip: str
    x: float
    width: float
    before: float  # heights in the drawing
    after: float


@dataclass(frozen=True)
class Segment:
    """Neighbouring blocks of one module, with the share of the strip that they take."""

    name: str  # shortened to fit below its blocks; empty if there is no room
    blocks: int
    on_phone: bool  # True if it fits on a phone, too
    width: str = ""  # of a single block, before and after


@dataclass(frozen=True)
class Strip:
    """The drawing in its own units: ``length`` by 100."""

    blocks: tuple[Block, ...]
    segments: tuple[Segment, ...]
    widest: int
    joined: int  # layers in one block
    changed: bool

    @property
    def length(self) -> float:
        """The width of the drawing."""
        return len(self.blocks) * _STEP


def strip_of(record: SweepRecord, ranking: Ranking, plan: SlimPlan | None, *, evidence: bool = True) -> Strip | None:
    """Return the strip of a run; None if no layer has a known width.

    Without ``evidence`` all layers are unclear and keep their widths, whatever ranking and plan say.
    """
    widths = layer_widths(record.layers, advised(plan) if evidence else None)
    labels = dict(zip(ranking.table["layer"], ranking.table["label"], strict=True)) if evidence else {}
    names = [name for name in record.layers["layer"] if name in widths]
    if not names:
        return None
    widest = max(before for before, _ in widths.values())
    joined = math.ceil(len(names) / _MOST_BLOCKS)
    parts = [names[at : at + joined] for at in range(0, len(names), joined)]
    blocks = tuple(_block(part, widths, labels, widest, at) for at, part in enumerate(parts))
    changed = any(after < before for before, after in widths.values())
    segments = list(_segments([part[0] for part in parts]))
    if len(segments) == len(names):
        segments = [replace(one, width=_change(*widths[name])) for one, name in zip(segments, names, strict=True)]
    return Strip(blocks, tuple(segments), widest, joined, changed)


def advised(plan: SlimPlan | None) -> SlimPlan | None:
    """Return a plan that is advice; None for that of a rehearsal."""
    return plan if plan is not None and plan.is_advice else None


def layer_widths(layers: pd.DataFrame, plan: SlimPlan | None) -> dict[str, tuple[int, int]]:
    """Return each layer's output width before and after slimming."""
    shares: dict[str, list[float]] = {}
    for group in plan.groups if plan else ():
        for layer in group.layers:
            shares.setdefault(layer, []).append(group.new_width / group.width)
    found = {}
    for row in layers.itertuples(index=False):
        shape = json.loads(row.shape)
        if len(shape) < 2:
            continue
        width = int(shape[1 if row.kind in OUT_SECOND else 0])
        known = shares.get(row.layer, [1.0])
        found[str(row.layer)] = width, round(width * sum(known) / len(known))
    return found


def _block(
    part: Sequence[str], widths: Mapping[str, tuple[int, int]], labels: Mapping[str, str], widest: int, at: int
) -> Block:
    label = min((labels.get(name, UNCLEAR) for name in part), key=LABELS.index)
    before, after = (max(widths[name][side] for name in part) for side in (0, 1))
    tips = []
    for name in part:
        old, new = widths[name]
        tips.append(f"{shorten_middle(name, 80)}: {_change(old, new)} channels, {labels.get(name, UNCLEAR)}")
    heights = (max(_HEIGHT * value / widest, 1.5) for value in (before, after))
    return Block(part[0], label, "\n".join(tips), at * _STEP + _GAP / 2, _STEP - _GAP, *heights)


def _change(before: int, after: int) -> str:
    return f"{before} → {after}" if after < before else str(before)


def _segments(names: Sequence[str]) -> Iterator[Segment]:
    """Yield the modules below the strip, with names where there is room."""
    for key, count in module_runs(names):
        room, on_phone = (letters * count // len(names) - 1 for letters in (_LETTERS, _LETTERS_PHONE))
        names_of_it = (".".join(key[start:]) for start in range(len(key)))
        shown = next((name for name in names_of_it if len(name) <= room), "")
        yield Segment(shown, count, len(shown) <= on_phone)


def module_runs(names: Sequence[str]) -> list[tuple[tuple[str, ...], int]]:
    """Return runs of neighbours in one module: the deepest that are few, if possible numbered blocks."""
    split = [name.split(".") for name in names]
    found = [
        [(key, len(list(run))) for key, run in groupby(tuple(parts[:depth]) for parts in split)]
        for depth in range(max(map(len, split)), 0, -1)
    ]
    few = [runs for runs in found if len(runs) <= _MOST_SEGMENTS]
    numbered = [runs for runs in few if 2 * sum(key[-1].isdigit() for key, _ in runs) >= len(runs)]
    return next(iter(numbered or few), [((), len(names))])

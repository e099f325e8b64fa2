"""Rows and columns of each layer that are alive at each alpha, from the kept masks, and those that the plan removes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from dst_analyze.errors import FolderError
from dst_analyze.report.overview.strip import OUT_SECOND
from dst_analyze.run.files.masks import read_masks
from dst_analyze.run.files.paths import MASKS, trial_folder
from dst_analyze.run.files.safe_read import is_there
from dst_analyze.run.record import SweepRecord, TrialResult, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan

_MOST_CELLS, _FEWEST_CELLS = 128, 16  # of a strip
_MOST_DIGITS, _MOST_OF_MANY, _FEW_LAYERS = 12_000, 5_000, 30  # of all strips on a page, one a cell
_MOST_ALPHAS, _MOST_LAYERS = 8, 500
_LEVELS = 15
_MOST_BYTES = 32 * 2**20  # of a trial's masks, eight weights each: more would take the report gigabytes

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Channels:
    """What is alive of a layer: sentences, and strips for the page's script."""

    words: tuple[str, ...]
    strips: tuple[Any, ...]  # rows and columns by alpha, and the rows that go


def strip_alphas(record: SweepRecord) -> list[float]:
    """Return the alphas of the strips, from the weakest to the strongest: fewer where there are many layers."""
    alphas = [alpha for alpha in record.alphas if record.at(alpha)]
    most = min(len(alphas), _MOST_ALPHAS, max(2, _digits_per_layer(record) // (2 * _FEWEST_CELLS)))
    return [alphas[at] for at in np.linspace(0, len(alphas) - 1, most).round().astype(int)]


def _digits_per_layer(record: SweepRecord) -> int:
    """Return how many cells a layer may have in all its strips, so that pages stay small."""
    count = max(len(record.layers), 1)
    return (_MOST_DIGITS if count <= _FEW_LAYERS else _MOST_OF_MANY) // count


def channels_of(record: SweepRecord, plan: SlimPlan | None) -> dict[str, Channels]:
    """Return what is alive of each layer, in the first seed's trials.

    Empty if no masks were kept, or damaged ones, or very many, or if there are over 500 layers.
    """
    if len(record.layers) > _MOST_LAYERS:
        return {}
    alphas = strip_alphas(record)
    kinds = dict(zip(record.layers["layer"], record.layers["kind"], strict=True))
    try:
        found = [_alive(record, min(record.at(alpha), key=lambda trial: trial.seed), kinds) for alpha in alphas]
    except FolderError:
        return {}
    names = [name for name in record.layers["layer"] if found and all(name in one for one in found)]
    cells = _digits_per_layer(record) // max(1, 2 * len(alphas))
    most = min(_MOST_CELLS, max(_FEWEST_CELLS, cells))
    removed = _removed(plan)
    labels = [alpha_label(alpha) for alpha in alphas]
    return {name: _channels([one[name] for one in found], labels, removed.get(name, ()), most) for name in names}


def _alive(record: SweepRecord, trial: TrialResult, kinds: Mapping[str, str]) -> dict[str, tuple[Shares, Shares]]:
    """Return the share of its weights that each row and each column keeps, by layer."""
    path = trial_folder(record.folder, trial.key) / MASKS
    if is_there(path) and path.stat().st_size > _MOST_BYTES:
        raise FolderError("there are too many masks for strips", place=str(path))
    found: dict[str, tuple[Shares, Shares]] = {}
    for name, mask in read_masks(path).items():
        if mask.ndim < 2 or 0 in mask.shape:
            continue
        plane = mask.reshape(mask.shape[0], mask.shape[1], -1).mean(axis=2)
        rows, columns = np.asarray(plane.mean(axis=1)), np.asarray(plane.mean(axis=0))
        found[name] = (columns, rows) if kinds.get(name) in OUT_SECOND else (rows, columns)
    return found


def _removed(plan: SlimPlan | None) -> dict[str, tuple[int, ...]]:
    """Return the rows that the plan removes, of layers whose rows are the units of one group."""
    makers: dict[str, list[tuple[int, ...]]] = {}
    for group in plan.groups if plan is not None and plan.is_advice else ():
        for layer in group.layers:
            makers.setdefault(layer, []).append(group.removed if group.units == group.width else ())
    return {layer: parts[0] for layer, parts in makers.items() if len(parts) == 1}


def _channels(found: list[tuple[Shares, Shares]], alphas: list[str], removed: tuple[int, ...], most: int) -> Channels:
    strips: list[Any] = []
    goes, words = "", []
    for side, name in enumerate(("rows", "columns")):
        shares = [one[side] for one in found]
        counts = [int((one > 0).sum()) for one in shares]
        said = ", ".join(f"{count:,} at {alpha}" for count, alpha in zip(counts, alphas, strict=True))
        all_alive = min(counts) == len(shares[0])
        words.append(f"{len(shares[0]):,} {name}, {'all alive' if all_alive else f'alive {said}'}")
        strips.append([_digits(one, most) for one in shares])
        if side == 0 and removed and max(removed) < len(shares[0]):
            gone = np.zeros(len(shares[0]))
            gone[list(removed)] = 1
            goes = _digits(gone, most)
            still = int(((shares[-1] > 0) & (gone > 0)).sum())
            words.append(f"the plan removes {len(removed):,} rows, {still:,} of them alive at {alphas[-1]}")
    return Channels(tuple(words), (*strips, goes))


def _digits(shares: Shares, most: int) -> str:
    """Return cells as hexadecimal digits, from 0 (nothing is left) to f (everything); several rows share a cell."""
    edges = np.linspace(0, len(shares), min(len(shares), most) + 1).round().astype(int)
    means = (float(shares[start:end].mean()) for start, end in pairwise(edges))
    return "".join(f"{math.ceil(round(_LEVELS * mean, 6)):x}" for mean in means)

"""What remains of each layer at each alpha, as a table of colours; many layers are folded by module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dst_analyze.ranking.formats.table import remaining_table
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.figures import plots
from dst_analyze.report.figures.colours import ink_on, shade
from dst_analyze.report.figures.svg import Styles
from dst_analyze.report.overview.answer import score_words
from dst_analyze.report.overview.strip import module_runs
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.text import percent

_MOST_OPEN = 30  # layers; more are folded
_LEGEND = 5
_MOST_COLUMNS = 12


@dataclass(frozen=True)
class Shade:
    """A value as text, and the class of its colour."""

    text: str
    style: str


@dataclass(frozen=True)
class HeatRow:
    """A layer with its cells, one per alpha."""

    layer: str
    cells: tuple[Shade, ...]


@dataclass(frozen=True)
class HeatBlock:
    """Layers of one module; ``mean`` is empty where nothing is folded."""

    name: str
    mean: tuple[Shade, ...]
    rows: tuple[HeatRow, ...]


@dataclass(frozen=True)
class Column:
    """An alpha, with what the whole model keeps and scores there."""

    alpha: str
    remaining: str
    score: str
    trials: str  # how many ended well, if not all did


@dataclass(frozen=True)
class Heatmap:
    """The table, its columns, and the legend from the least to the most that remains."""

    columns: tuple[Column, ...]
    blocks: tuple[HeatBlock, ...]
    legend: tuple[Shade, ...]
    folded: bool


class _Scale:
    """Colours from the least value to the most."""

    def __init__(self, values: np.ndarray, styles: Styles) -> None:
        known = values[~np.isnan(values)]
        self.low, self.high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        self._styles = styles

    def shade(self, value: float) -> Shade:
        wide = self.high - self.low
        place = math.nan if math.isnan(value) else (value - self.low) / wide if wide else 1.0
        fill = shade(place, given=False)
        text = "–" if math.isnan(value) else f"{100 * value:.0f}"
        return Shade(text, self._styles.name(f"background:{fill};color:{ink_on(fill)}"))


def heatmap_of(record: SweepRecord, ranking: Ranking, styles: Styles) -> Heatmap:
    """Return the heat map of a run, for the alphas that are drawn one by one."""
    alphas = plots.drawn_alphas(record)
    table = remaining_table(record, ranking)[list(alphas)].astype(float)
    return _heatmap(table, [_column(record, alpha) for alpha in alphas], styles)


def heatmap_of_ranking(ranking: Ranking, styles: Styles) -> Heatmap:
    """Return the heat map of a ranking alone, which knows no scores; of very many alphas only some."""
    table = ranking.remaining()
    places = np.linspace(0, table.shape[1] - 1, min(table.shape[1], _MOST_COLUMNS)).round().astype(int)
    table = table.iloc[:, places]
    columns = [Column(alpha_label(float(alpha)), "", "", "") for alpha in table.columns]
    return _heatmap(table, columns, styles)


def _heatmap(table: pd.DataFrame, columns: Sequence[Column], styles: Styles) -> Heatmap:
    scale = _Scale(table.to_numpy(), styles)
    names = [str(name) for name in table.index]
    rows = [
        HeatRow(name, tuple(scale.shade(value) for value in values))
        for name, values in zip(names, table.to_numpy(), strict=True)
    ]
    legend = tuple(scale.shade(value) for value in np.linspace(scale.low, scale.high, _LEGEND))
    runs = module_runs(names) if len(names) > _MOST_OPEN else []
    if len(runs) < 2:
        return Heatmap(tuple(columns), (HeatBlock("", (), tuple(rows)),), legend, folded=False)
    blocks, at = [], 0
    for key, count in runs:
        mean = table.iloc[at : at + count].mean().to_numpy()
        shades = tuple(scale.shade(value) for value in mean) if count > 1 else ()
        blocks.append(HeatBlock(".".join(key), shades, tuple(rows[at : at + count])))
        at += count
    return Heatmap(tuple(columns), tuple(blocks), legend, folded=True)


def _column(record: SweepRecord, alpha: float) -> Column:
    done, seeds = len(record.at(alpha)), len(record.config.seeds)
    return Column(
        alpha_label(alpha),
        percent(record.remaining(alpha)),
        score_words(record.score(alpha), record.manifest.data.score),
        "" if done == seeds else f"{done} of {seeds} trials",
    )

"""The report's figures for a notebook or a program: upon axes that are given, else upon new ones of a good size."""

from __future__ import annotations

from matplotlib.axes import Axes

from dst_analyze.errors import FolderError, OptionError
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.table import remaining_table
from dst_analyze.report.figures import plots
from dst_analyze.report.page import read_picture
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan


def pattern(record: SweepRecord, ranking: Ranking, axes: Axes | None) -> Axes:
    table = remaining_table(record, ranking)
    with plots.styled(page=False):
        return plots.plot_pattern(table, axes or _new(*plots.pattern_size(*table.shape)))


def training(record: SweepRecord, alpha: float | None, axes: Axes | None) -> Axes:
    chosen = record.alphas[-1] if alpha is None else alpha
    if chosen not in record.alphas:
        known = ", ".join(map(alpha_label, record.alphas))
        raise OptionError(f"there is no alpha {chosen} in this run", hint=f"its alphas: {known}")
    with plots.styled(page=False):
        return plots.plot_training(record, chosen, axes or _new(7.0, 4.0))


def graph(record: SweepRecord, ranking: Ranking, axes: Axes | None, *, fold: bool) -> Axes:
    picture = read_picture(record, ranking, fold=fold)
    if picture is None:
        raise FolderError("this run has no graph of its model", place=str(record.folder), hint="trace_model says why")
    with plots.styled(page=False):
        return plots.plot_graph(picture, axes or _new(picture.width / 96, picture.height / 96))


def widths(plan: SlimPlan, axes: Axes | None) -> Axes:
    with plots.styled(page=False):
        return plots.plot_widths(plan, axes or _new(8.0, 0.8 + 0.26 * plots.widths_shown(plan)))


def _new(width: float, height: float) -> Axes:
    """Axes that a notebook shows by itself."""
    from matplotlib import pyplot as plt  # only here: it asks for a display

    return plt.subplots(figsize=(width, height), layout="constrained")[1]

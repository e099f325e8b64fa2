"""The report in notebooks and scripts: its first screen as HTML, its figures on matplotlib axes."""

from __future__ import annotations

from matplotlib.axes import Axes

from dst_analyze.errors import FolderError, OptionError
from dst_analyze.ranking.formats.table import remaining_table
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, NOT_MEASURED, REDUNDANT, UNCLEAR
from dst_analyze.report.figures import plots
from dst_analyze.report.overview.answer import Standing
from dst_analyze.report.overview.strip import strip_of
from dst_analyze.report.page import left_out, read_picture
from dst_analyze.report.rendering import rendered
from dst_analyze.report.summary import summary_of
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.kept import read_suggestion
from dst_analyze.slimming.planning.plan_types import SlimPlan

_COLOURS = {REDUNDANT: "#f4dd45", NEEDED: "#1d4a8c", AVERAGE: "#9a9fa6", UNCLEAR: "#c3c9d0", NOT_MEASURED: "#e3e6ea"}


def first_screen(record: SweepRecord, ranking: Ranking) -> str:
    """Return the first screen of the report as static HTML: answer, four numbers and the network."""
    kept = read_suggestion(record)
    summary = summary_of(record, ranking, kept.plan, kept.proof, left_out(record, kept))
    strip = strip_of(record, ranking, kept.plan, evidence=summary.answer.standing is not Standing.NO_EVIDENCE)
    return rendered("notebook.html", summary=summary, strip=strip, colours=_COLOURS)


def pattern(record: SweepRecord, ranking: Ranking, axes: Axes | None) -> Axes:
    """Draw what remains of each layer at each alpha."""
    table = remaining_table(record, ranking)
    with plots.styled(page=False):
        return plots.plot_pattern(table, axes or _new(*plots.pattern_size(*table.shape)))


def training(record: SweepRecord, alpha: float | None, axes: Axes | None) -> Axes:
    """Draw what remains of each layer over training, by default at the strongest alpha."""
    chosen = record.alphas[-1] if alpha is None else alpha
    if chosen not in record.alphas:
        known = ", ".join(map(alpha_label, record.alphas))
        raise OptionError(f"there is no alpha {chosen} in this run", hint=f"its alphas: {known}")
    with plots.styled(page=False):
        return plots.plot_training(record, chosen, axes or _new(7.0, 4.0))


def graph(record: SweepRecord, ranking: Ranking, axes: Axes | None, *, fold: bool) -> Axes:
    """Draw the model's graph, with layers coloured by redundancy."""
    picture = read_picture(record, ranking, fold=fold)
    if picture is None:
        raise FolderError(
            "the run folder has no graph of the model",
            place=str(record.folder),
            hint="`dst-analyze inspect MODEL` says why a model has no graph",
        )
    with plots.styled(page=False):
        return plots.plot_graph(picture, axes or _new(picture.width / 96, picture.height / 96))


def widths(plan: SlimPlan, axes: Axes | None) -> Axes:
    """Draw each group's width before and after slimming."""
    with plots.styled(page=False):
        return plots.plot_widths(plan, axes or _new(8.0, 0.8 + 0.26 * plots.widths_shown(plan)))


def _new(width: float, height: float) -> Axes:
    """Return pyplot axes, which notebooks show without a call."""
    from matplotlib import pyplot as plt  # not at import: pyplot may need a display

    return plt.subplots(figsize=(width, height), layout="constrained")[1]

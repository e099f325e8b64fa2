"""The report's figures in their sizes, as SVG for the page or as files for papers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FixedLocator

from dst_analyze.errors import OptionError
from dst_analyze.ranking.formats.table import remaining_table
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.figures import plots
from dst_analyze.report.figures.ladder import ladder_figure
from dst_analyze.report.figures.svg import Styles, svg_of
from dst_analyze.report.graph.drawing import Picture
from dst_analyze.run.files.atomic_io import writing
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.text import shorten_middle

FORMATS = ("svg", "png", "pdf")
WIDTHS = {1: 3.5, 2: 7.16}
"""Width of one and two columns of a paper in inches, as IEEE and ACM have them."""
_NARROW, _MOST_BESIDE = 4.0, 2
_TEXT_SHRINKS, _SMALL_LETTER = 0.85, 0.062  # of margins, which hold text; width of an axis label's character in inches
_MOST_OF_WIDTH, _MOST_TICKS = 0.42, 6
_PAPER: dict[Any, Any] = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "lines.linewidth": 1.0,
}  # fmt: skip
_ROOM_FOR_CHANGES, _LINE = 1.3, 0.14  # of an axis, for the numbers beside its bars; height of a line in inches
_BAR = 0.75  # room for the labels of a colour bar in inches
_LETTER = 0.07  # width of an axis label's character in inches


@dataclass
class FigureSet:
    """The figures of one page; collects their CSS styles for the page's head."""

    styles: Styles = field(default_factory=Styles)

    def put(self, name: str, label: str, draw: Callable[..., Figure], *arguments: Any) -> Markup:
        """Return a figure as inline SVG; ``label`` is its text for screen readers."""
        with plots.styled(page=True):
            return svg_of(draw(*arguments), name, label, self.styles)


def pattern(record: SweepRecord, ranking: Ranking) -> Figure:
    """Return the heatmap of a run."""
    return heatmap(remaining_table(record, ranking))


def heatmap(table: pd.DataFrame) -> Figure:
    """Return a heatmap of layers x alphas."""
    right = 0.1 if plots.has_numbers(*table.shape) else _BAR
    figure, axes = canvas(*plots.pattern_size(*table.shape), names=list(table.index), right=right)
    plots.plot_pattern(table, axes)
    return figure


def training(record: SweepRecord, alpha: float) -> Figure:
    """Return remaining ratios over training at one alpha."""
    names = list(record.layers["layer"])
    if len(names) <= plots.MOST_LINES:
        figure, axes = canvas(10.5, 3.2, right=0.55 + _LETTER * _longest(names))
    else:
        figure, axes = canvas(9.5, min(1 + 0.13 * len(names), 7.5), names=names, right=_BAR)
    plots.plot_training(record, alpha, axes)
    return figure


def curves(record: SweepRecord, alpha: float) -> Figure:
    """Return loss and score over training at one alpha."""
    figure = Figure(figsize=(6.2, 2.2))
    loss, score = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.09, right=0.99, top=0.97, bottom=0.2, wspace=0.26)
    plots.plot_curves(record, alpha, loss, score)
    if not score.lines:  # it may be read at the end only
        score.remove()
        loss.set_subplotspec(GridSpec(1, 1, figure)[0])
    return figure


def thresholds(record: SweepRecord, alpha: float) -> Figure:
    """Return the final thresholds of each layer at one alpha."""
    figure, axes = canvas(6.2, 2.2, left=0.8)
    plots.plot_thresholds(record, alpha, axes)
    return figure


def widths(plan: SlimPlan) -> Figure:
    """Return each group's width before and after slimming."""
    figure, axes = canvas(7.6, 0.75 + 0.24 * plots.widths_shown(plan), names=[g.group for g in plan.groups])
    figure.subplots_adjust(top=1 - 0.28 / figure.get_figheight())
    plots.plot_widths(plan, axes)
    return figure


def graph(picture: Picture) -> Figure:
    """Return the drawing of the model's graph."""
    figure = Figure(figsize=(picture.width / 96, picture.height / 96))
    plots.plot_graph(picture, figure.add_axes((0, 0, 1, 1)))
    return figure


def write_figures(
    folder: Path,
    kind: str,
    record: SweepRecord,
    ranking: Ranking,
    plan: SlimPlan | None,
    picture: Picture | None,
    ladder: LadderProof | None = None,
    *,
    columns: int | None = None,
) -> list[Path]:
    """Write every figure of a run as a file; the same run gives the same bytes.

    With ``columns`` each is as wide as one or two columns of a paper, with text of 7 to 8 points.
    """
    if kind not in FORMATS:
        raise OptionError(f"there is no format {kind!r}", place="--format", hint=f"formats: {', '.join(FORMATS)}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in _figures_of(record, ranking, plan, picture, ladder, panels=1 if columns == 1 else 3):
        path = folder / f"{name}.{kind}"
        with plots.styled(page=False), rc_context(_PAPER if columns else {}), writing(path):
            figure = draw()
            if columns:
                _fit(figure, WIDTHS[columns], keep_shape=name == "graph")
                _make_room(figure, name, narrow=columns == 1)
            figure.savefig(path, dpi=300 if columns else 200, metadata=_UNDATED[kind])
        paths.append(path)
    return paths


def _fit(figure: Figure, width: float, *, keep_shape: bool) -> None:
    """Give a figure the width of columns, with its labels within."""
    wide, high = figure.get_size_inches()
    if keep_shape:  # a drawing, whose text shrinks with it
        for text in figure.axes[0].texts:
            text.set_fontsize(text.get_fontsize() * min(1.0, width / wide))
        figure.set_size_inches(min(width, wide), high * min(1.0, width / wide))
        return
    margins = figure.subplotpars
    left, right = (_TEXT_SHRINKS * wide * part for part in (margins.left, 1 - margins.right))
    bottom, top = high * margins.bottom, high * (1 - margins.top)
    if width < _NARROW:
        right, bottom = _legends_below(figure, right, bottom)
    left = min(left, _MOST_OF_WIDTH * width)
    inner = high * (margins.top - margins.bottom) * max(0.75, min(1.0, width / wide))
    figure.set_size_inches(width, inner + bottom + top)
    figure.subplots_adjust(
        left=left / width, right=1 - min(right, _MOST_OF_WIDTH * width) / width,
        bottom=bottom / (inner + bottom + top), top=1 - top / (inner + bottom + top),
    )  # fmt: skip
    if width < _NARROW:
        figure.subplots_adjust(wspace=2 * margins.wspace)
    for axes in figure.axes:
        if isinstance(axes.xaxis.get_major_locator(), FixedLocator) and len(axes.get_xticks()) > _MOST_TICKS:
            named = [label.get_text() for label in axes.get_xticklabels()]
            axes.set_xticks(axes.get_xticks()[::2], named[::2])
        for label in axes.get_yticklabels():
            label.set_text(shorten_middle(label.get_text(), max(8, int((left - 0.15) / _SMALL_LETTER))))
        if axes.get_yticklabels() and not _is_number(axes.get_yticklabels()[0].get_text()):
            axes.set_yticks(axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()])


def _make_room(figure: Figure, name: str, *, narrow: bool) -> None:
    """Make room for texts that a figure of this width would cut."""
    axes = figure.axes[0]
    if name == "pattern" and narrow:
        axes.set_xlabel(axes.get_xlabel().partition(":")[0])
    elif name == "widths" and narrow:
        axes.set_xlim(0, _ROOM_FOR_CHANGES * axes.get_xlim()[1])
    elif name == "ratios" and not narrow:
        for panel in figure.axes:
            panel.set_title(panel.get_title("left").replace(", ", "\n", 1), loc="left")
        high, margins = figure.get_figheight(), figure.subplotpars
        figure.set_figheight(high + _LINE)
        figure.subplots_adjust(
            top=(margins.top * high) / (high + _LINE),
            bottom=margins.bottom * high / (high + _LINE),
            hspace=1.4 * margins.hspace,
        )


def _legends_below(figure: Figure, right: float, bottom: float) -> tuple[float, float]:
    """Put long legends that stand beside their axes below them; return the margins that are then needed, in inches."""
    for axes in figure.axes:
        legend = axes.get_legend()
        if legend is None or len(legend.get_texts()) <= _MOST_BESIDE:
            continue
        handles, labels = axes.get_legend_handles_labels()
        legend.remove()
        figure.legend(handles, [shorten_middle(label, 20) for label in labels], loc="lower center", ncols=2)
        right, bottom = 0.1, bottom + 0.16 * math.ceil(len(labels) / 2)
    return right, bottom


def _is_number(text: str) -> bool:
    return not text or text.lstrip("\N{MINUS SIGN}-").replace(".", "", 1).isdigit()


_UNDATED = {"svg": {"Date": None}, "png": {}, "pdf": {"CreationDate": None}}


def _figures_of(
    record: SweepRecord,
    ranking: Ranking,
    plan: SlimPlan | None,
    picture: Picture | None,
    ladder: LadderProof | None,
    *,
    panels: int,
) -> Iterator[tuple[str, Callable[[], Figure]]]:
    yield "pattern", partial(pattern, record, ranking)
    yield "ratios", partial(plots.ratios_figure, record, ranking, panels)
    for alpha in record.alphas:
        for draw in (training, curves, thresholds):
            yield f"{draw.__name__}-{alpha_label(alpha)}", partial(draw, record, alpha)
    if plan is not None:
        yield "widths", partial(widths, plan)
    if picture is not None:
        yield "graph", partial(graph, picture)
    if ladder is not None:
        yield "ladder", partial(ladder_figure, ladder)


def canvas(
    width: float, height: float, *, names: list[str] | None = None, left: float = 0.62, right: float = 0.1
) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes and room for names, estimated by their length for speed."""
    left = left if names is None else 0.25 + _LETTER * _longest(names)
    figure = Figure(figsize=(width + (0 if names is None else left - 0.6), height))
    axes = figure.subplots()
    wide = figure.get_figwidth()
    figure.subplots_adjust(left=left / wide, right=1 - right / wide, top=1 - 0.12 / height, bottom=0.5 / height)
    return figure, axes


def _longest(names: list[str]) -> int:
    return max((len(plots.axis_name(name)) for name in names), default=0)

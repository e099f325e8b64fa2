"""The report's figures, drawn on given axes: for the page, for papers and for notebooks.

All share one style and one set of colours (`colours`). Whatever colour shows is also shown by a number, a name or a
line's pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

from dst_analyze.ranking.result import Ranking
from dst_analyze.report.figures.colours import KEPT_MAP, ink_on
from dst_analyze.report.figures.svg import LINE, PAGE, TEXT, TOOLTIP
from dst_analyze.report.graph.drawing import Picture
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.text import shorten_middle

# Each has a contrast of 3 to 1 on white and on dark pages; beyond six lines, dashes differ.
PALETTE = ("#0173b2", "#d55e00", "#029e73", "#b565a7", "#7f7f7f", "#a0743c")
MOST_LINES = 12  # layers that are distinguishable as lines; more are drawn as a heatmap
_MOST_LABELS = 60  # names on the axis of a heatmap
_MOST_VALUES = 700  # cells with their number written in them
_FEW_READINGS, _MOST_READINGS = 10, 100  # of a curve: that are marked each, that are drawn
_MOST_ALPHAS, _SOME_ALPHAS = 12, 8  # drawn one by one; of more only some are, and the tables have all
_MOST_STEPS = 200  # of a line over layers; more would be narrower than two pixels
_MOST_WIDTHS = 60  # groups as bars; the table has all groups
_LONGEST_NAME = 34
_NAMES_ACROSS = 36  # letters below a panel
_SCREEN: dict[Any, Any] = {"text.color": TEXT, "axes.labelcolor": TEXT, "xtick.color": TEXT, "ytick.color": TEXT}
_SCREEN |= {"axes.edgecolor": LINE, "grid.color": LINE}
_STYLE: dict[Any, Any] = {
    **sns.axes_style("whitegrid"),
    "svg.fonttype": "none",
    "svg.hashsalt": "dst-analyze",
    "pdf.fonttype": 42,
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "text.parse_math": False,  # a layer may be called "$x"
    "axes.spines.top": False,
    "axes.spines.right": False,
    "image.interpolation": "nearest",
}


@contextmanager
def styled(*, page: bool) -> Iterator[None]:
    """Apply the report's style; on the page with placeholder colours, elsewhere black on white."""
    with rc_context(_STYLE | (_SCREEN if page else {})):
        yield


# --- the pattern ---------------------------------------------------------------------------------------------------


def pattern_size(layers: int, alphas: int) -> tuple[float, float]:
    """Return the width and height of a heatmap in inches."""
    row = 0.3 if layers <= 30 else 0.19 if layers <= _MOST_LABELS else 11 / layers
    return min(3.4 + 0.62 * alphas, 9.6), 0.85 + row * max(layers, 1)


def plot_pattern(table: pd.DataFrame, axes: Axes) -> Axes:
    """Draw a heatmap of layers x alphas, in percent of the weights that remain."""
    _heatmap(table, axes, [alpha_label(float(alpha)) for alpha in table.columns])
    axes.set_xlabel("alpha: how hard training is allowed to prune")
    return axes


def has_numbers(layers: int, columns: int) -> bool:
    """Return True if there is room for a number in each cell of a heatmap; else it has a colour bar."""
    return layers * columns <= _MOST_VALUES and layers <= _MOST_LABELS and columns <= 12


def _heatmap(
    shares: pd.DataFrame, axes: Axes, columns: Sequence[str], most: int = _MOST_LABELS, *, numbers: bool = True
) -> None:
    """Draw shares as colours, with percentages if they are wanted and there is room."""
    rows = len(shares)
    every = max(1, math.ceil(rows / most))
    percent = shares.astype(float) * 100
    if numbers and has_numbers(rows, len(columns)):
        sns.heatmap(
            percent, ax=axes, vmin=0, vmax=100, cmap=KEPT_MAP, annot=True, fmt=".0f", cbar=False,
            linewidths=1, linecolor=PAGE, xticklabels=False, yticklabels=False,
        )  # fmt: skip
        _set_contrast(axes)
        axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
    else:  # an image with a pixel per cell: a shape per cell would make the page too large
        extent = (0, len(columns), rows, 0)
        image = axes.imshow(
            percent, vmin=0, vmax=100, cmap=KEPT_MAP, aspect="auto", interpolation="none", extent=extent
        )
        bar = axes.figure.colorbar(image, ax=axes, label="remaining %", fraction=0.03, pad=0.02)
        bar.outline.set_visible(False)
        if bar.solids is not None:
            bar.solids.set_rasterized(True)
        places = np.unique(np.linspace(0, len(columns) - 1, min(len(columns), 10)).round().astype(int))
        axes.set_xticks(places + 0.5, [columns[place] for place in places])
    axes.set_yticks(np.arange(0, rows, every) + 0.5, [axis_name(name) for name in shares.index[::every]])
    axes.set(ylabel="")
    axes.grid(visible=False)
    axes.tick_params(length=0, rotation=0)


def _set_contrast(axes: Axes) -> None:
    """Set each number to black or white: seaborn's choice has too little contrast in mid-range."""
    (mesh,) = axes.collections
    known: np.ndarray = np.ma.compressed(np.ma.asarray(mesh.get_array()))
    for text, colour in zip(axes.texts, mesh.to_rgba(known), strict=True):
        text.set_color(ink_on(to_hex(tuple(colour))))


def drawn_alphas(record: SweepRecord) -> tuple[float, ...]:
    """Return the alphas that are drawn each by itself: all, or of very many some from the weakest to the strongest."""
    alphas = record.alphas
    if len(alphas) <= _MOST_ALPHAS:
        return alphas
    return tuple(alphas[at] for at in np.linspace(0, len(alphas) - 1, _SOME_ALPHAS).round().astype(int))


def ratios_figure(record: SweepRecord, ranking: Ranking, most: int = 3) -> Figure:
    """The paper's figure: what remains of each layer, in network order, a panel for each alpha, ``most`` in a row."""
    alphas = drawn_alphas(record)
    across = min(len(alphas), most)
    down = math.ceil(len(alphas) / across)
    figure = Figure(figsize=(9.4, 0.5 + 1.75 * down))
    panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    order = list(ranking.table.sort_values("position")["layer"])
    for axes, alpha in zip(panels.flat, alphas, strict=False):
        at = ranking.by_alpha[ranking.by_alpha["alpha"] == alpha].set_index("layer").reindex(order)
        low, shares, high = (100 * at[name].to_numpy(float) for name in ("lowest", "remaining", "highest"))
        edges, low, shares, high = _steps(low, shares, high)
        axes.stairs(shares, edges, fill=True, color=PALETTE[0], alpha=0.35)
        axes.stairs(shares, edges, color=PALETTE[0], baseline=None)
        if (high > low).any():
            axes.stairs(high, edges, baseline=low, fill=True, color=PALETTE[0], alpha=0.3)
        kept, score, kind = record.remaining(alpha), record.score(alpha), record.manifest.data.score
        if kept is not None:
            axes.axhline(100 * kept, color=PALETTE[1], linestyle="--", linewidth=1)
        said = [f"alpha {alpha_label(alpha)}", *([] if kept is None else [f"model {kept:.1%}"])]
        if score is not None:
            said.append(f"accuracy {score:.1%}" if kind == "accuracy" else f"{kind} {score:.3g}")
        axes.set_title(", ".join(said), loc="left")
        axes.set(ylim=(0, 100))
        _layer_axis(axes, order)
    for axes in panels.flat[len(alphas) :]:
        axes.set_visible(False)
    for axes in panels[:, 0]:
        axes.set_ylabel("remaining %")
    figure.subplots_adjust(left=0.07, right=0.99, top=1 - 0.25 / figure.get_figheight(), hspace=0.42, wspace=0.1)
    figure.subplots_adjust(bottom=0.45 / figure.get_figheight())
    return figure


# --- training ------------------------------------------------------------------------------------------------------


def plot_training(record: SweepRecord, alpha: float, axes: Axes) -> Axes:
    """Draw what remains of each layer over training, median over seeds; x marks a threshold reset."""
    frame = record.frame[(record.frame["alpha"] == alpha) & ~record.frame["control"].astype(bool)]
    known = set(frame["layer"].unique())
    order = [name for name in record.layers["layer"] if name in known]
    course = frame.groupby(["layer", "step"], sort=False)["remaining"].median().unstack("layer")
    course = course.sort_index().reindex(columns=order)
    resets = _reset_at(frame, order)
    if len(order) > MOST_LINES:
        shares = course.T
        steps = list(shares.columns)
        _heatmap(shares, axes, [f"{step:,.0f}" for step in steps], most=_MOST_LABELS // 3, numbers=False)
        for layer, step in resets:
            place = [steps.index(step) + 0.5], [order.index(layer) + 0.5]
            axes.plot(*place, "x", color=PALETTE[1], markersize=4, gid=_reset_words(layer, step))
    else:
        for number, layer in enumerate(order):
            axes.plot(course.index, 100 * course[layer], label=axis_name(layer), **_line_style(number))
        for layer, step in resets:
            colour = PALETTE[order.index(layer) % len(PALETTE)]
            place = [step], [100 * course.at[step, layer]]
            axes.plot(*place, "x", color=colour, markersize=6, gid=_reset_words(layer, step))
        axes.set(ylim=(0, 102), ylabel="remaining %")
        if order:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, handlelength=2.6)
    axes.set_xlabel("step")
    return axes


def _reset_words(layer: str, step: float) -> str:
    """Return the tooltip of a reset."""
    what = "had come down to 1 % of its weights, so its thresholds were set back to zero and its weights came back"
    return f"{TOOLTIP}{axis_name(layer)} at step {step:,.0f}: it {what}"


def _reset_at(frame: pd.DataFrame, order: Sequence[str]) -> list[tuple[str, float]]:
    """Return each layer and step at which a reading shows a reset, in any seed."""
    counted = frame.dropna(subset=["resets"]).sort_values("step")
    more = counted.groupby(["seed", "layer"], sort=False)["resets"].diff().fillna(counted["resets"]) > 0
    hit = counted[more & counted["layer"].isin(order)]
    return list(dict.fromkeys(zip(hit["layer"], hit["step"], strict=True)))


def plot_curves(record: SweepRecord, alpha: float, loss: Axes, score: Axes) -> None:
    """Draw training loss and test score at one alpha, a line per seed, with the dense model's."""
    main = record.steps[~record.steps["control"].astype(bool)]
    for name, axes in (("loss", loss), ("score", score)):
        scale = 100 if name == "score" and record.manifest.data.score == "accuracy" else 1
        for at, colour, dashes, label in (
            (main[main["alpha"].isna()], PALETTE[4], "--", "dense"),
            (main[main["alpha"] == alpha], PALETTE[0], "-", f"alpha {alpha_label(alpha)}"),
        ):
            for number, (_, run) in enumerate(at.dropna(subset=[name]).groupby("seed")):
                named = label if number == 0 else "_"  # matplotlib leaves "_" out of the legend
                dots = "o" if len(run) <= _FEW_READINGS else None  # a single reading has no line
                axes.plot(
                    run["step"],
                    scale * run[name],
                    color=colour,
                    linestyle=dashes,
                    marker=dots,
                    markersize=4,
                    label=named,
                )
        known = scale * main[name].dropna()  # all alphas and the dense model have the same axes, to be compared
        if len(known):
            low, high = float(known.min()), float(known.max())
            room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
            most = high + room
            axes.set_ylim(low - room, min(most, 100.5) if scale == 100 else most)  # no axis beyond 100 %
            axes.set_xlim(0, 1.02 * float(main["step"].max()))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    loss.set_ylabel("training loss")
    kind = record.manifest.data.score
    score.set_ylabel(f"{record.manifest.data.scored_on} {kind}{' %' if kind == 'accuracy' else ''}")
    if loss.lines:
        loss.legend(loc="upper right")


def plot_thresholds(record: SweepRecord, alpha: float, axes: Axes) -> Axes:
    """Draw each layer's final thresholds: the dark band holds half of them, the pale band all."""
    frame = record.frame[(record.frame["alpha"] == alpha) & ~record.frame["control"].astype(bool)]
    last = frame[frame["step"] == frame.groupby("seed")["step"].transform("max")]
    columns = ["threshold_min", "threshold_25", "threshold_median", "threshold_75", "threshold_max"]
    spread = last.groupby("layer")[columns].median().reindex(list(record.layers["layer"]))
    edges, low, quarter, median, three, high = _steps(*(spread[name].to_numpy(float) for name in columns))
    axes.stairs(high, edges, baseline=low, fill=True, color=PALETTE[0], alpha=0.25)
    axes.stairs(three, edges, baseline=quarter, fill=True, color=PALETTE[0], alpha=0.5)
    axes.stairs(median, edges, baseline=None, color=PALETTE[1])
    axes.set(ylabel="thresholds")
    _layer_axis(axes, list(spread.index))
    return axes


def _steps(*rising: np.ndarray) -> list[np.ndarray]:
    """Return edges and heights of step lines, a step per layer or per few neighbours if there are many.

    Arguments run from the lowest line to the highest. Of layers that share a step, the lowest line takes the minimum,
    the highest the maximum, and lines between take the median.
    """
    count = len(rising[0])
    cuts = np.unique(np.linspace(0, count, min(count, _MOST_STEPS) + 1).round().astype(int))
    takes: list[Callable[..., Any]] = [np.min, *[np.median] * (len(rising) - 2), np.max]
    parts = [
        np.array([take(values[a:b]) for a, b in pairwise(cuts)]) for take, values in zip(takes, rising, strict=True)
    ]
    return [cuts + 0.5, *parts]


def _layer_axis(axes: Axes, order: Sequence[str]) -> None:
    """Label the x axis with layers, by name if there is room, else by number."""
    axes.set_xlim(0.5, max(len(order), 1) + 0.5)
    if sum(len(name) + 1 for name in order) <= _NAMES_ACROSS:
        axes.set_xticks(np.arange(len(order)) + 1.0, [axis_name(name) for name in order])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        axes.set_xlabel("layer, counted from the input")


def _line_style(number: int) -> dict[str, Any]:
    """Return a line's style; twelve are distinguishable even without colour."""
    dashes: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)))
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": dashes[(number // len(PALETTE) + number) % 3]}


# --- the slim architecture -----------------------------------------------------------------------------------------


def widths_shown(plan: SlimPlan) -> int:
    """Return how many groups `plot_widths` draws."""
    return min(len(plan.groups), _MOST_WIDTHS)


def plot_widths(plan: SlimPlan, axes: Axes) -> Axes:
    """Draw each group's width before and after as bars; if there are many, those that lose most."""
    most = sorted(plan.groups, key=lambda group: group.new_width - group.width)[:_MOST_WIDTHS]
    chosen = {id(group) for group in most}
    groups = [group for group in plan.groups if id(group) in chosen]
    # Numbers in place of names: two names may be shortened to the same text.
    before = pd.DataFrame({"group": [str(at) for at in range(len(groups))], "width": [g.width for g in groups]})
    after = before.assign(width=[group.new_width for group in groups])
    for bars, colour, label in ((before, "#b9c3cc", "before"), (after, PALETTE[0], "after")):
        sns.barplot(
            bars, x="width", y="group", ax=axes, color=colour, saturation=1, width=0.72, label=label, legend=False
        )
    for at, group in enumerate(groups):
        same = group.new_width == group.width
        text = f"{group.width}" if same else f"{group.width} → {group.new_width}"
        axes.text(group.width, at, f" {text}", va="center", fontsize=8)
    axes.set_yticks(range(len(groups)), [axis_name(group.group) for group in groups])
    axes.set(xlabel="channels", ylabel="", xlim=(0, 1.18 * max((g.width for g in groups), default=1)))
    axes.grid(axis="y", visible=False)
    if groups:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.1)
    return axes


# --- the graph -----------------------------------------------------------------------------------------------------


def plot_graph(picture: Picture, axes: Axes) -> Axes:
    """Draw the architecture from top to bottom, layers coloured and labelled by redundancy."""
    small = min(7.0, 7.0 * 760 / max(picture.height, 760) + 2)
    for points in picture.lines:
        codes, corners = [Outline.MOVETO], [points[0]]
        for (x0, y0), (x1, y1) in pairwise(points):
            codes += [Outline.CURVE4] * 3
            corners += [(x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2), (x1, y1)]
        axes.add_patch(PathPatch(Outline(corners, codes), fill=False, edgecolor=PALETTE[4], linewidth=0.8))
    for box in picture.boxes:
        shape = FancyBboxPatch(
            (box.x, box.y), box.width, box.height, boxstyle="round,pad=0,rounding_size=5",
            facecolor="white", edgecolor=PALETTE[4], linewidth=0.8,
        )  # fmt: skip
        axes.add_patch(shape)
        for cell in box.cells:
            axes.add_patch(Rectangle((cell.x, cell.y), cell.width, cell.height, facecolor=cell.fill, edgecolor="none"))
        written = [*((word, "black") for word in box.words), *((w, c.ink) for c in box.cells for w in c.words)]
        for word, colour in written:
            align = "center" if word.anchor == "middle" else "left"
            axes.text(word.x, word.y, word.text, ha=align, va="baseline", fontsize=small, color=colour)
    axes.set(xlim=(0, picture.width), ylim=(picture.height, 0), aspect="equal")
    axes.set_axis_off()
    return axes


def axis_name(name: str) -> str:
    """Return a name shortened in the middle, for an axis."""
    return shorten_middle(name, _LONGEST_NAME)

"""The figure of a ladder: score against parameters and against MACs, of the suggestion and of its rivals."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from dst_analyze.report.figures.plots import PALETTE
from dst_analyze.slimming.proof.ladder_result import Axis, LadderProof
from dst_analyze.slimming.proof.result import DEPTH, FAN_IN, MAGNITUDE, RANDOM, SLIM, UNIFORM, WORDS
from dst_analyze.text import short

_PANEL, _HEIGHT, _LEGEND = 4.3, 3.1, 1.35
# Markers and dashes tell the lines apart without colour.
_LINES: dict[str, dict[str, Any]] = {
    SLIM: {"color": PALETTE[0], "marker": "o", "linestyle": "-", "linewidth": 2.2, "zorder": 4},
    UNIFORM: {"color": PALETTE[1], "marker": "s", "linestyle": "--", "zorder": 3},
    RANDOM: {"color": PALETTE[4], "marker": "x", "linestyle": ":", "linewidth": 1},
    FAN_IN: {"color": PALETTE[2], "marker": "^", "linestyle": (0, (5, 1.5)), "linewidth": 1},
    DEPTH: {"color": PALETTE[5], "marker": "v", "linestyle": (0, (1, 1)), "linewidth": 1},
    MAGNITUDE: {"color": PALETTE[3], "marker": "D", "linestyle": "-.", "linewidth": 1},
}
_WITH_INTERVALS = (SLIM, UNIFORM)  # of the others the table has them: six at each size would hide each other


def ladder_figure(found: LadderProof) -> Figure:
    """Return a panel for each axis, side by side, with one legend."""
    axes_shown = found.axes
    width = _PANEL * len(axes_shown) + _LEGEND
    figure = Figure(figsize=(width, _HEIGHT))
    panels = figure.subplots(1, len(axes_shown), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes_shown, strict=True):
        plot_ladder(found, axis, panel)
    panels[0].set_ylabel("accuracy %" if found.score == "accuracy" else str(found.score))
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.02, 1.0), borderaxespad=0.0, handlelength=3)
    figure.subplots_adjust(left=0.55 / width, right=1 - _LEGEND / width, wspace=0.08)
    figure.subplots_adjust(top=1 - 0.12 / _HEIGHT, bottom=0.5 / _HEIGHT)
    return figure


def plot_ladder(found: LadderProof, axis: Axis, axes: Axes) -> Axes:
    """Draw scores against the parameters or MACs; bars are 95 % intervals without the seeds' effect."""
    scale = 100 if found.score == "accuracy" else 1
    dense = found.dense
    axes.axhline(scale * dense.mean, color=PALETTE[4], linestyle=(0, (6, 2)), linewidth=1, label="dense")
    for kind, points in found.curves(axis):
        halves = [scale * half if math.isfinite(half) else 0.0 for half in points["half"]]
        x, y = points["cost"].to_numpy(float), scale * points["score"].to_numpy(float)
        axes.plot(x, y, label="suggestion" if kind == SLIM else kind, markersize=4.5, **_LINES[kind])
        if kind in _WITH_INTERVALS:
            colour = _LINES[kind]["color"]
            axes.errorbar(x, y, yerr=halves, fmt="none", ecolor=colour, elinewidth=1, capsize=2.5, zorder=2)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    whole = found.params if axis == "params" else found.macs
    shares = sorted({rung.share for rung in found.rungs})
    axes.set_xticks([share * (whole or 1) for share in shares])
    axes.set_xlabel(f"{WORDS[axis]}, of {short(whole)}")
    return axes

"""The proof as a figure: each model's score against its parameters and its MACs, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dst_analyze.report.figures.plots import PALETTE
from dst_analyze.slimming.proof.result import DENSE, SLIM, Entry, Verification
from dst_analyze.text import short

_MARKS = {SLIM: ("o", PALETTE[1], 8.0), DENSE: ("s", PALETTE[0], 7.0)}
_RIVAL = ("D", PALETTE[4], 5.0)


def proof_figure(proof: Verification) -> Figure:
    """Return a figure of a proof: a panel for parameters, and one for MACs if they are known."""
    known = [entry for entry in proof.entries if entry.known]
    counted = all(entry.macs for entry in known)
    figure = Figure(figsize=(9.4 if counted else 5.2, 2.9))
    panels: Sequence[Axes] = figure.subplots(1, 2 if counted else 1, sharey=True, squeeze=False)[0]
    _plot(proof, known, panels[0], "params")
    if counted:
        _plot(proof, known, panels[1], "macs")
    scale = " %" if proof.score == "accuracy" else ""
    panels[0].set_ylabel(f"{proof.score}{scale}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="center right")
    wide = figure.get_figwidth()
    figure.subplots_adjust(left=0.6 / wide, right=1 - 1.25 / wide, top=0.96, bottom=0.19, wspace=0.08)
    return figure


def _plot(proof: Verification, known: Sequence[Entry], axes: Axes, size: str) -> None:
    scale = 100 if proof.score == "accuracy" else 1
    sizes = [getattr(entry, size) for entry in known]
    means = [scale * entry.mean for entry in known]
    spread = max(means) - min(means) or abs(means[0]) * 0.1 or 1.0
    # An interval of two seeds may be wider than all differences: it is cut, so that these can be seen.
    bottom, top = min(means) - 0.8 * spread, max(means) + 0.8 * spread
    rows, named = proof.table.set_index("contender"), set()
    for entry, at, mean in zip(known, sizes, means, strict=True):
        marker, colour, large = _MARKS.get(entry.name, _RIVAL)
        low, high = (scale * float(rows.at[entry.name, side]) for side in ("low", "high"))
        if math.isfinite(low):
            axes.plot([at, at], [max(low, bottom), min(high, top)], color=colour, linewidth=1.2, alpha=0.8)
        what = {SLIM: "slim", DENSE: "dense"}.get(entry.name, "others of its size")
        axes.plot(
            [at], [mean], marker, color=colour, markersize=large, label="_" if what in named else what,
            markerfacecolor=colour if entry.name in _MARKS else "none", linestyle="none",
        )  # fmt: skip
        named.add(what)
    axes.set(xlim=(0, 1.08 * max(sizes)), ylim=(bottom, top), xlabel={"params": "parameters", "macs": "MACs"}[size])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))

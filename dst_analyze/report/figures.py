"""The report's figures, as SVG that takes its text colour from the page."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dst_analyze.sweep.record import alpha_label

# Stand-ins that the page's own colours replace, so that one picture serves light and dark.
_TEXT, _PAGE = "#0a0b0c", "#fafbfc"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dst-analyze",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _TEXT,
    "text.parse_math": False,  # a layer may be called "$x"
    "axes.labelcolor": _TEXT,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
}
_LONGEST_NAME = 44


def pattern_svg(table: pd.DataFrame) -> str:
    """The layer x alpha heatmap: the darker, the more of a layer remains."""
    with rc_context(_STYLE), warnings.catch_warnings():
        # The browser draws the text with its own fonts; which glyphs matplotlib's font lacks is no matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        names = [_label(name) for name in table.index]
        width = 0.9 + 0.075 * max(map(len, names), default=0) + 1.05 * len(table.columns)
        figure = Figure(figsize=(width, 0.75 + 0.32 * len(names)), layout="constrained")
        plot_pattern(table.set_axis(names, axis=0), figure.subplots())
        return _svg(figure)


def plot_pattern(table: pd.DataFrame, axes: Axes) -> None:
    shown = table * 100
    sns.heatmap(
        shown,
        ax=axes,
        vmin=0,
        vmax=100,
        cmap="crest",
        annot=True,
        fmt=".0f",
        cbar=False,
        linewidths=1.5,
        linecolor=_PAGE,
        xticklabels=[alpha_label(alpha) for alpha in table.columns],
        yticklabels=list(table.index),
    )
    axes.set(xlabel="alpha", ylabel="")
    axes.tick_params(length=0, rotation=0)


def _label(name: str) -> str:
    """A name short enough for an axis, end and beginning kept, nothing in it that is not drawn."""
    name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace(_TEXT, "currentColor").replace(_PAGE, "var(--page)")

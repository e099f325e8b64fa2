"""`Ranking`: the answer as a value, which shows, prints, writes and reads itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dst_analyze.errors import OptionError
from dst_analyze.ranking import serialize
from dst_analyze.ranking.evidence import Agreement
from dst_analyze.ranking.verdict import LABELS, Caveat, Verdict
from dst_analyze.run.record import SweepRecord

Key = Callable[[pd.DataFrame], pd.DataFrame]

ORDERS: dict[str, Key] = {
    "redundancy": lambda t: t.sort_values(["rank", "position"]),
    "params": lambda t: _weighted(t, "params_given_up"),
    "macs": lambda t: _weighted(t, "macs_given_up"),
    "beyond-null": lambda t: t.sort_values(["beyond_null", "rank"], ascending=[False, True], na_position="last"),
}
"""The orders of the table: by redundancy, by the weights or MACs the finding touches, by redundancy beyond the null."""


def _weighted(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """What is surely redundant first, what is surely needed last, and within each the largest gain first."""
    place = table["label"].map(LABELS.index)
    keys = table.assign(_place=place, _gain=-table[by]).sort_values(["_place", "_gain", "rank", "position"])
    return keys.drop(columns=["_place", "_gain"])


@dataclass(frozen=True, eq=False)
class Ranking:
    """Layers by redundancy, with how sure that is; docs/ranking.md says what each number means.

    ``why`` is the reason for the verdict, a clause; ``caveats`` stand beside it and change no label. ``notes`` say what
    can and cannot be concluded, the verdict first. ``table`` has a row per layer, the most redundant first;
    ``by_alpha`` each layer's ratio, its spread over seeds, its rank, the share that was gone and the loss of score at
    each alpha; ``trials`` what became of each trial; ``groups`` the same as ``table`` for layers that must shrink
    together; ``alpha_correlation`` Spearman's correlation between the orders at any two alphas. ``record`` is the sweep
    that was ranked; None for a ranking of ratios from elsewhere, or one that was read from CSV or JSON.
    """

    verdict: Verdict
    why: str
    caveats: tuple[Caveat, ...]
    notes: tuple[str, ...]
    statistics: Agreement
    table: pd.DataFrame
    by_alpha: pd.DataFrame
    alpha_correlation: pd.DataFrame
    trials: pd.DataFrame
    groups: pd.DataFrame | None = None
    record: SweepRecord | None = None

    @property
    def agreement(self) -> float:
        """Kendall's W over the trials' rankings, corrected for ties; NaN where there is none."""
        return self.statistics.w

    @property
    def interval(self) -> tuple[float, float]:
        """The bootstrap interval of ``agreement``."""
        return self.statistics.interval.low, self.statistics.interval.high

    @property
    def p_value(self) -> float:
        """How likely so much agreement would be if all layers were alike."""
        return self.statistics.p_value

    def ordered(self, by: str = "redundancy", top: int | None = None) -> pd.DataFrame:
        """The table in one of `ORDERS`, its first rows only if asked."""
        if by not in ORDERS:
            raise OptionError(f"there is no order {by!r}", hint=f"orders: {', '.join(ORDERS)}")
        if top is not None and top < 1:
            raise OptionError(f"the first {top} layers are none", place="--top", hint="give a number from 1")
        return ORDERS[by](self.table).head(top).reset_index(drop=True)

    def spare_words(self, layer: str) -> str:
        """Return what goes of a layer at which loss, "77 % of its weights go at no loss"; "" where it is not known."""
        found = self.table.loc[self.table["layer"] == layer, "spare_words"]
        return str(found.iloc[0]) if len(found) else ""

    def remaining(self) -> pd.DataFrame:
        """Layers in network order x alphas: the median of the remaining ratio over seeds."""
        order = self.table.sort_values("position")["layer"]
        wide = self.by_alpha.pivot(index="layer", columns="alpha", values="remaining")
        return wide.reindex(index=list(order)).astype(float)

    # --- ways out and back in ---

    def text(self, width: int | None = None, *, by: str = "redundancy", top: int | None = None) -> str:
        """A table for a terminal, with the verdict and the notes below it."""
        return serialize.text(self, self.ordered(by, top), width or shutil.get_terminal_size().columns, by)

    def __str__(self) -> str:
        return self.text()

    def markdown(self, *, by: str = "redundancy", top: int | None = None) -> str:
        """Return the table and the notes as Markdown."""
        return serialize.markdown(self, self.ordered(by, top), by)

    def to_csv(self, *, by: str = "redundancy", top: int | None = None) -> str:
        """A row per layer for a spreadsheet; `from_csv` gives the whole ranking back if no row was left off."""
        return serialize.to_csv(self, self.ordered(by, top))

    def to_json(self, *, by: str = "redundancy", top: int | None = None) -> str:
        """Return the ranking as JSON; `from_json` gives it back if no row was left off."""
        return serialize.to_json(self, self.ordered(by, top))

    @classmethod
    def from_csv(cls, text: str) -> Ranking:
        """Return the ranking that `to_csv` wrote."""
        return cls(**serialize.from_csv(text))

    @classmethod
    def from_json(cls, text: str) -> Ranking:
        """Return the ranking that `to_json` wrote."""
        return cls(**serialize.from_json(text))

    def _repr_html_(self) -> str:
        from dst_analyze.ranking.html import as_html  # jinja only where a notebook asks for it

        return as_html(self)

    def __repr__(self) -> str:
        return f"Ranking({str(self.verdict)!r}, {len(self.table)} layers, W={self.agreement:.2f})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Ranking) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

"""The result of `rank_layers`, with its text, Markdown, CSV, JSON and HTML forms."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dst_analyze.errors import OptionError
from dst_analyze.ranking.evidence import Agreement
from dst_analyze.ranking.formats import serialize
from dst_analyze.ranking.verdict import LABELS, Caveat, Verdict
from dst_analyze.run.record import SweepRecord

Key = Callable[[pd.DataFrame], pd.DataFrame]

ORDERS: dict[str, Key] = {
    "redundancy": lambda t: t.sort_values(["rank", "position"]),
    "params": lambda t: _weighted(t, "params_given_up"),
    "macs": lambda t: _weighted(t, "macs_given_up"),
    "beyond-null": lambda t: t.sort_values(["beyond_null", "rank"], ascending=[False, True], na_position="last"),
}
"""Orders of the table: by redundancy, by weights or MACs given up, by redundancy beyond the null."""


def _weighted(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Return the table by label, redundant layers first; within a label the largest gain first."""
    place = table["label"].map(LABELS.index)
    keys = table.assign(_place=place, _gain=-table[by]).sort_values(["_place", "_gain", "rank", "position"])
    return keys.drop(columns=["_place", "_gain"])


@dataclass(frozen=True, eq=False)
class Ranking:
    """Layers by redundancy, with intervals and a verdict; made by `rank_layers`.

    docs/reference/ranking.md says what each number means. Rankings are equal if their JSON is.

    Attributes:
        verdict: How far the trials confirm one order of the layers.
        why: The reason for the verdict, a clause.
        caveats: What limits the verdict; a caveat changes no label.
        notes: What can and cannot be concluded, in sentences, the verdict first.
        statistics: Agreement between the trials.
        table: A row per layer, the most redundant first.
        by_alpha: Each layer at each alpha: ratio, spread over seeds, rank, share pruned, loss of score.
        alpha_correlation: Spearman's correlation between the orders at any two alphas.
        trials: Each trial's status, and why it was left out.
        groups: The same as ``table`` for layers that must shrink together; None if no groups are known.
        record: The sweep that was ranked; None for a frame, or for a ranking read from CSV or JSON.

    Example:
        >>> import pandas as pd
        >>> from dst_analyze import Ranking, rank_layers
        >>> ratios = {"layer": ["a", "b"] * 2, "alpha": [1e-5] * 2 + [1e-4] * 2, "remaining": [0.9, 0.3, 0.5, 0.1]}
        >>> ranking = rank_layers(pd.DataFrame(ratios))
        >>> ranking.ordered(top=1)["layer"].tolist()
        ['b']
        >>> Ranking.from_json(ranking.to_json()) == ranking
        True
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
        """Kendall's W over the trials' rankings, corrected for ties; NaN if there is none."""
        return self.statistics.w

    @property
    def interval(self) -> tuple[float, float]:
        """The bootstrap interval of ``agreement``."""
        return self.statistics.interval.low, self.statistics.interval.high

    @property
    def p_value(self) -> float:
        """Probability of at least this agreement if all layers were alike."""
        return self.statistics.p_value

    def ordered(self, by: str = "redundancy", top: int | None = None) -> pd.DataFrame:
        """Return the table in another order.

        Args:
            by: "redundancy", "params", "macs" or "beyond-null".
            top: Number of rows to return; all by default.

        Raises:
            OptionError: The order is unknown, or ``top`` is below 1.
        """
        if by not in ORDERS:
            raise OptionError(f"there is no order {by!r}", hint=f"orders: {', '.join(ORDERS)}")
        if top is not None and top < 1:
            raise OptionError(f"there are no first {top} layers", place="--top", hint="give a number from 1")
        return ORDERS[by](self.table).head(top).reset_index(drop=True)

    def spare_words(self, layer: str) -> str:
        """Return how much of a layer can go at which loss of score, in words; "" if it is not known."""
        found = self.table.loc[self.table["layer"] == layer, "spare_words"]
        return str(found.iloc[0]) if len(found) else ""

    def remaining(self) -> pd.DataFrame:
        """Return remaining ratios, median over seeds: a row per layer in network order, a column per alpha."""
        order = self.table.sort_values("position")["layer"]
        wide = self.by_alpha.pivot(index="layer", columns="alpha", values="remaining")
        return wide.reindex(index=list(order)).astype(float)

    # --- text and files ---

    def text(self, width: int | None = None, *, by: str = "redundancy", top: int | None = None) -> str:
        """Return a table for a terminal, with the verdict and the notes below it."""
        return serialize.text(self, self.ordered(by, top), width or shutil.get_terminal_size().columns, by)

    def __str__(self) -> str:
        return self.text()

    def markdown(self, *, by: str = "redundancy", top: int | None = None) -> str:
        """Return the table and the notes as Markdown."""
        return serialize.markdown(self, self.ordered(by, top), by)

    def to_csv(self, *, by: str = "redundancy", top: int | None = None) -> str:
        """Return CSV with a row per layer; `from_csv` restores the ranking if no row was left off."""
        return serialize.to_csv(self, self.ordered(by, top))

    def to_json(self, *, by: str = "redundancy", top: int | None = None) -> str:
        """Return the ranking as JSON; `from_json` restores it if no row was left off."""
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
        from dst_analyze.ranking.formats.html import as_html  # jinja only where a notebook asks for it

        return as_html(self)

    def __repr__(self) -> str:
        return f"Ranking({str(self.verdict)!r}, {len(self.table)} layers, W={self.agreement:.2f})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Ranking) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

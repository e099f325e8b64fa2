"""The sweep as one table: layers in network order, alphas side by side."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Protocol, TypeVar

import pandas as pd

from dst_analyze.sweep.record import SweepRecord, alpha_label, late


def remaining_table(record: SweepRecord) -> pd.DataFrame:
    """Each layer's remaining ratio per alpha: median over the last quarter of training, then mean over seeds.

    Rows are layer names in network order, columns the alphas; NaN where no trial of an alpha ended well.
    """
    settled = late(record.frame[~record.frame["control"]]).groupby(["alpha", "seed", "layer"])["remaining"].median()
    table = settled.groupby(["alpha", "layer"]).mean().unstack("alpha")
    return table.reindex(index=list(record.layers["layer"]), columns=list(record.alphas)).astype(float)


def export_table(record: SweepRecord) -> pd.DataFrame:
    """The same beside each layer's facts, for a spreadsheet."""
    facts = record.layers[["layer", "kind", "params", "macs"]].copy()
    ratios = remaining_table(record).reset_index(drop=True)
    ratios.columns = [f"remaining at {alpha_label(alpha)}" for alpha in ratios.columns]
    table = pd.concat([facts, ratios], axis=1)
    # A spreadsheet would run a name that begins like a formula.
    table["layer"] = [f"'{name}" if name[:1] in ("=", "+", "-", "@", "\t", "\r") else name for name in table["layer"]]
    return table


class LeftOut(Protocol):
    """A weight that was not analysed."""

    @property
    def reason(self) -> str: ...
    @property
    def params(self) -> int: ...


L = TypeVar("L", bound=LeftOut)


def by_reason(skipped: Iterable[L]) -> list[tuple[str, list[L]]]:
    """What was left out, gathered by the reason for it, the largest share of parameters first."""
    ordered = sorted(skipped, key=attrgetter("reason"))
    groups = [(reason, list(group)) for reason, group in groupby(ordered, key=attrgetter("reason"))]
    return sorted(groups, key=lambda group: -sum(one.params for one in group[1]))

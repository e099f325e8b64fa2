"""A sweep as one table: a row per layer, a column per alpha."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Protocol, TypeVar

import pandas as pd

from dst_analyze.ranking.result import Ranking
from dst_analyze.run.files.atomic_io import spreadsheet_safe
from dst_analyze.run.record import SweepRecord, alpha_label

_RANKED = (
    "label",
    "rank",
    "rank_low",
    "rank_high",
    "redundancy",
    "beyond_null",
    "consistency",
    "spare",
    "spare_alpha",
    "resets",
)


def remaining_table(record: SweepRecord, ranking: Ranking) -> pd.DataFrame:
    """Return each layer's remaining ratio per alpha: median over the last quarter, then over seeds.

    Rows are layer names in network order, columns the alphas; NaN if no trial of an alpha ended well.
    """
    return ranking.remaining().reindex(index=list(record.layers["layer"]), columns=list(record.alphas))


def export_table(record: SweepRecord, ranking: Ranking) -> pd.DataFrame:
    """Return the remaining ratios with each layer's facts and ranking, for a spreadsheet."""
    facts = record.layers[["layer", "kind", "params", "macs"]].reset_index(drop=True)
    ratios = remaining_table(record, ranking).reset_index(drop=True)
    ratios.columns = [f"remaining at {alpha_label(alpha)}" for alpha in ratios.columns]
    places = ranking.table.sort_values("position").reset_index(drop=True)[list(_RANKED)]
    return spreadsheet_safe(pd.concat([facts, ratios, places], axis=1), ["layer"])


class LeftOut(Protocol):
    """A weight that was not analysed."""

    @property
    def reason(self) -> str: ...
    @property
    def params(self) -> int: ...


L = TypeVar("L", bound=LeftOut)


def by_reason(skipped: Iterable[L]) -> list[tuple[str, list[L]]]:
    """Return skipped weights grouped by reason, the reason with most parameters first."""
    ordered = sorted(skipped, key=attrgetter("reason"))
    groups = [(reason, list(group)) for reason, group in groupby(ordered, key=attrgetter("reason"))]
    return sorted(groups, key=lambda group: -sum(one.params for one in group[1]))

"""Rows of the ranking table, each value as text and as a sort key."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dst_analyze.ranking.formats.serialize import places, rank_text, signed, whole_percent
from dst_analyze.ranking.formats.table import remaining_table
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import LABELS
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.text import elide, percent, short

_SPARK_WIDTH, _SPARK_HEIGHT = 60.0, 16.0
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.\-]{1,120}")
_LONGEST_NAME = 90


@dataclass(frozen=True)
class Row:
    """One layer as text for the page."""

    key: str  # in links: #layer=KEY
    name: str
    kind: str
    label: str
    reason: str
    rank: str
    interval: str
    redundancy: str
    beyond_null: str
    spare: str
    spare_words: str
    ratios: tuple[str, ...]
    spark: str
    params: str
    macs: str
    given: str


def keys_of(names: Sequence[str]) -> dict[str, str]:
    """Return each layer's key in links: its name if that is plain, else its position in the network."""
    return {name: name if _PLAIN_KEY.fullmatch(name) else f"~{at}" for at, name in enumerate(names, 1)}


def shown_name(name: str) -> str:
    """Return a name for the page: on one line, shortened, without control characters."""
    return elide(name, _LONGEST_NAME)


def rows_of(record: SweepRecord, ranking: Ranking) -> tuple[list[Row], dict[str, Any]]:
    """Return the table's rows, most redundant first, and its columns of numbers for the page's script."""
    facts = record.layers.set_index("layer").to_dict("index")
    ratios = remaining_table(record, ranking).to_dict("index")
    keys = keys_of(list(record.layers["layer"]))
    table = ranking.table.to_dict("records")
    rows = [_row(found, facts[found["layer"]], ratios[found["layer"]], keys[found["layer"]]) for found in table]
    columns: dict[str, list[Any]] = {
        "layer": [row["position"] for row in table],
        "rank": [_number(row["rank"]) for row in table],
        "redundancy": [_number(row["redundancy"]) for row in table],
        "beyond_null": [_number(row["beyond_null"]) for row in table],
        "spare": [_number(row["spare"]) for row in table],
        "label": [LABELS.index(row["label"]) for row in table],
        "params": [_number(row["params"]) for row in table],
        "macs": [_number(row["macs"]) for row in table],
        "given": [_number(row["params_given_up"]) for row in table],
    }
    for at, alpha in enumerate(record.alphas):
        columns[f"at{at}"] = [_number(ratios[row["layer"]][alpha]) for row in table]
    data = {
        "alphas": [alpha_label(alpha) for alpha in record.alphas if record.at(alpha)],
        "columns": columns,
    }
    return rows, data


def _row(found: Mapping[str, Any], facts: Mapping[str, Any], ratios: Mapping[float, float], key: str) -> Row:
    return Row(
        key=key,
        name=shown_name(found["layer"]),
        kind=str(facts["kind"]),
        label=found["label"],
        reason=found["reason"],
        rank=rank_text(found["rank"]),
        interval=places(found["rank_low"], found["rank_high"]),
        redundancy=signed(found["redundancy"]),
        beyond_null=signed(found["beyond_null"]),
        spare=whole_percent(found["spare"]),
        spare_words=found["spare_words"],
        ratios=tuple(map(percent, ratios.values())),
        spark=_spark(list(ratios.values())),
        params=short(found["params"]),
        macs=short(found["macs"]),
        given=short(found["params_given_up"]),
    )


def _spark(ratios: Sequence[float]) -> str:
    """Return an SVG path of the ratios from the weakest alpha to the strongest; the full height is 100 %."""
    step = _SPARK_WIDTH / max(len(ratios) - 1, 1)
    path, gap = "", True
    for at, ratio in enumerate(ratios):
        if math.isnan(ratio):
            gap = True
            continue
        path += f"{'M' if gap else 'L'}{1 + step * at:.0f} {1 + _SPARK_HEIGHT * (1 - ratio):.0f}"
        gap = False
    return path


def _number(value: float) -> float | None:
    """Return a value with four digits; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.4g}")

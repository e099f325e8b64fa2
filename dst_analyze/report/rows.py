"""Rows of the ranking table, each value as text and as a sort key."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dst_analyze.ranking.formats.serialize import places, rank_text, signed, whole_percent
from dst_analyze.ranking.formats.table import remaining_table
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import LABELS
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.text import percent, short, shorten_middle

_SPARK_WIDTH, _SPARK_HEIGHT = 60.0, 16.0
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.\-]{1,120}")
_LONGEST_NAME = 90
_MOST_BESIDE = 3  # coupled layers named in a row
_SHOWN_AT = (0.25, 0.5)  # of a training
_THRESHOLDS = ("threshold_min", "threshold_median", "threshold_max")


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
    kept: str  # mean over alphas and seeds
    ratios: str
    group: str  # the suggested widths of its channels
    change: str  # its line of code, changed
    course: str  # what training did to it
    spark: str
    params: str
    macs: str
    given: str


def keys_of(names: Sequence[str]) -> dict[str, str]:
    """Return each layer's key in links: its name if that is plain, else its position in the network."""
    return {name: name if _PLAIN_KEY.fullmatch(name) else f"~{at}" for at, name in enumerate(names, 1)}


def shown_name(name: str) -> str:
    """Return a name for the page: on one line, shortened, without control characters."""
    return shorten_middle(name, _LONGEST_NAME)


def rows_of(
    record: SweepRecord, ranking: Ranking, plan: SlimPlan | None = None, changes: Mapping[str, str] | None = None
) -> tuple[list[Row], dict[str, Any]]:
    """Return the table's rows, most redundant first, and its columns of numbers for the page's script.

    ``changes`` has the changed lines of code by layer.
    """
    facts = record.layers.set_index("layer").to_dict("index")
    ratios = remaining_table(record, ranking).to_dict("index")
    keys = keys_of(list(record.layers["layer"]))
    table = ranking.table.to_dict("records")
    groups, changes = _groups(plan), changes or {}
    courses = courses_of(record)
    rows = [
        replace(
            _row(found, facts[found["layer"]], ratios[found["layer"]], keys[found["layer"]]),
            group="; ".join(groups.get(found["layer"], ())),
            change=changes.get(found["layer"], ""),
            course=courses.get(found["layer"], ""),
        )
        for found in table
    ]
    columns: dict[str, list[Any]] = {
        "layer": [row["position"] for row in table],
        "rank": [_number(row["rank"]) for row in table],
        "redundancy": [_number(row["redundancy"]) for row in table],
        "spare": [_number(row["spare"]) for row in table],
        "label": [LABELS.index(row["label"]) for row in table],
        "params": [_number(row["params"]) for row in table],
        "macs": [_number(row["macs"]) for row in table],
    }
    columns["remaining"] = [_number(row["remaining"]) for row in table]
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
        kept=percent(found["remaining"]),
        ratios=", ".join(map(percent, ratios.values())),
        group="",
        change="",
        course="",
        spark=_spark(list(ratios.values())),
        params=short(found["params"]),
        macs=short(found["macs"]),
        given=short(found["params_given_up"]),
    )


def courses_of(record: SweepRecord) -> dict[str, str]:
    """Return what training did to each layer at the strongest alpha, in the first seed's trial, in words."""
    trials = [trial for alpha in record.alphas for trial in record.at(alpha)]
    if record.config.quick or not trials:
        return {}
    last = max(trials, key=lambda trial: (trial.alpha or 0.0, -trial.seed))
    frame = record.frame
    frame = frame[(frame["alpha"] == last.alpha) & (frame["seed"] == last.seed) & ~frame["control"]]
    steps = np.sort(frame["step"].unique())
    if not len(steps):
        return {}
    shown = [steps[np.abs(steps - share * steps[-1]).argmin()] for share in _SHOWN_AT]
    left = frame.pivot_table(index="layer", columns="step", values="remaining")[shown]
    ends = frame[frame["step"] == steps[-1]].set_index("layer")[list(_THRESHOLDS)]
    return {
        str(layer): f"{', '.join(map(percent, left.loc[layer]))} %; thresholds "
        + ", ".join(f"{value:.2g}" for value in ends.loc[layer])
        for layer in left.index
    }


def _groups(plan: SlimPlan | None) -> dict[str, list[str]]:
    """Return, for each layer, the groups of channels that it makes with their widths, in words."""
    found: dict[str, list[str]] = {}
    for group in plan.groups if plan is not None and plan.is_advice else ():
        width = f"{group.width} → {group.new_width}" if group.new_width != group.width else f"{group.width}, unchanged"
        others = [shown_name(name) for name in group.layers]
        for layer in group.layers:
            beside = [name for name in others if name != shown_name(layer)][:_MOST_BESIDE]
            more = f" and {len(others) - 1 - len(beside)} more" if len(others) - 1 > len(beside) else ""
            coupled = f", together with {', '.join(beside)}{more}" if beside else ""
            because = f" ({group.because})" if group.because else ""
            found.setdefault(layer, []).append(f"{width}{coupled}{because}")
    return found


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

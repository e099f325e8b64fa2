"""Labels of layers: redundant, average, needed or unclear, each with a reason in words."""

from __future__ import annotations

import math

import numpy as np

from dst_analyze.ranking.evidence import Evidence
from dst_analyze.ranking.input.trial_matrix import Measured
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, NOT_MEASURED, REDUNDANT, UNCLEAR, Verdict
from dst_analyze.run.record import alpha_label

BORDER = 0.225
"""A layer is redundant above this redundancy at the strongest alpha, and needed below its negative: it keeps less than
four fifths, or more than five quarters, of what the typical layer keeps (measured in docs/experiments/planted.md)."""
GUARD = 0.125
"""Distance from the border within which another seed may change the label; divided by sqrt(seeds)."""
SLACK = 0.1
"""How far a layer may be on the other side of the typical layer at one alpha or seed without being unclear."""

_FRACTIONS = {
    0.9: "nine tenths", 0.8: "four fifths", 3 / 4: "three quarters", 2 / 3: "two thirds", 1 / 2: "half",
    1 / 3: "a third", 1 / 4: "a quarter", 1 / 5: "a fifth", 1 / 10: "a tenth",
}  # fmt: skip
_NEAR = 0.04  # relative distance within which a ratio is written as a fraction


def labels(made: Measured, evidence: Evidence, verdict: Verdict, why: str) -> list[tuple[str, str]]:
    """Return each layer's label and the reason for it.

    A layer is redundant if its redundancy is above the border, needed if it is below the negative of it, and average
    between. It is unclear if it keeps clearly less than the typical layer at one alpha or seed and more at another, or
    if it is so near the border that another seed may change the side.
    """
    return [_label(made, evidence, at, verdict, why) for at in range(len(made.layers))]


def _label(made: Measured, e: Evidence, at: int, verdict: Verdict, why: str) -> tuple[str, str]:
    if not e.measured[at]:
        return NOT_MEASURED, _gap(made, at)
    if math.isnan(e.redundancy[at]):
        return NOT_MEASURED, why
    if verdict is Verdict.NONE and not e.agreement.similar:
        return UNCLEAR, why
    value, low, high = e.redundancy[at], e.lowest[at], e.highest[at]
    if min(high, -low) > SLACK and max(high, -low) > BORDER:
        return UNCLEAR, f"its place changes between alphas or seeds: it keeps {_span(low, high)}"
    what, everywhere = f"keeps {kept_words(value)} keeps", _everywhere(e)
    border, guard = BORDER * e.agreement.scale, GUARD * e.agreement.scale / math.sqrt(e.agreement.seeds)
    if abs(value) <= border - guard:
        return AVERAGE, f"keeps about as much as other layers {everywhere}: {_span(low, high)}"
    side, label = ("less", REDUNDANT) if value > 0 else ("more", NEEDED)
    if abs(value) < border + guard:
        return UNCLEAR, f"its label may change with another seed, {AVERAGE} or {label}: it {what} on average"
    if label == NEEDED and e.resets[at]:
        return UNCLEAR, f"its place changes between alphas or seeds: it {what} on average, but collapsed in a trial"
    most = f", {side} {everywhere}" if (low if value > 0 else -high) > 0 else f", nowhere clearly {_other(side)}"
    return label, f"{what} on average{most}{_reset(int(e.resets[at]))}"


def _everywhere(e: Evidence) -> str:
    if e.agreement.trials == 1:
        return "in the only trial"
    if e.agreement.alphas == 1:
        return "in every seed"
    return "at every alpha and seed" if e.agreement.seeds > 1 else "at every alpha"


def _other(side: str) -> str:
    return "more" if side == "less" else "less"


def _reset(times: int) -> str:
    return "" if not times else f"; it collapsed and was reset {'once' if times == 1 else f'{times} times'}"


def kept_words(redundancy: float) -> str:
    """Return how much a layer keeps relative to the typical layer, in words."""
    ratio = math.exp(-redundancy)
    if ratio > 1:
        times = "twice" if abs(ratio / 2 - 1) < _NEAR else f"{ratio:.{1 if ratio < 9.95 else 0}f} times"
        return f"{times} what the typical layer"
    near = next((words for share, words in _FRACTIONS.items() if abs(ratio / share - 1) < _NEAR), None)
    if near is None:
        near = f"{100 * ratio:.0f} %" if ratio >= 0.01 else "less than 1 %"
    return f"{near} of what the typical layer"


def _span(low: float, high: float) -> str:
    """Return the least and the most that a layer keeps relative to the typical layer."""
    least, most = (100 * math.exp(-value) for value in (high, low))
    span = f"{least:.0f} to {most:.0f}" if round(least) != round(most) else f"{most:.0f}"
    return f"{span} % of what the typical layer keeps"


def _gap(made: Measured, at: int) -> str:
    """Return why a layer is not ranked."""
    used = made.rows()
    missing = np.flatnonzero(used & np.isnan(made.ratios[:, at]))
    if not len(missing):
        return "no trial ended well"
    first = made.trials.iloc[int(missing[0])]
    more = f" and in {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"there is no ratio at alpha {alpha_label(float(first['alpha']))}, seed {first['seed']}{more}"

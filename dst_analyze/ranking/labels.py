"""A label for each layer: redundant, average, needed or unclear, and the reason in words."""

from __future__ import annotations

import math

import numpy as np

from dst_analyze.ranking.evidence import Evidence
from dst_analyze.ranking.measured import Measured
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, NOT_MEASURED, REDUNDANT, UNCLEAR, Verdict
from dst_analyze.sweep.record import alpha_label

BORDER = 0.3
"""Redundancy from which on a layer is redundant, and below the negative of which it is needed. Chosen by measurement:
docs/ranking.md."""
GUARD = 0.1
"""How near the border one seed cannot tell the side; with n seeds it is this over the square root of n."""
SLACK = 0.02
"""How far beyond the median layer's side a single alpha or seed may be: at weak alphas all layers keep nearly all."""
FAR = 1.0
"""Redundancy beyond which a layer is not average at any alpha or seed."""

_FRACTIONS = {
    0.9: "nine tenths", 0.8: "four fifths", 3 / 4: "three quarters", 2 / 3: "two thirds", 1 / 2: "half",
    1 / 3: "a third", 1 / 4: "a quarter", 1 / 5: "a fifth", 1 / 10: "a tenth",
}  # fmt: skip
_NEAR = 0.04  # relative: nearer than this, a ratio is told as a fraction


def labels(made: Measured, evidence: Evidence, verdict: Verdict, why: str) -> list[tuple[str, str]]:
    """Return each layer's label and the reason for it.

    A layer is redundant, or needed, if its redundancy is beyond the border and on that side at every alpha and seed. It
    is average if it is within the border and never far from the others; else, or too near the border, it is unclear.
    """
    return [_label(made, evidence, at, verdict, why) for at in range(len(made.layers))]


def _label(made: Measured, e: Evidence, at: int, verdict: Verdict, why: str) -> tuple[str, str]:
    if not e.measured[at]:
        return NOT_MEASURED, _gap(made, at)
    if math.isnan(e.redundancy[at]):
        return NOT_MEASURED, why
    if verdict is Verdict.NONE and not e.agreement.uniform:
        return UNCLEAR, why
    value, low, high = e.redundancy[at], e.lowest[at], e.highest[at]
    guard = GUARD / math.sqrt(e.agreement.seeds)
    everywhere = f"at every alpha{' and seed' if e.agreement.seeds > 1 else ''}"
    if e.agreement.trials == 1:
        everywhere = "in the one trial there is"
    what = f"keeps {kept_words(value)} keeps"
    if abs(value) <= BORDER - guard:
        if max(abs(low), abs(high)) <= FAR:
            return AVERAGE, f"{what}, and never far from it {everywhere}"
        return UNCLEAR, f"{what} on average, but {_turns(low, high)}"
    side, label = ("less", REDUNDANT) if value > 0 else ("more", NEEDED)
    if abs(value) < BORDER + guard:
        seeds = "another seed" if e.agreement.seeds == 1 else "other seeds"
        return UNCLEAR, f"{what}: near the border, {seeds} may call it average or {label}"
    if min(low, high, key=lambda v: v * value) * math.copysign(1, value) < -SLACK:
        return UNCLEAR, f"{what} on average, but {_turns(low, high)}"
    reset = f"; it collapsed and was reset {int(e.resets[at])} times" if e.resets[at] > 1 else ""
    reset = "; it collapsed and was reset once" if e.resets[at] == 1 else reset
    return label, f"{what} on average, {side} {everywhere}{reset}"


def kept_words(redundancy: float) -> str:
    """Return how much of its weights a layer keeps beside the median layer: "a quarter of what the median layer"."""
    ratio = math.exp(-redundancy)
    if abs(ratio - 1) < _NEAR:
        return "about as much as the median layer"
    if ratio > 1:
        if abs(ratio - 2) < 2 * _NEAR:
            return "twice what the median layer"
        return f"{ratio:.1f} times what the median layer" if ratio < 9.95 else f"{ratio:.0f} times what the median layer"
    near = next((words for share, words in _FRACTIONS.items() if abs(ratio / share - 1) < _NEAR), None)
    if near is None:
        near = f"{100 * ratio:.0f} %" if ratio >= 0.01 else "less than 1 %"
    return f"{near} of what the median layer"


def _turns(low: float, high: float) -> str:
    """Return how its place changes between alphas and seeds."""
    return f"from {_times(high)} to {_times(low)} of it between alphas and seeds"


def _times(redundancy: float) -> str:
    return f"{100 * math.exp(-redundancy):.0f} %"


def _gap(made: Measured, at: int) -> str:
    """Return why a layer has no place."""
    used = made.rows()
    missing = np.flatnonzero(used & np.isnan(made.ratios[:, at]))
    if not len(missing):
        return "no trial ended well"
    first = made.trials.iloc[int(missing[0])]
    more = f" and in {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"there is no ratio at alpha {alpha_label(float(first['alpha']))}, seed {first['seed']}{more}"

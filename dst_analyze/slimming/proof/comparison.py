"""Comparisons of one model with several others, trained with the same seeds. Never imports torch.

All models of a seed see the same data in the same order, so scores are taken as the sum of a model's and a seed's
effect and noise. The noise is estimated from all models together (a randomised block design), and the intervals are
Dunnett's: with 95 % confidence all of them hold at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit
from scipy.stats import chi, norm

CONFIDENCE = 0.95

Scores = Sequence[float | None]
"""The scores of one model by seed; None if a training diverged, and shorter than others' if it was not repeated."""


@dataclass(frozen=True)
class Lead:
    """The mean lead of a model over another, and its interval."""

    mean: float
    low: float
    high: float


def compare_with_others(
    own: Scores, others: Mapping[str, Scores], *, apart: Sequence[str], looks: int, comparisons: int = 0
) -> dict[str, Lead]:
    """Return the lead of a model over each of the others.

    Args:
        own: The scores of the model.
        others: The scores of the others by name.
        apart: Others whose noise is of another kind: they get intervals of their own.
        looks: How often the scores are looked at to decide whether more seeds are needed.
        comparisons: The number of comparisons whose intervals hold at once, if more than these others are to come.

    Returns:
        The leads by name.
    """
    error = (1 - CONFIDENCE) / looks
    pooled = [name for name in others if name not in apart]
    noise, degrees = _noise([own, *(others[name] for name in pooled)])
    found = {}
    for name, theirs in others.items():
        leads = [a - b for a, b in zip(own, theirs, strict=False) if a is not None and b is not None]
        count = len(leads)
        if not count:
            found[name] = Lead(math.nan, math.nan, math.nan)
            continue
        noise_here, degrees_here = _noise([own, theirs]) if name in apart else (noise, degrees)
        mean = round(float(np.mean(leads)), 12)  # so that leads that cancel out over seeds give 0 and not 1e-17
        if count < 2 or degrees_here < 1:
            found[name] = Lead(mean, -math.inf, math.inf)
            continue
        half = critical_value(max(len(others), comparisons), degrees_here, error) * noise_here * math.sqrt(2 / count)
        found[name] = Lead(mean, mean - half, mean + half)
    return found


def half_widths(models: Mapping[str, Scores], *, apart: Sequence[str]) -> dict[str, float]:
    """Return half of a 95 % interval of each model's mean score; NaN if unknown.

    The noise is that of all models together, without the effects of the seeds; of models ``apart`` it is their own.
    """
    pooled = _noise([scores for name, scores in models.items() if name not in apart])
    found = {}
    for name, scores in models.items():
        known = [score for score in scores if score is not None]
        own = (float(np.std(known, ddof=1)) if len(known) > 1 else math.nan), len(known) - 1
        noise, degrees = own if name in apart else pooled
        half = float(stdtrit(degrees, (1 + CONFIDENCE) / 2)) * noise if known and degrees > 0 else math.nan
        found[name] = half / math.sqrt(len(known)) if known else math.nan
    return found


def _noise(models: Sequence[Scores]) -> tuple[float, int]:
    """Return the noise of a score without the effects of models and seeds, and its degrees of freedom."""
    known = [
        (m, seed, score) for m, scores in enumerate(models) for seed, score in enumerate(scores) if score is not None
    ]
    if not known:
        return math.nan, 0
    count = len(models)
    effects = np.zeros((len(known), count + max(map(len, models))))
    for row, (model, seed, _) in enumerate(known):
        effects[row, model] = effects[row, count + seed] = 1
    values = np.array([score for _, _, score in known])
    fitted, _, rank, _ = np.linalg.lstsq(effects, values, rcond=None)
    degrees = len(known) - int(rank)
    if degrees < 1:
        return math.nan, 0
    return math.sqrt(float(((values - effects @ fitted) ** 2).sum()) / degrees), degrees


@cache
def critical_value(rivals: int, degrees: int, error: float) -> float:
    """Return Dunnett's two-sided critical value: the t that the largest of the rivals' exceeds with this probability.

    The t values of comparisons with one model share its noise, so that they are correlated by a half.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    shares = (np.arange(400) + 0.5) / 400
    scale = chi.ppf(shares, degrees) / math.sqrt(degrees)  # of the estimated noise, at equal probabilities

    def exceeded(value: float) -> float:
        reach = value * math.sqrt(2) * scale[:, None]
        inside = ndtr(nodes + reach) - ndtr(nodes - reach)
        return 1 - float((inside**rivals @ weights).mean()) - error

    most = float(norm.isf(error / 2 / rivals)) * 60
    return float(brentq(exceeded, 0.0, most, xtol=1e-6))

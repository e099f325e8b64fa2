"""The alphas that the search for alphas starts with, fitted to sweeps of different nets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dst_analyze.run.alpha_search import rounded
from dst_analyze.sweep.planning.estimates.forecast import Travel
from dst_analyze.sweep.training.magnitudes import Magnitudes

HALVING = 1e-6
"""The typical alpha, in the paper's scale, at which half of a model remains (docs/experiments/plain-command.md)."""
_SLOPE = -0.85  # of the log-odds of the remaining ratio against log alpha


def first_alphas(travel: Travel, targets: Sequence[float], weights: Magnitudes) -> tuple[float, ...]:
    """Return an alpha for each target, weakest first: typical of other nets, and strong enough to reach the target."""
    half = HALVING * travel.paper_scale
    alphas = []
    for target in targets:
        alpha = half * math.exp(math.log(target / (1 - target)) / _SLOPE)
        reaching = travel.alpha_to_reach(weights.threshold_keeping(target))
        alphas.append(rounded(max(alpha, reaching) if math.isfinite(reaching) else alpha))
    return tuple(sorted(set(alphas)))

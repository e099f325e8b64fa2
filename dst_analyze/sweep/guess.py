"""Where the search for alphas starts: what left how much, on nets of different kinds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dst_analyze.sweep.forecast import alpha_to_reach, reach
from dst_analyze.sweep.magnitudes import Magnitudes
from dst_analyze.sweep.recipe import Recipe
from dst_analyze.sweep.search import rounded

_HALVING = 0.015
"""Alpha times how far the recipe carries a *weight* under a constant pull of one, where half of a model remains."""
_HALVING_BY_ADAM = 5e-4
"""Alpha where half of a model remains if its optimizer divides steps by their size: how far they carry is no matter.
2e-4 on LSTM-a (600 steps), 5e-4 on a GRU and 1.5e-3 on a small transformer (300 steps), MNIST."""
_WARMED = 1.5
"""How many times as strong an alpha it takes to halve trained weights: 1.4 on VGG, 1.7 on WideResNet, 1.6 on a ViT,
at a tenth of their long runs."""
_IN_LAYERS = 0.65
"""And by SGD where thresholds count in their layer's magnitudes: 0.70 on VGG, 0.66 on ResNet-14, 0.44 on WideResNet."""
_SLOPE = -0.85  # of the log odds of a remaining ratio against log alpha


def first_alphas(recipe: Recipe, targets: Sequence[float], weights: Magnitudes) -> tuple[float, ...]:
    """An alpha for each target, weakest first: what it took on other nets, but at least what moves thresholds there."""
    half = _HALVING / (reach(recipe) / recipe.clock) if recipe.family == "sgd" else _HALVING_BY_ADAM
    if recipe.warm_up:
        half *= _WARMED
    if recipe.unit == "layer" and recipe.family == "sgd":
        half *= _IN_LAYERS
    alphas = []
    for target in targets:
        alpha = half * math.exp(math.log(target / (1 - target)) / _SLOPE)
        alphas.append(rounded(max(alpha, alpha_to_reach(recipe, weights.threshold_keeping(target)))))
    return tuple(sorted(set(alphas)))

"""Before training: how far can thresholds travel in the budget, and is that far enough to prune anything?

Thresholds start at zero, and alpha pulls each of them up by α·exp(−t) per unit of learning rate. Under SGD a constant
pull of one is worth R = Σ lr·(1 − m^step)/(1 − m) over the run, and a pull that fades as t grows gives t = log(1 + αR).
Adam divides the pull by its own size: t = Σ lr whatever alpha is, if alpha is well above Adam's ε. The data push back,
so this is how far thresholds come at most, and weights that start below it are what can be pruned at most. A clock
other than 1 holds each step to a share of the weights' magnitude (recipe.py): in very few steps that is what counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dst_analyze.sweep.magnitudes import Magnitudes
from dst_analyze.sweep.recipe import Recipe
from dst_analyze.sweep.record import UNPRUNED, Forecast, alpha_label

_ADAM_EPS = 1e-8
_WORTH = 0.5
"""The share of the initial weights that must lie within reach for an alpha to be recommended: half of them at best
means, as the data push back, about a fifth in fact."""
_LONGEST = 10_000_000


def reach(recipe: Recipe) -> float:
    """R: how far the recipe carries a threshold under a constant pull of one."""
    gathered = 1 - recipe.momentum ** np.arange(1, recipe.steps + 1)
    return float((recipe.rates * gathered).sum() / (1 - recipe.momentum))


def travel(recipe: Recipe, alpha: float) -> float:
    """How far thresholds come at most."""
    if recipe.family == "sgd":
        return math.log1p(alpha * reach(recipe))
    return float(recipe.rates.sum()) * alpha / (alpha + _ADAM_EPS)


def alpha_to_reach(recipe: Recipe, distance: float) -> float:
    """The alpha whose thresholds come that far at most; zero where any does."""
    return math.expm1(distance) / reach(recipe) if recipe.family == "sgd" else 0.0


def forecast(recipe: Recipe, alphas: Sequence[float], weights: Magnitudes) -> tuple[Forecast, ...]:
    """For every alpha how far, and what share of each layer lies within reach; nothing for an unknown optimizer."""
    if recipe.family == "other":
        return ()
    return tuple(_forecast(recipe, alpha, weights) for alpha in alphas)


def _forecast(recipe: Recipe, alpha: float, weights: Magnitudes) -> Forecast:
    far, most = travel(recipe, alpha), recipe.farthest
    layers = {name: round(1 - kept, 4) for name, kept in weights.kept(far, most).items()}
    return Forecast(alpha=alpha, travel=far, pruned=round(1 - weights.model_kept(far, most), 4), layers=layers)


def warning(recipe: Recipe, forecasts: Sequence[Forecast], weights: Magnitudes) -> str:
    """What to say where alphas cannot prune in the budget, and which would; empty where all can."""
    if recipe.family == "other":
        return (
            "The optimizer of the model file is of a kind whose steps cannot be foretold: only training will show if "
            "the alphas prune anything."
        )
    weak = [each for each in forecasts if 1 - each.pruned > UNPRUNED]
    if not weak:
        return ""
    strongest = max(weak, key=lambda each: each.alpha)
    said = ", ".join(alpha_label(each.alpha) for each in weak)
    needed = weights.threshold_keeping(1 - _WORTH)
    return (
        f"In {recipe.steps:,} steps alpha {said} cannot prune: thresholds come to {strongest.travel:.2g} at most, and "
        f"only {strongest.pruned:.1%} of the weights start below that. {_advice(recipe, strongest.alpha, needed)}"
    )


def _advice(recipe: Recipe, alpha: float, needed: float) -> str:
    """The alpha for this budget, and the budget for this alpha."""
    if recipe.family != "sgd":
        return f"A learning rate of {recipe.lr * needed / max(float(recipe.rates.sum()), 1e-30):.1g} would reach them."
    wanted = _rounded_up(alpha_to_reach(recipe, needed))
    steps = enough_steps(recipe, alpha, needed)
    longer = f", or {steps:,} steps at alpha {alpha_label(alpha)}" if steps else ""
    return f"Alphas from {alpha_label(wanted)} would{longer}."


def enough_steps(recipe: Recipe, alpha: float, distance: float) -> int | None:
    """The shortest run of the same recipe, to two digits, whose thresholds come that far; None if none is near."""

    mean = float(recipe.rates.mean()) / (1 - recipe.momentum)

    def far_enough(steps: int) -> bool:
        # The schedule's shape does not depend on the length: the mean rate is that of any run, but for the clock.
        scaled = mean * steps * replace(recipe, steps=steps).clock / recipe.clock
        return math.log1p(alpha * scaled) >= distance

    low, high = recipe.steps, recipe.steps
    while not far_enough(high):
        low, high = high, 2 * high
        if high > _LONGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if far_enough(middle) else (middle, high)
    return math.ceil(_rounded_up(high))


def _rounded_up(value: float) -> float:
    """Two digits are all a forecast deserves."""
    exponent = math.floor(math.log10(value)) - 1
    return float(f"{math.ceil(value / 10.0**exponent - 1e-9) * 10.0**exponent:.6g}")

"""Before training: how far thresholds travel in the budget, what that makes of an alpha, and what it can prune.

Thresholds start at zero, and alpha pulls each of them up by α·exp(−t) per unit of learning rate. Under SGD a constant
pull of one is worth R = Σ lr·(1 − m^step)/(1 − m) over the run, and a pull that fades as t grows gives t = log(1 + αR).
Adam divides a step by the size of its gradients. Beside the noise σ of the loss's own gradient a pull of α is worth
Σ lr · α / √(α² + σ²): R = Σ lr / σ for small α, and Σ lr at most. The data push back, so this is how far thresholds
come at most, and weights that start below it are what can be pruned at most. A clock other than 1 holds each step to a
share of the weights' magnitude (recipe.py): in very few steps that is what counts.

R is what an alpha means. The paper's CIFAR-10 runs have R = 66,000, so a sweep with another R trains with its alphas
times 66,000 / R: the same alpha prunes about the same, whatever the length, rate, schedule and clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dst_analyze.run.record import UNPRUNED, Forecast, alpha_label
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.recipe import Recipe

PAPER_TRAVEL = 66_000
"""R of the paper's CIFAR-10 recipe: 160 epochs of 782 steps, rate 0.1 (x0.1 at half and three quarters)."""
_WORTH = 0.5
"""The share of the initial weights that must lie within reach for an alpha to be recommended: half of them at best
means, as the data push back, about a fifth in fact."""
_LONGEST = 10_000_000


@dataclass(frozen=True)
class Travel:
    """How far a recipe carries thresholds, and by which factor its alphas are trained with.

    ``noise`` is the size of the loss's gradient on thresholds, for optimizers that divide by it; else None.
    """

    recipe: Recipe
    noise: float | None = None
    asked: float | None = None  # the factor, where the user has a say

    @property
    def per_unit(self) -> float:
        """R: how far a threshold goes under a constant pull, divided by that pull, for small pulls."""
        recipe = self.recipe
        if self.noise is not None:
            return float(recipe.rates.sum()) / self.noise
        gathered = 1 - recipe.momentum ** np.arange(1, recipe.steps + 1)
        return float((recipe.rates * gathered).sum() / (1 - recipe.momentum))

    @property
    def factor(self) -> float:
        """What a given alpha is multiplied by, to three digits."""
        return self.asked or float(f"{PAPER_TRAVEL / self.per_unit:.3g}")

    @property
    def paper_scale(self) -> float:
        """What an alpha of the paper's scale is, as this run is given alphas: 1 unless the user sets the factor."""
        return PAPER_TRAVEL / self.per_unit / self.factor if self.asked else 1.0

    def farthest(self, alpha: float) -> float:
        """How far thresholds come at most, at an alpha as it is given."""
        pull = alpha * self.factor
        if self.noise is None:
            return math.log1p(pull * self.per_unit)
        return float(self.recipe.rates.sum()) * pull / math.hypot(pull, self.noise)

    def alpha_to_reach(self, distance: float) -> float:
        """The alpha, as it is to be given, whose thresholds come that far at most; infinite if none does."""
        if self.noise is None:
            return math.expm1(distance) / self.per_unit / self.factor
        share = distance / float(self.recipe.rates.sum())
        pull = self.noise * share / math.sqrt(1 - share**2) if share < 1 else math.inf
        return pull / self.factor


def forecast(travel: Travel, alphas: Sequence[float], weights: Magnitudes) -> tuple[Forecast, ...]:
    """For every alpha how far, and what share of each layer lies within reach; nothing for an unknown optimizer."""
    if travel.recipe.family == "other":
        return ()
    return tuple(_forecast(travel, alpha, weights) for alpha in alphas)


def _forecast(travel: Travel, alpha: float, weights: Magnitudes) -> Forecast:
    far, most = travel.farthest(alpha), travel.recipe.farthest
    layers = {name: round(1 - kept, 4) for name, kept in weights.kept(far, most).items()}
    return Forecast(alpha=alpha, travel=far, pruned=round(1 - weights.model_kept(far, most), 4), layers=layers)


def warning(travel: Travel, forecasts: Sequence[Forecast], weights: Magnitudes) -> str:
    """What to say where no alpha can prune in the budget, and which would; empty where any can.

    One alpha that prunes nothing beside others that do is a matter for the results: it is left out of the ranking.
    """
    if travel.recipe.family == "other":
        return (
            "The steps of the model file's optimizer cannot be foretold, so alphas are scaled as for SGD with its "
            "learning rate and momentum: only training will show if they prune anything."
        )
    weak = [each for each in forecasts if 1 - each.pruned > UNPRUNED]
    if len(weak) < len(forecasts) or not weak:
        return ""
    strongest = max(weak, key=lambda each: each.alpha)
    said = ", ".join(alpha_label(each.alpha) for each in weak)
    needed = weights.threshold_keeping(1 - _WORTH)
    return (
        f"In {travel.recipe.steps:,} steps alpha {said} cannot prune: thresholds come to {strongest.travel:.2g} at "
        f"most, and only {strongest.pruned:.1%} of the weights start below that. "
        f"{_advice(travel, strongest.alpha, needed, weights)}"
    )


def _advice(travel: Travel, alpha: float, needed: float, weights: Magnitudes) -> str:
    """The alpha for this budget and, where alphas are literal, the budget for this alpha."""
    wanted = travel.alpha_to_reach(needed)
    if math.isfinite(wanted) and 1 - _forecast(travel, wanted, weights).pruned > UNPRUNED:
        return "More steps would: each moves a threshold by a small share of its row's magnitude at most."
    if math.isinf(wanted):
        rate = travel.recipe.lr * needed / max(float(travel.recipe.rates.sum()), 1e-30)
        return f"A learning rate of {rate:.1g} would reach them."
    steps = None if travel.asked is None or travel.noise is not None else enough_steps(travel, alpha, needed)
    longer = f", or {steps:,} steps at alpha {alpha_label(alpha)}" if steps else ""
    return f"Alphas from {alpha_label(_rounded_up(wanted))} would{longer}."


def enough_steps(travel: Travel, alpha: float, distance: float) -> int | None:
    """The shortest run of the same recipe, to two digits, whose thresholds come that far; None if none is near.

    At an alpha that is trained with literally: with a scale of its own a longer run comes no further.
    """
    recipe = travel.recipe
    mean = float(recipe.rates.mean()) / (1 - recipe.momentum)

    def far_enough(steps: int) -> bool:
        # The schedule's shape does not depend on the length: the mean rate is that of any run, but for the clock.
        scaled = mean * steps * recipe.asked.clock_in(steps, recipe.family) / recipe.clock
        return math.log1p(alpha * travel.factor * scaled) >= distance

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

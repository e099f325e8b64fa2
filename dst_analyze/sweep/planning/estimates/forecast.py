"""Forecast before training: how far thresholds can travel in the budget, and what each alpha can prune.

Thresholds start at zero, and alpha pulls each of them up by α·exp(−t) per unit of learning rate. Under SGD a constant
pull of one is worth R = Σ lr·(1 − m^step)/(1 − m) over the run, and a pull that fades as t grows gives t = log(1 + αR).
Adam divides a step by the size of its gradients. Beside the noise σ of the loss's own gradient a pull of α is worth
Σ lr · α / √(α² + σ²): R = Σ lr / σ for small α, and Σ lr at most. The data push back, so this is how far thresholds
come at most, and weights that start below it are what can be pruned at most. A clock other than 1 holds each step to a
share of the weights' magnitude (recipe.py): in very few steps that is what counts.

R is what an alpha means. The paper's CIFAR-10 runs have R = 66,000, so a sweep with another R trains with its alphas
times 66,000 / R: the same alpha then prunes about the same at any length, rate, schedule and clock.
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
_REACHABLE_SHARE = 0.5
"""The share of the initial weights within reach of an alpha that is recommended. As the data push back, such an alpha
prunes about a fifth."""
_MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Travel:
    """The distance that a recipe can move thresholds, and the factor that its alphas are multiplied by.

    ``noise`` is the size of the loss's gradient on thresholds, for optimizers that divide by it; else None.
    """

    recipe: Recipe
    noise: float | None = None
    asked: float | None = None  # the factor, if the user set it

    @property
    def per_unit(self) -> float:
        """R: the distance that a small constant pull moves a threshold, divided by the pull."""
        recipe = self.recipe
        if self.noise is not None:
            return float(recipe.rates.sum()) / self.noise
        gathered = 1 - recipe.momentum ** np.arange(1, recipe.steps + 1)
        return float((recipe.rates * gathered).sum() / (1 - recipe.momentum))

    @property
    def factor(self) -> float:
        """The factor that given alphas are multiplied by, to three digits."""
        return self.asked or float(f"{PAPER_TRAVEL / self.per_unit:.3g}")

    @property
    def paper_scale(self) -> float:
        """The factor from the paper's alphas to those given to this run: 1 unless the user sets the factor."""
        return PAPER_TRAVEL / self.per_unit / self.factor if self.asked else 1.0

    def farthest(self, alpha: float) -> float:
        """Return the largest distance that thresholds can travel at a given alpha."""
        pull = alpha * self.factor
        if self.noise is None:
            return math.log1p(pull * self.per_unit)
        return float(self.recipe.rates.sum()) * pull / math.hypot(pull, self.noise)

    def alpha_to_reach(self, distance: float) -> float:
        """Return the alpha whose thresholds can travel at most this distance; infinity if none can."""
        if self.noise is None:
            return math.expm1(distance) / self.per_unit / self.factor
        share = distance / float(self.recipe.rates.sum())
        pull = self.noise * share / math.sqrt(1 - share**2) if share < 1 else math.inf
        return pull / self.factor


def forecast(travel: Travel, alphas: Sequence[float], weights: Magnitudes) -> tuple[Forecast, ...]:
    """Return the reach of each alpha and the share of each layer within it; empty for an unknown optimizer."""
    if travel.recipe.family == "other":
        return ()
    return tuple(_forecast(travel, alpha, weights) for alpha in alphas)


def _forecast(travel: Travel, alpha: float, weights: Magnitudes) -> Forecast:
    far, most = travel.farthest(alpha), travel.recipe.farthest
    layers = {name: round(1 - kept, 4) for name, kept in weights.kept(far, most).items()}
    return Forecast(alpha=alpha, travel=far, pruned=round(1 - weights.model_kept(far, most), 4), layers=layers)


def warning(travel: Travel, forecasts: Sequence[Forecast], weights: Magnitudes) -> str:
    """Return a warning that names alphas that could prune, if none of the given ones can; else an empty string.

    If only some alphas cannot prune, the ranking leaves their trials out, so there is no warning.
    """
    if travel.recipe.family == "other":
        return (
            "The steps of the model file's optimizer cannot be forecast, so alphas are scaled as for SGD with its "
            "learning rate and momentum: only training will show if they prune anything."
        )
    weak = [each for each in forecasts if 1 - each.pruned > UNPRUNED]
    if len(weak) < len(forecasts) or not weak:
        return ""
    strongest = max(weak, key=lambda each: each.alpha)
    listed = ", ".join(alpha_label(each.alpha) for each in weak)
    needed = weights.threshold_keeping(1 - _REACHABLE_SHARE)
    return (
        f"In {travel.recipe.steps:,} steps alpha {listed} cannot prune anything: thresholds reach at most "
        f"{strongest.travel:.2g}, and only {strongest.pruned:.1%} of the weights start below that. "
        f"{_advice(travel, strongest.alpha, needed, weights)}"
    )


def _advice(travel: Travel, alpha: float, needed: float, weights: Magnitudes) -> str:
    """Return which alpha would prune in this budget and, if alphas are literal, which budget this alpha needs."""
    wanted = travel.alpha_to_reach(needed)
    if math.isfinite(wanted) and 1 - _forecast(travel, wanted, weights).pruned > UNPRUNED:
        return "Give more steps: each moves a threshold by a small share of its row's magnitude at most."
    if math.isinf(wanted):
        rate = travel.recipe.lr * needed / max(float(travel.recipe.rates.sum()), 1e-30)
        return f"A learning rate of {rate:.1g} would reach them."
    steps = None if travel.asked is None or travel.noise is not None else enough_steps(travel, alpha, needed)
    longer = f", or {steps:,} steps at alpha {alpha_label(alpha)}" if steps else ""
    return f"Use alphas of {alpha_label(_rounded_up(wanted))} or more{longer}."


def enough_steps(travel: Travel, alpha: float, distance: float) -> int | None:
    """Return the fewest steps, to two digits, in which thresholds travel this distance; None if out of range.

    Only for literal alphas: scaled ones travel the same distance in a run of any length.
    """
    recipe = travel.recipe
    mean = float(recipe.rates.mean()) / (1 - recipe.momentum)

    def far_enough(steps: int) -> bool:
        # The schedule's shape, and so its mean rate, does not depend on the length; only the clock does.
        scaled = mean * steps * recipe.asked.clock_in(steps, recipe.family) / recipe.clock
        return math.log1p(alpha * travel.factor * scaled) >= distance

    low, high = recipe.steps, recipe.steps
    while not far_enough(high):
        low, high = high, 2 * high
        if high > _MOST_STEPS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if far_enough(middle) else (middle, high)
    return math.ceil(_rounded_up(high))


def _rounded_up(value: float) -> float:
    """Round up to two digits, as a forecast is no more precise."""
    exponent = math.floor(math.log10(value)) - 1
    return float(f"{math.ceil(value / 10.0**exponent - 1e-9) * 10.0**exponent:.6g}")

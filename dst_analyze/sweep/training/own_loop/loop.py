"""A loop of the user's as the tool sees it: how many steps it takes, at which rates, with which optimizer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dst_analyze.masking.masked import MaskedModel
from dst_analyze.masking.training.threshold_training import calling_scaler, leading_group, settle_gradient
from dst_analyze.sweep.training.recipe import NORMALISED, Recipe, family_of

SETTLING = 60
"""Steps of training after which gradients are of the size they have later on."""
NOISE_BATCHES = 8
_LEAST_NOISE = 1e-8  # Adam's epsilon, beside which smaller gradients do not count


@dataclass(frozen=True)
class LoopRecipe(Recipe):
    """The recipe of a loop that was watched: its learning rates are those that were seen."""

    seen: tuple[float, ...] = ()
    optimizer_name: str = ""

    @property
    def rates(self) -> np.ndarray:
        """The thresholds' learning rate at every step."""
        return self.clock * np.array(self.seen)

    def describe(self) -> str:
        """Return the recipe in words, for a report."""
        warm = f"; every trial starts from weights trained for {self.warm_up:,} steps" if self.warm_up else ""
        low, high = min(self.seen), max(self.seen)
        rate = f"{high:g}" if low == high else f"{low:g} to {high:g}"
        return f"a training loop of the user's, {self.optimizer_name}, learning rate {rate}{warm}"


class LoopMeter:
    """Watches the first training of a study, which is not pruned: its steps, its rates, and the gradients' size.

    It stands where the training of thresholds stands in other trainings. In the first steps thresholds of zero collect
    gradients, while weights have exactly those that they have without masks.
    """

    def __init__(self, masked: MaskedModel) -> None:
        self.masked = masked
        self.steps = 0
        self.rates: list[float] = []
        self.momentum = 0.0
        self.optimizer_name, self.family = "", ""
        self._squares: deque[torch.Tensor] = deque(maxlen=NOISE_BATCHES)

    def weights(self) -> Sequence[torch.Tensor]:
        """Return the weights as they are, bound to the thresholds as long as gradients are measured."""
        weights: list[torch.Tensor] = list(self.masked.layer_weights().values())
        if not self._measuring or not self.masked.masking.training:
            return weights
        detached = [weight.detach() for weight in weights]
        masked = self.masked.masking(self.masked.thresholds, detached)
        return [w + (p - d) for w, p, d in zip(weights, masked, detached, strict=True)]

    @torch.no_grad()
    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the step's learning rate and the size of the thresholds' gradient."""
        group = leading_group(optimizer, self.masked)
        self.family, self.optimizer_name = family_of(optimizer), type(optimizer).__name__
        self.momentum = float(group.get("momentum", 0.0)) if self.family == "sgd" else 0.0
        self.rates.append(float(group.get("lr", 1.0)))
        gradient = self.masked.thresholds.grad
        if gradient is not None:
            scaler = calling_scaler()
            settle_gradient(gradient, scaler)
            if self._measuring and (scaler is None or bool(gradient.isfinite().all())):
                self._squares.append(gradient.double().square())
            self.masked.thresholds.grad = None
        self.steps += 1

    @property
    def noise(self) -> float | None:
        """Size of the loss's gradient on thresholds, for optimizers that divide by it."""
        if self.family not in NORMALISED or not self._squares:
            return None
        return gradient_size(self.masked, torch.stack(list(self._squares)).mean(0))

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on from here."""
        named = ("steps", "momentum", "optimizer_name", "family")
        return {**{name: getattr(self, name) for name in named}, "rates": list(self.rates), "squares": [*self._squares]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        state = dict(state)
        self._squares.extend(state.pop("squares"))
        for name, value in state.items():
            setattr(self, name, value)

    @property
    def _measuring(self) -> bool:
        return self.steps < SETTLING + NOISE_BATCHES and self.family in ("", *NORMALISED)


class Untouched(LoopMeter):
    """Watches a training whose weights are left as they are, and measures nothing."""

    @property
    def _measuring(self) -> bool:
        return False


def gradient_size(masked: MaskedModel, squares: torch.Tensor) -> float:
    """Return the RMS of gradients on thresholds by layer, averaged over layers by their weights."""
    sizes = [weight.numel() for weight in masked.layer_weights().values()]
    sums = [
        size * float(squares[layer.start : layer.stop].mean().sqrt())
        for layer, size in zip(masked.layers, sizes, strict=True)
    ]
    noise = sum(sums) / sum(sizes)
    return float(f"{max(noise, _LEAST_NOISE):.3g}") if math.isfinite(noise) else _LEAST_NOISE

"""A cap on the steps of thresholds with a fast clock: a small share of their row's mean magnitude."""

from __future__ import annotations

from typing import Any

import torch

from dst_analyze.masking.masked import MaskedModel

REFRESHED_EVERY = 50  # steps: magnitudes change slowly, and computing them is a pass over all weights


class ThresholdCap:
    """A cap on every step of a model's thresholds: ``share`` of their row's mean magnitude."""

    def __init__(self, model: MaskedModel, share: float) -> None:
        self.model, self.share = model, share
        self.step = 0
        self.limit = self.before = torch.empty(0)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Clamp the thresholds' steps in every step of an optimizer from now on."""
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def _before_step(self, *_: Any) -> None:
        if self.step % REFRESHED_EVERY == 0:
            most = self.share * self.model.typical_magnitudes()
            self.limit = most if self.model.units is None else most / self.model.units
        self.before = self.model.thresholds.detach().clone()
        self.step += 1

    @torch.no_grad()
    def _after_step(self, *_: Any) -> None:
        moved = self.model.thresholds - self.before
        self.model.thresholds.copy_(self.before.add_(moved.clamp_(-self.limit, self.limit)))

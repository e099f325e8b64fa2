"""Estimators of the step function's derivative, by name; each takes the distance |Q| = ||W| − t|."""

from __future__ import annotations

from collections.abc import Callable

import torch

Estimator = Callable[[torch.Tensor], torch.Tensor]


def long_tail(distance: torch.Tensor) -> torch.Tensor:
    """Return the paper's H: max(2 − 4|q|, 0.4) up to |q| = 1, zero beyond."""
    return torch.rsub(distance, 2, alpha=4).clamp_(min=0.4).mul_(clipped(distance))


def clipped(distance: torch.Tensor) -> torch.Tensor:
    """Return the clipped straight-through estimate: one up to |q| = 1, zero beyond."""
    # Numbers rather than booleans, with which arithmetic takes ten times as long on a CPU.
    return torch.le(distance, 1, out=torch.empty_like(distance))


ESTIMATORS: dict[str, Estimator] = {"long-tail": long_tail, "clipped": clipped}

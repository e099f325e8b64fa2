"""The masked weight, P = W ⊙ 1[|W| > t], as one operator (the paper's appendix A.3).

    dW = dP ⊙ (M + |W| ⊙ H(Q))        dt_i = − Σ_j dP_ij W_ij H(Q_ij)        Q = |W| − t

Thresholds broadcast against the weight, so one per row, one per matrix and one per weight are the same code. One
choice differs from the paper: a threshold at or below zero masks nothing. It matters only for weights that are exactly
zero: under the paper's strict comparison a zero-initialised layer (the head of a vision transformer) has a mask and
gradients of zero, and never starts to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.function import once_differentiable

from dst_analyze.masking.estimators import ESTIMATORS
from dst_analyze.masking.layer import MaskedLayer

Tensors = Sequence[torch.Tensor]


def effective_threshold(threshold: torch.Tensor) -> torch.Tensor:
    """Return what a magnitude must exceed to stay: the threshold, or -1 where that is not positive."""
    return torch.threshold(threshold, 0, -1)


def bool_mask(weight: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return the mask as booleans: True for weights that remain."""
    return weight.abs() > effective_threshold(threshold)


def float_mask(magnitude: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return the mask as zeros and ones, with which CPUs multiply ten times faster than with booleans."""
    return torch.gt(magnitude, effective_threshold(threshold), out=torch.empty_like(magnitude))


def forward(weight: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Return P as a product rather than a selection, so that a weight that is NaN stays visible."""
    return float_mask(weight.abs(), threshold).mul_(weight)


def backward(
    grad: torch.Tensor, weight: torch.Tensor, threshold: torch.Tensor, estimator: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dW and dt from dP, both computed from S = dP ⊙ H(Q)."""
    magnitude = weight.abs()
    slope = ESTIMATORS[estimator]((magnitude - threshold).abs_()).mul_(grad)
    grad_threshold = (slope * weight).sum_to_size(threshold.shape).neg_()
    grad_weight = slope.mul_(magnitude).add_(float_mask(magnitude, threshold).mul_(grad))
    return grad_weight.to(weight.dtype), grad_threshold.to(threshold.dtype)


@dataclass(frozen=True, eq=False)  # a key of a cache at every step: hashed by identity
class Masking:
    """The masking of a group of weights: estimator, views, and thresholds' shapes and numbers."""

    estimator: str
    views: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, estimator: str, layers: Sequence[MaskedLayer]) -> Masking:
        """Return the masking of the weights of these layers."""
        return cls(
            estimator,
            tuple(layer.layout.view for layer in layers),
            tuple(layer.threshold_shape for layer in layers),
            tuple(layer.count for layer in layers),
        )

    def split(self, thresholds: torch.Tensor) -> list[torch.Tensor]:
        """Return the thresholds of each weight, in the shape that broadcasts against its view."""
        parts = thresholds.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Kernels(Protocol):
    """An implementation of the operator on a group of weights with their flat thresholds."""

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        """Return P of each weight; append the number of its remaining elements to ``counts``, if given."""

    def backward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        """Return dW of each weight (None where dP is None), and the flat dt."""

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> torch.Tensor:
        """Return the number of remaining elements of each weight, without waiting for the device."""


class Eager:
    """The operator in torch's operations, for any device, any dtype, and torch.compile."""

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        if counts is not None:
            counts.extend(self.count(masking, thresholds, weights).tolist())
        parts = masking.split(thresholds)
        return [
            # The result must not be a view: torch picks some kernels by whether a view's base requires a gradient.
            torch.empty_like(weight).copy_(forward(weight.reshape(view), part).view(weight.shape))
            if tuple(weight.shape) != view
            else forward(weight, part)
            for weight, view, part in zip(weights, masking.views, parts, strict=True)
        ]

    def backward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        grad_weights: list[torch.Tensor | None] = []
        grad_parts: list[torch.Tensor] = []
        for grad, weight, view, part in zip(grads, weights, masking.views, masking.split(thresholds), strict=True):
            if grad is None:  # the loss does not depend on this weight
                grad_weights.append(None)
                grad_parts.append(torch.zeros_like(part).flatten())
            else:
                found = backward(grad.reshape(view), weight.reshape(view), part, masking.estimator)
                grad_weights.append(found[0].view(weight.shape))
                grad_parts.append(found[1].flatten())
        return grad_weights, torch.cat(grad_parts)

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> torch.Tensor:
        parts = masking.split(thresholds)
        counts = [
            bool_mask(weight.reshape(view), part).sum()
            for weight, view, part in zip(weights, masking.views, parts, strict=True)
        ]
        return torch.stack(counts)


EAGER = Eager()


class _MaskedWeights(torch.autograd.Function):
    """The operator on several weights at once, since in a small model the calls cost more than the work."""

    @staticmethod
    def forward(
        ctx: Any,
        masking: Masking,
        kernels: Kernels,
        counts: list[int] | None,
        thresholds: torch.Tensor,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.masking, ctx.kernels = masking, kernels
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(thresholds, *weights)
        return tuple(kernels.forward(masking, thresholds, weights, counts))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        # Gradients are recorded only if somebody asks for a second derivative, which there is none of.
        return _gradients_once(ctx, *grads) if torch.is_grad_enabled() else _gradients(ctx, *grads)


def _gradients(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    thresholds, *weights = ctx.saved_tensors
    grad_weights, grad_thresholds = ctx.kernels.backward(ctx.masking, thresholds, weights, grads)
    return None, None, None, grad_thresholds, *grad_weights


_gradients_once = once_differentiable(_gradients)


def masked_weights(
    masking: Masking, kernels: Kernels, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
) -> tuple[torch.Tensor, ...]:
    """Return P of each weight of a group, differentiable in the weights and in the flat thresholds."""
    masked = _MaskedWeights.apply(masking, kernels, counts, thresholds, *weights)  # type: ignore[no-untyped-call]
    return tuple(masked)

"""The masked weight, P = W ⊙ 1[|W| > t], as one operator with a hand-written backward (the paper's appendix A.3).

    dW = dP ⊙ (M + |W| ⊙ H(Q))        dt_i = − Σ_j dP_ij W_ij H(Q_ij)        Q = |W| − t

Thresholds broadcast against the weight, so one per row, one per matrix and one per weight are the same code. One
choice beyond the paper: a threshold at or below zero masks nothing. It matters only for weights that are exactly
zero, and there it matters much: under the paper's strict comparison a zero-initialised layer (the head of a vision
transformer) has mask, performance gradient and structure gradient all zero and never starts to learn.
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
    """What a magnitude must exceed to stay: the threshold, or nothing at all where that is not positive."""
    return threshold.masked_fill(threshold <= 0, -1)


def bool_mask(weight: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """The mask, as booleans: which weights are still there."""
    return weight.abs() > effective_threshold(threshold)


def float_mask(magnitude: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """The mask as zeros and ones in the weight's dtype: on a CPU ten times cheaper to multiply with than booleans."""
    return torch.gt(magnitude, effective_threshold(threshold), out=torch.empty_like(magnitude))


def forward(weight: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """P. A product, not a selection: a weight that became NaN must stay visible, not be masked away."""
    return float_mask(weight.abs(), threshold).mul_(weight)


def backward(
    grad: torch.Tensor, weight: torch.Tensor, threshold: torch.Tensor, estimator: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dW, dt) from dP, in few passes: S = dP ⊙ H(Q) serves both."""
    magnitude = weight.abs()
    slope = ESTIMATORS[estimator]((magnitude - threshold).abs_()).mul_(grad)
    grad_threshold = (slope * weight).sum_to_size(threshold.shape).neg_()
    grad_weight = slope.mul_(magnitude).add_(float_mask(magnitude, threshold).mul_(grad))
    return grad_weight.to(weight.dtype), grad_threshold.to(threshold.dtype)


@dataclass(frozen=True, eq=False)  # looked up by identity, at every step
class Masking:
    """How a group of weights is masked: the estimator; each weight's view, its thresholds' shape, and their number."""

    estimator: str
    views: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, estimator: str, layers: Sequence[MaskedLayer]) -> Masking:
        return cls(
            estimator,
            tuple(layer.layout.view for layer in layers),
            tuple(layer.threshold_shape for layer in layers),
            tuple(layer.count for layer in layers),
        )

    def split(self, thresholds: torch.Tensor) -> list[torch.Tensor]:
        """The group's flat thresholds, each part in the shape that broadcasts against its weight's view."""
        parts = thresholds.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class Kernels(Protocol):
    """An implementation of the operator on a group of weights with their flat thresholds."""

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        """P of each weight; how many of its elements remain is appended to ``counts``, if given."""

    def backward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        """dW of each weight (None where there was no dP), and the flat dt."""

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> list[int]:
        """How many of each weight's elements remain."""


class Eager:
    """The operator in torch's own operations: any device, any dtype, and what torch.compile traces."""

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        if counts is not None:
            counts.extend(self.count(masking, thresholds, weights))
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
            if grad is None:  # this weight took no part in the loss
                grad_weights.append(None)
                grad_parts.append(torch.zeros_like(part).flatten())
            else:
                found = backward(grad.reshape(view), weight.reshape(view), part, masking.estimator)
                grad_weights.append(found[0].view(weight.shape))
                grad_parts.append(found[1].flatten())
        return grad_weights, torch.cat(grad_parts)

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> list[int]:
        parts = masking.split(thresholds)
        counts = [
            bool_mask(weight.reshape(view), part).sum()
            for weight, view, part in zip(weights, masking.views, parts, strict=True)
        ]
        return [int(n) for n in torch.stack(counts).tolist()]  # one wait for the device, however many weights


EAGER = Eager()


class _MaskedWeights(torch.autograd.Function):
    """Several weights at once: a small model would otherwise pay more for the calls than for the work."""

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
    """P for each weight of a group, differentiable in the weights and in the flat thresholds."""
    masked = _MaskedWeights.apply(masking, kernels, counts, thresholds, *weights)  # type: ignore[no-untyped-call]
    return tuple(masked)

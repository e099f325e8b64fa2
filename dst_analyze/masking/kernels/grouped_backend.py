"""The operator on all layers of a group at once, in torch's operations: for GPUs without Triton.

The weights of a group are copied into one flat tensor, and its thresholds repeated along it. The number of operations
does not depend on the number of layers. P and dW equal those of the eager loops to the bit, dt to rounding.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dst_analyze.masking.kernels.axes import axes_of
from dst_analyze.masking.masked_weight import EAGER, Masking, Tensors, backward, float_mask


@dataclass(frozen=True)
class _Rows:
    """Which weights of a group each threshold is for, as tensors on one device.

    Without ``index``, the weights of a threshold lie side by side. Else ``index`` has the threshold of each weight, and
    ``order`` sorts the weights by threshold.
    """

    lengths: torch.Tensor  # weights per threshold
    total: int
    index: torch.Tensor | None
    order: torch.Tensor | None

    def repeat(self, thresholds: torch.Tensor) -> torch.Tensor:
        """Return the threshold of each weight."""
        if self.index is not None:
            return thresholds.index_select(0, self.index)
        return thresholds.repeat_interleave(self.lengths, output_size=self.total)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of the values of each threshold's weights."""
        if self.order is not None:
            values = values.index_select(0, self.order)
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)  # unsafe: lengths unchecked


_ROWS: weakref.WeakKeyDictionary[Masking, dict[torch.device, _Rows]] = weakref.WeakKeyDictionary()


class Grouped:
    """The operator in six operations forward and some twenty backward, for any number of layers."""

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        if not _is_supported(thresholds, weights):
            return EAGER.forward(masking, thresholds, weights, counts)
        parts = self._masks(masking, thresholds, weights)
        if counts is not None:
            counts.extend(_counts(parts).tolist())
        return list(torch._foreach_mul(parts, list(weights)))

    def backward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        if not _is_supported(thresholds, weights):
            return EAGER.backward(masking, thresholds, weights, grads)
        rows = _rows(masking, thresholds.device)
        given = [torch.zeros_like(w) if g is None else g for g, w in zip(grads, weights, strict=True)]
        parts = backward(_flat(given), _flat(weights), rows.repeat(thresholds), masking.estimator)
        found = [torch.empty_like(weight) for weight in weights]
        torch._foreach_copy_(found, _split(parts[0], weights))
        grad_weights = [None if g is None else f for g, f in zip(grads, found, strict=True)]
        return grad_weights, rows.sum(parts[1])

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> torch.Tensor:
        if not _is_supported(thresholds, weights):
            return EAGER.count(masking, thresholds, weights)
        return _counts(self._masks(masking, thresholds, weights))

    @staticmethod
    def _masks(masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> list[torch.Tensor]:
        repeated = _rows(masking, thresholds.device).repeat(thresholds)
        return _split(float_mask(_flat(weights).abs_(), repeated), weights)


GROUPED = Grouped()


def _is_supported(thresholds: torch.Tensor, weights: Tensors) -> bool:
    first = weights[0].dtype
    return all(w.dtype == first and w.device == thresholds.device and w.is_contiguous() for w in weights)


def _flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _split(flat: torch.Tensor, weights: Tensors) -> list[torch.Tensor]:
    parts = flat.split([weight.numel() for weight in weights])
    return [part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)]


def _counts(masks: list[torch.Tensor]) -> torch.Tensor:
    """Return the number of ones in each mask: their sum, as a norm, which takes many tensors at once."""
    return torch.stack(torch._foreach_norm(masks, 1, dtype=torch.float64)).long()


def _rows(masking: Masking, device: torch.device) -> _Rows:
    known = _ROWS.setdefault(masking, {})
    if device not in known:
        known[device] = _find_rows(masking, device)
    return known[device]


def _find_rows(masking: Masking, device: torch.device) -> _Rows:
    levels = [axes_of(view, shape) for view, shape in zip(masking.views, masking.shapes, strict=True)]
    lengths = [
        torch.full((count,), math.prod(view) // count) for count, view in zip(masking.sizes, masking.views, strict=True)
    ]
    index = order = None
    if any(axes is None or axes.outer != 1 for axes in levels):
        starts = torch.arange(sum(masking.sizes), dtype=torch.int32).split(masking.sizes)
        each = zip(starts, masking.shapes, masking.views, strict=True)
        index = torch.cat([own.view(shape).expand(view).reshape(-1) for own, shape, view in each])
        order = index.argsort(stable=True).int().to(device)
        index = index.to(device)
    return _Rows(torch.cat(lengths).to(device), sum(map(math.prod, masking.views)), index, order)

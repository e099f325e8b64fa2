"""The layers of a `MaskedModel`: their weights' names, and the layout of their thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import torch

from dst_analyze.errors import OptionError
from dst_analyze.model.tracing.axes import RowLayout
from dst_analyze.model.tracing.trace import LayerFacts

Threshold = Literal["vector", "scalar", "matrix"]

_GROUP = 1 << 20  # weights up to this many together share one call of the operator
_DEVICE_GROUP = 1 << 23  # on a GPU, where a call costs more and small ones are slow


@dataclass(frozen=True)
class MaskedLayer:
    """A masked weight: its names, its row layout, and its part of the model's flat thresholds."""

    name: str
    aliases: tuple[str, ...]
    layout: RowLayout
    threshold_shape: tuple[int, ...]
    start: int
    recurrent: bool

    @property
    def count(self) -> int:
        """The number of its thresholds."""
        return math.prod(self.threshold_shape)

    @property
    def stop(self) -> int:
        """The end of its part of the flat thresholds."""
        return self.start + self.count

    def per_threshold(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean of values in the weight's view over the weights of each threshold."""
        columns = [axis for axis in range(values.ndim) if axis not in self.layout.rows]
        by_row = values.mean(columns, keepdim=True) if columns else values
        shared = [axis for axis, size in enumerate(self.threshold_shape) if size == 1 < by_row.shape[axis]]
        return (by_row.mean(shared, keepdim=True) if shared else by_row).expand(self.threshold_shape)


def flat_layout(layers: Sequence[LayerFacts], threshold: Threshold) -> tuple[MaskedLayer, ...]:
    """Return the masked layers, with their parts of one flat vector of thresholds in network order."""
    if threshold not in get_args(Threshold):
        choices = ", ".join(get_args(Threshold))
        raise OptionError(f"unknown kind of threshold {threshold!r}", hint=f"choose one of {choices}")
    result: list[MaskedLayer] = []
    start = 0
    for facts in layers:
        axes = {"vector": facts.layout.rows, "scalar": facts.layout.blocks, "matrix": range(len(facts.layout.view))}
        shape = facts.layout.broadcast_shape(axes[threshold])
        result.append(MaskedLayer(facts.name, facts.aliases, facts.layout, shape, start, facts.recurrent))
        start = result[-1].stop
    return tuple(result)


@torch.no_grad()
def units_of(layers: Sequence[MaskedLayer], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return each layer's unit: its weights' mean magnitude, divided by the mean over thresholds.

    Units are one on average, so that an alpha has about the same effect as without units. A layer of zeros has unit 1.
    """
    means = torch.stack([weight.abs().mean().to(weights[0].device, torch.float32) for weight in weights])
    counts = torch.tensor([layer.count for layer in layers], device=means.device)
    return (means * counts.sum() / (means * counts).sum()).masked_fill(means == 0, 1.0)


def grouped(weights: Sequence[tuple[torch.device, int]]) -> list[list[int]]:
    """Return groups of consecutive weights on one device, as indices.

    Small weights share a group, which saves calls; a large weight is alone, so that its gradient is freed early.
    """

    def groups(indices: list[int]) -> list[list[int]]:
        result: list[list[int]] = [[]]
        filled = 0
        most = _GROUP if weights[indices[0]][0].type == "cpu" else _DEVICE_GROUP
        for i in indices:
            if result[-1] and filled + weights[i][1] > most:
                result.append([])
                filled = 0
            result[-1].append(i)
            filled += weights[i][1]
        return result

    by_device = groupby(range(len(weights)), key=lambda i: weights[i][0])
    return [group for _, indices in by_device for group in groups(list(indices))]

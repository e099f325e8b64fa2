"""One masked weight inside a `MaskedModel`: its names, and how its thresholds lie along it."""

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


@dataclass(frozen=True)
class MaskedLayer:
    """A weight by its names, its row layout, and its place among the model's flat thresholds."""

    name: str
    aliases: tuple[str, ...]
    layout: RowLayout
    threshold_shape: tuple[int, ...]
    start: int
    recurrent: bool

    @property
    def count(self) -> int:
        """How many thresholds it has."""
        return math.prod(self.threshold_shape)

    @property
    def stop(self) -> int:
        return self.start + self.count

    def per_threshold(self, values: torch.Tensor) -> torch.Tensor:
        """Values in the weight's view as their mean over the row, or rows, that each threshold stands for."""
        columns = [axis for axis in range(values.ndim) if axis not in self.layout.rows]
        by_row = values.mean(columns, keepdim=True) if columns else values
        shared = [axis for axis, size in enumerate(self.threshold_shape) if size == 1 < by_row.shape[axis]]
        return (by_row.mean(shared, keepdim=True) if shared else by_row).expand(self.threshold_shape)


def flat_layout(layers: Sequence[LayerFacts], threshold: Threshold) -> tuple[MaskedLayer, ...]:
    """The thresholds of all layers in one flat vector, each layer's part in network order."""
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
    """A unit for the thresholds of each layer: the mean magnitude of its weights, over its mean for all thresholds.

    So one is what they count in on average, and alphas mean about what they do without units. A layer of zeros has one.
    """
    means = torch.stack([weight.abs().mean().to(weights[0].device, torch.float32) for weight in weights])
    counts = torch.tensor([layer.count for layer in layers], device=means.device)
    return (means * counts.sum() / (means * counts).sum()).masked_fill(means == 0, 1.0)


def grouped(weights: Sequence[tuple[torch.device, int]]) -> list[list[int]]:
    """Consecutive weights of one device, gathered while they are small: fewer calls, no large gradient held long."""

    def groups(indices: list[int]) -> list[list[int]]:
        result: list[list[int]] = [[]]
        filled = 0
        for i in indices:
            if result[-1] and filled + weights[i][1] > _GROUP:
                result.append([])
                filled = 0
            result[-1].append(i)
            filled += weights[i][1]
        return result

    by_device = groupby(range(len(weights)), key=lambda i: weights[i][0])
    return [group for _, indices in by_device for group in groups(list(indices))]

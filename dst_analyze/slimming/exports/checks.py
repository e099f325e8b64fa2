"""Inputs at two batch sizes, and the largest difference between the outputs of two models on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from dst_analyze.model.isolation import preserved, quiet_inspection
from dst_analyze.slimming.exports.result import NotExportedError

TOLERANCE = 1e-3
"""Outputs that differ by more than this share of the largest are those of another model."""

Run = Callable[[tuple[torch.Tensor, ...]], Any]


def example_of(model: fx.GraphModule) -> tuple[torch.Tensor, ...]:
    """Return the example's tensors on the CPU, in the order in which a slim model takes them."""
    inputs = model.meta.get("inputs")
    if not inputs:
        raise NotExportedError("the model was built without example inputs")
    return tuple(tensor.detach().cpu() for tensor in inputs)


def batched(example: Sequence[torch.Tensor]) -> list[bool]:
    """Return which tensors have a batch dimension: the first one, as long as the first tensor's."""
    size = next((len(tensor) for tensor in example if tensor.ndim), 1)
    return [bool(tensor.ndim) and len(tensor) == size for tensor in example]


def at_batch_size(example: Sequence[torch.Tensor], size: int) -> tuple[torch.Tensor, ...]:
    """Return the example with so many samples, repeated in turn."""
    return tuple(
        tensor[torch.arange(size) % len(tensor)] if has else tensor
        for tensor, has in zip(example, batched(example), strict=True)
    )


def outputs_of(run: Run, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return the tensors among the outputs of a call."""
    with preserved(), quiet_inspection(), torch.no_grad():
        found = run(tuple(tensor.clone() for tensor in inputs))
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def working_sizes(model: fx.GraphModule, example: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return two batch sizes that the slim model itself takes; that of the example alone if there are no two."""
    sizes = []
    for size in (1, 3, 2):
        try:
            outputs_of(lambda inputs: model(*inputs), at_batch_size(example, size))
        except Exception:  # such as a squeeze of a single sample
            continue
        sizes.append(size)
    own = next((len(tensor) for tensor in example if tensor.ndim), 1)
    return tuple(sizes[:2]) if len(sizes) > 1 and any(batched(example)) else (own,)


def largest_difference(model: fx.GraphModule, other: Run, inputs: Sequence[tuple[torch.Tensor, ...]]) -> float:
    """Return the largest difference of an output, as a share of the largest one; raise if it is no rounding."""
    worst = 0.0
    for given in inputs:
        expected = outputs_of(lambda tensors: model(*tensors), given)
        found = outputs_of(other, given)
        if [tuple(t.shape) for t in expected] != [tuple(t.shape) for t in found]:
            raise NotExportedError("its outputs have other shapes than the slim model's")
        for one, two in zip(expected, found, strict=True):
            worst = max(worst, relative_difference(one, two))
    if not worst <= TOLERANCE:
        raise NotExportedError(f"its outputs differ from the slim model's by {worst:.2g} of the largest")
    return worst


def relative_difference(one: torch.Tensor, two: torch.Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the first one's largest magnitude."""
    if not one.numel():
        return 0.0
    a, b = one.detach().double(), two.detach().double()
    infinite = ~a.isfinite()
    if not torch.equal(infinite, ~b.isfinite()):
        return float("inf")
    a, b = a[~infinite], b[~infinite]
    if not a.numel():
        return 0.0
    return float((a - b).abs().max()) / max(float(a.abs().max()), 1e-12)

"""Exact removal of units from a model with zeros in its weights, without changing what it computes.

Three kinds of units are removed: unread ones (the weights that read them are zero), those that are zero where they are
read, and those that are another constant there, which the reader's bias absorbs. Units stay if that cannot be proven:
a constant into a padded convolution (its border would change), units below a norm over channels, and those read by
weights that are computed from parameters (weight standardisation). The result is exact in eval mode only, as batch
norm's running averages are a part of the constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from dst_analyze.channels.coupling import couple_channels, example_tensors
from dst_analyze.channels.groups import Coupling, Mask
from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.model.isolation import deep_copy, in_mode, preserved, quiet_inspection
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.exact.constancy import ConstancyRun
from dst_analyze.slimming.exact.dependence import Constants, DependenceCollector, Sum, largest
from dst_analyze.slimming.surgery.build import Removal, slim

_DIFFERENCE = 1e-4
"""The largest difference, as a share of the largest output, that rounding can explain; more is a defect."""


@dataclass(frozen=True)
class DeadUnits:
    """The removable units, for `slim`, and the constants per input that each layer's bias has to absorb."""

    removal: Removal
    folds: Mapping[str, Constants] = field(default_factory=dict)


@dataclass(frozen=True)
class ExactSlim:
    """A model without its dead channels that computes the same as the original.

    ``removals``: the removed units of each round. Each round has other groups, as removing units can split them.
    """

    model: fx.GraphModule
    removals: tuple[Removal, ...]
    params: int
    new_params: int


def remove_dead_channels(model: nn.Module, example_inputs: Any) -> ExactSlim:
    """Return a copy of a masked model without its dead channels; outputs change by rounding only.

    That holds in eval mode, for inputs of the example's size with any batch size.

    Args:
        model: A masked model, or any model with zeros in its weights.
        example_inputs: Inputs to trace the model with: a tensor, or a tuple or dict of them.

    Returns:
        The smaller model (``model``), what was removed (``removals``), and the parameters before and after.

    Raises:
        ModelError: The model has no graph.

    Example:
        >>> import torch
        >>> from dst_analyze import remove_dead_channels
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> with torch.no_grad():
        ...     _ = net[2].weight[:, 3:].zero_()  # only three hidden units are read
        >>> small = remove_dead_channels(net, torch.randn(2, 4))
        >>> small.params, small.new_params
        (58, 23)
    """
    plain = model.unmasked() if isinstance(model, MaskedModel) else deep_copy(model)
    traced = trace_model(in_mode(plain, training=False), example_inputs)
    tensors = traced.inputs.tensors()
    before, removals = _outputs(traced.graph_module, tensors), []
    while True:
        coupling = couple_channels(traced)
        dead = dead_units(traced, coupling)
        if _add_missing_biases(traced, dead.folds):
            continue  # the new biases have channels too
        _fold(traced, dead.folds)
        small = slim(traced, dead.removal, coupling=coupling)
        if not dead.removal:
            break
        removals.append(dead.removal)
        traced = replace(traced, graph=replace(traced.graph, graph_module=small))
    _refuse_difference(before, _outputs(small, tensors))
    params, left = (sum(p.numel() for p in module.parameters()) for module in (plain, small))
    return ExactSlim(small.train(model.training), tuple(removals), params, left)


def dead_units(traced: TracedModel, coupling: Coupling) -> DeadUnits:
    """Return the units that can be removed without changing the outputs."""
    if traced.graph_module is None:
        return DeadUnits({})
    groups = [group for group in coupling.removable if not group.inexact]
    leaves: Mask = np.zeros(coupling.unit_count, np.bool_)
    for group in groups:
        leaves[list(group.units)] = True
    readers = DependenceCollector(traced.graph_module, coupling, leaves)
    with preserved(traced.graph_module), quiet_inspection(), torch.no_grad():
        ConstancyRun(traced.graph_module.eval(), readers).run(*example_tensors(traced))
    leaves &= ~readers.blocked
    while True:
        leaves = largest(readers.sums, leaves)
        # Units kept for a group's floor count as staying, so units that leak into them stay as well.
        spared = [unit for group in groups for unit in _units_to_keep(group.units, group.floor, leaves)]
        if not spared:
            break
        leaves[spared] = False
    removal = {
        group.name: tuple(place for place, unit in enumerate(group.units) if leaves[unit])
        for group in groups
        if leaves[list(group.units)].any()
    }
    return DeadUnits(
        removal, {found.layer: folds for found in readers.sums if (folds := _folds(found, leaves)) is not None}
    )


def _units_to_keep(units: tuple[int, ...], floor: int, leaves: Mask) -> list[int]:
    """Return removable units of a group that have to stay to keep its floor."""
    going = [unit for unit in units if leaves[unit]]
    missing = floor - (len(units) - len(going))
    return going[:missing] if missing > 0 else []


def _folds(found: Sum, leaves: Mask) -> Constants | None:
    """Return the constants of the removed positions and zeros for those that stay; None if all are zero."""
    gone = found.leaving(leaves, found.summed) if found.constants is not None else None
    if gone is None or found.folds is None or found.constants is None:
        return None
    constants = np.where(gone & found.folds, found.constants, 0.0)
    return constants if constants.any() else None


def _add_missing_biases(traced: TracedModel, folds: Mapping[str, Constants]) -> bool:
    """Add zero biases to layers that have to absorb a constant and have none; return True if any was added."""
    bare: list[Any] = [layer for layer in _layers(traced, folds) if layer.bias is None]
    for layer in bare:
        layer.bias = nn.Parameter(layer.weight.new_zeros(layer.weight.shape[0]), layer.weight.requires_grad)
    return bool(bare)


@torch.no_grad()
def _fold(traced: TracedModel, folds: Mapping[str, Constants]) -> None:
    for layer, constants in zip(_layers(traced, folds), folds.values(), strict=True):
        weight = layer.weight.double().flatten(1).unflatten(1, (len(constants), -1)).sum(2)
        layer.bias.copy_(layer.bias.double() + weight @ torch.from_numpy(constants).to(weight))


def _layers(traced: TracedModel, folds: Mapping[str, Constants]) -> list[Any]:
    """Return the layers by name, from the graph, which is a copy of the user's model."""
    return [traced.graph_module.get_submodule(name) for name in folds] if traced.graph_module is not None else []


def _outputs(module: fx.GraphModule | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if module is None:
        return []
    with preserved(module), quiet_inspection(), torch.no_grad():
        found = module.eval()(*(tensor.clone() for tensor in tensors))
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def _refuse_difference(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
    """Raise if outputs differ by more than rounding, which a defect in a rule would cause."""
    for one, two in zip(before, after, strict=True):
        if not one.numel():
            continue
        one, two = one.double(), two.double()
        finite = one.isfinite()
        scale = float(one[finite].abs().max()) if bool(finite.any()) else 0.0
        if not torch.allclose(one, two, rtol=_DIFFERENCE, atol=_DIFFERENCE * scale, equal_nan=True):
            raise ModelError(
                "without its dead channels the model computes something else on the example",
                hint="this is a defect of dst-analyze: please report it with the model",
            )

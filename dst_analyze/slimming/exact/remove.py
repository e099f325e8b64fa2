"""Exact removal: units that can leave a model with zeros in its weights without a change of what it computes.

Three kinds: units nobody reads (the weights that read them are zero), units that are zero where they are read, and
units that are another constant there, which the reader's bias takes over. What cannot be proven stays: a constant into
a padded convolution (its border would change), units under a norm over channels, and whatever a weight computed from
parameters (weight standardisation) still carries. It holds in eval mode: batch norm's running averages are a part of
the constants.
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
from dst_analyze.model.isolation import deep_copy, preserved, quiet_inspection
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.exact.constancy import ConstancyRun
from dst_analyze.slimming.exact.dependence import Constants, DependenceCollector, Sum, largest
from dst_analyze.slimming.surgery.build import Removal, slim

_DIFFERENCE = 1e-4
"""Of the largest output: more than float32 rounds off, and a defect of this program."""


@dataclass(frozen=True)
class DeadUnits:
    """What can leave (`slim` takes it as it is), and the constants that layers have to take over, input by input."""

    removal: Removal
    folds: Mapping[str, Constants] = field(default_factory=dict)


@dataclass(frozen=True)
class ExactSlim:
    """A model that computes what the masked one does.

    ``removals``: what left, in the order it did; of a group that lost units, others may belong together afterwards.
    """

    model: fx.GraphModule
    removals: tuple[Removal, ...]
    params: int
    new_params: int


def remove_dead_channels(model: nn.Module, example_inputs: Any) -> ExactSlim:
    """A masked model (or one with zeros in its weights) without its dead channels; the model itself is not touched.

    In eval mode and for inputs of the example's size, any batch, the outputs are the same but for rounding.
    """
    plain = model.unmasked() if isinstance(model, MaskedModel) else deep_copy(model)
    traced = trace_model(plain.eval(), example_inputs)
    tensors = traced.inputs.tensors()
    before, removals = _outputs(traced.graph_module, tensors), []
    while True:
        coupling = couple_channels(traced)
        dead = dead_units(traced, coupling)
        if _give_biases(traced, dead.folds):
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
    """Units that can be removed without changing the outputs, as the weights are."""
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
        # Some have to stay: then what leaks into those has to stay as well.
        spared = [unit for group in groups for unit in _spared(group.units, group.floor, leaves)]
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


def _spared(units: tuple[int, ...], floor: int, leaves: Mask) -> list[int]:
    """Units that have to stay so that the floor is kept."""
    going = [unit for unit in units if leaves[unit]]
    missing = floor - (len(units) - len(going))
    return going[:missing] if missing > 0 else []


def _folds(found: Sum, leaves: Mask) -> Constants | None:
    """The constants that leave, zero for all places that stay."""
    gone = found.leaving(leaves, found.summed) if found.constants is not None else None
    if gone is None or found.folds is None or found.constants is None:
        return None
    constants = np.where(gone & found.folds, found.constants, 0.0)
    return constants if constants.any() else None


def _give_biases(traced: TracedModel, folds: Mapping[str, Constants]) -> bool:
    """Biases of zeros for the layers that have to take over a constant and have none."""
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
    """Of the graph, which is a copy: the user's model is not touched."""
    return [traced.graph_module.get_submodule(name) for name in folds] if traced.graph_module is not None else []


def _outputs(module: fx.GraphModule | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if module is None:
        return []
    with preserved(module), quiet_inspection(), torch.no_grad():
        found = module.eval()(*(tensor.clone() for tensor in tensors))
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def _refuse_difference(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
    """The proof is in the rules; a defect in one of them would show here."""
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

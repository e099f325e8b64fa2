"""`couple_channels`: which channels belong together, found by running the graph on labels.

Every axis of every parameter gets unique labels. Channel rules (`rule_call.py`) say how each operation moves labels and
which it joins. Joined labels are a **unit**, which is removed as a whole. Units that appear in exactly the same tensors
are a **group**: any of them may be removed, as long as one stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dst_analyze.channels.groups import Coupling, Group, Layout, Member
from dst_analyze.channels.labels import LabelArray, Reason, slim_view, varying
from dst_analyze.channels.propagate import LabelRun
from dst_analyze.channels.rule_call import LabelledTensor
from dst_analyze.channels.tensors import named_tensors
from dst_analyze.model.graph.graph_proof import GraphLimit
from dst_analyze.model.isolation import preserved, quiet_inspection
from dst_analyze.model.tracing.trace import LayerFacts, TracedModel


def couple_channels(traced: TracedModel) -> Coupling:
    """Return which channels of a traced model must be removed together, and which must stay.

    Args:
        traced: The traced model. Without a graph nothing is known of its channels, so all of them stay.

    Returns:
        The groups of channels, and where in each tensor they are.

    Raises:
        DstError: A registered channel rule raises, or returns labels that do not fit the call's result.

    Example:
        >>> import dst_analyze, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> traced = dst_analyze.trace_model(model, torch.randn(2, 4))
        >>> [(group.name, group.width) for group in dst_analyze.couple_channels(traced).removable]
        [('0', 8)]
    """
    if traced.graph_module is None:
        return Coupling(tuple(_unknown(layer, traced) for layer in traced.layers), {}, {}, {}, 0)
    names = {alias: layer.name for layer in traced.layers for alias in layer.aliases}
    run = LabelRun(traced.graph_module, {opaque.name for opaque in traced.graph.opaque}, type(traced.model))
    with preserved(), quiet_inspection(), torch.no_grad():
        run.run(*example_tensors(traced))
    run.space.close()
    return _Grouping(run, names).coupling()


def _unknown(layer: LayerFacts, traced: TracedModel) -> Group:
    why = next((opaque for opaque in traced.graph.opaque), None)
    reason = Reason("the model has no graph", why.reason if why else "", "", why.place if why else "")
    return Group(layer.name, (), (Member(layer.parameter, 0, layer.name, "produces"),), 0, (reason,), ())


def example_tensors(traced: TracedModel) -> list[torch.Tensor]:
    """Return the example's tensors, cut to a batch of two, since channels are the same in all samples.

    They stay whole unless every tensor starts with the batch axis and the model was seen to run on two samples: the
    first axis may number the nodes of a graph.
    """
    size = traced.inputs.batch_size
    tensors = [tensor.clone() for tensor in traced.inputs.tensors()]
    if size <= 2 or traced.graph.limits & {GraphLimit.ONE_BATCH_SIZE, GraphLimit.NO_OTHER_BATCH}:
        return tensors
    batched = all(tensor.shape[0] == size for tensor in tensors if tensor.ndim)
    return [tensor[:2] if tensor.ndim else tensor for tensor in tensors] if batched else tensors


# --- from joined labels to units and groups ---------------------------------------------------------------------


class _Grouping:
    """The units and groups made from the labels of a finished run."""

    def __init__(self, run: LabelRun, layers: Mapping[str, str]) -> None:
        self._run, self._space, self._layers = run, run.space, layers
        self._trainable = {name for name, _ in run.module.named_parameters()}
        self._units = run.space.roots()
        self._signature = np.zeros(int(self._units.max()) + 1, np.uint64)
        self._random = np.random.default_rng(0)

    def coupling(self) -> Coupling:
        """Return the coupling that the labels make."""
        activations = {node.name: self._axes(labels) for node, labels in self._run.labels.items()}
        shapes = {name: tuple(t.shape) for name, t in named_tensors(self._run.module)}
        axes: dict[str, list[list[LabelArray]]] = {}
        for block in self._space.blocks.values():
            units = self._units[block.start : block.stop]
            self._sign(units)
            axes.setdefault(block.name, [[] for _ in shapes[block.name]])[block.dim].append(units)
        frozen = self._reasons((self._units[labels], reason) for labels, reason in self._space.frozen)
        self._sign(np.array(sorted(frozen), np.int64))
        return Coupling(
            groups=tuple(self._groups(frozen)),
            parameters={name: Layout(shapes[name], tuple(map(tuple, dims))) for name, dims in axes.items()},
            activations=activations,
            numbers=self._run.numbers,
            unit_count=len(self._signature),
        )

    def _sign(self, units: LabelArray) -> None:
        """Add a random number to these units' signatures, which are equal for units in the same tensors."""
        self._signature[np.unique(units[units >= 0])] += self._random.integers(1, 2**63, dtype=np.uint64)

    def _axes(self, labels: Any) -> Any:
        if isinstance(labels, dict):
            return {key: self._axes(item) for key, item in labels.items()}
        if isinstance(labels, tuple | list):
            return tuple(self._axes(item) for item in labels)
        if not isinstance(labels, LabelledTensor):
            return None
        axes: list[list[LabelArray]] = [[] for _ in labels.shape]
        for family in labels.families:
            numbers = slim_view(family).numpy().astype(np.int64)
            units = np.where(numbers == 0, -1, self._units[numbers])
            dims = [d for d in range(units.ndim) if (units != np.take(units, [0], axis=d)).any()]
            assert len(dims) < 2, "labels closed to a grid vary along one axis"
            if dims:
                vector = np.moveaxis(units, dims[0], 0).reshape(units.shape[dims[0]], -1)[:, 0]
                axes[dims[0]].append(vector)
                self._sign(vector)
            elif not varying(family):
                self._sign(units.ravel())  # a single channel selected from a wider axis, which has to stay
        return Layout(labels.shape, tuple(map(tuple, axes)))

    def _reasons(self, found: Iterable[tuple[LabelArray, Reason]]) -> dict[int, list[Reason]]:
        reasons: dict[int, list[Reason]] = {}
        for units, reason in found:
            for unit in np.unique(units).tolist():
                reasons.setdefault(unit, []).append(reason)
        return reasons

    def _groups(self, frozen: Mapping[int, list[Reason]]) -> Iterator[Group]:
        inexact = self._reasons(self._space.inexact_roots())
        flags = {role: np.zeros(self._space.size, bool) for role in self._space.roles}
        for role, used in self._space.roles.items():
            for labels in used:
                flags[role][labels] = True
        members: dict[int, list[tuple[Member, int]]] = {}
        for block in self._space.blocks.values():
            signatures = self._signature[self._units[block.start : block.stop]]
            layer = self._layers.get(block.name, block.name)
            for signature in dict.fromkeys(signatures.tolist()):
                mine = np.flatnonzero(signatures == signature) + block.start
                role = next((role for role in ("produces", "reads") if flags[role][mine].any()), "follows")
                members.setdefault(signature, []).append((Member(block.name, block.dim, layer, role), len(mine)))
        by_signature = _by_value(self._signature)
        floors = [(set(self._units[labels].tolist()), count) for labels, count in self._space.floors]
        names = _Names()
        drafts = []
        for signature, found in members.items():
            if not any(member.name in self._trainable for member, _ in found):
                continue  # tables and masks, which have no channels
            units = by_signature[signature]
            first = next((pair for pair in found if pair[0].role == "produces"), None)
            reasons = list(dict.fromkeys(reason for unit in units for reason in frozen.get(unit, [])))
            if first is None and not reasons:
                reasons.append(Reason("no layer computes it", "", "", ""))
            name = first[0].layer if first else f"{found[0][0].name}[{found[0][0].dim}]"
            drafts.append(
                Group(
                    name=name if reasons else names.unique(name),  # removable groups get the plain names
                    units=tuple(units),
                    members=tuple(dict.fromkeys(member for member, _ in found)),
                    channels=(first or found[0])[1],
                    frozen=tuple(reasons),
                    inexact=tuple(dict.fromkeys(reason for unit in units for reason in inexact.get(unit, []))),
                    per_unit=max(
                        1, min(count for pair, count in found if pair.role != "follows" or not first) // len(units)
                    ),
                    floor=max([1, *(count for few, count in floors if not few.isdisjoint(units))]),
                )
            )
        for group in drafts:
            yield replace(group, name=names.unique(group.name)) if group.frozen else group


class _Names:
    """The names in use."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, wish: str) -> str:
        """Return the name, with a number if it is in use already."""
        numbered = itertools.chain([wish], (f"{wish}#{number}" for number in itertools.count(2)))
        name = next(name for name in numbered if name not in self._taken)
        self._taken.add(name)
        return name


def _by_value(values: np.ndarray[Any, np.dtype[np.uint64]]) -> dict[int, list[int]]:
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    return {int(values[part[0]]): part.tolist() for part in np.split(order, cuts)}

"""Which channels belong together: the traced graph, run once on numbers instead of values.

Every axis of every parameter gets numbers of its own; the rules (`calls.py` has the table) say how they travel and
where they meet. What is joined is a **unit**: it leaves as a whole. Units that appear in exactly the same tensors make
a **group**: any of them may leave, as long as one stays.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx, nn

from dst_analyze.model.preserve import looking, preserved
from dst_analyze.model.symbolic import is_stochastic
from dst_analyze.model.tracing import TracedModel
from dst_analyze.slimming import elementwise, layers, recurrent, shapes  # noqa: F401  (each fills the table of rules)
from dst_analyze.slimming.calls import Act, Call, mapped_acts, op_name, rule_for
from dst_analyze.slimming.labels import LabelSpace, Numbers, Reason, slim_view, spread, varying
from dst_analyze.slimming.recurrent import frozen_module

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

# For every axis of a tensor, the units along it: several where two families of channels were flattened into one.
Axes = tuple[tuple[Numbers, ...], ...]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Layout:
    """A tensor's shape, and the units along its axes (-1 for a place that is no channel)."""

    shape: tuple[int, ...]
    axes: Axes

    def kept(self, keep: Mask, dim: int) -> Mask:
        """Which places along an axis are left, given which units are."""
        left = np.ones(self.shape[dim], np.bool_)
        for units in self.axes[dim]:
            left &= keep[units] | (units < 0)
        return left

    def shape_after(self, keep: Mask) -> tuple[int, ...]:
        return tuple(int(self.kept(keep, dim).sum()) if self.axes[dim] else size for dim, size in enumerate(self.shape))


@dataclass(frozen=True)
class Member:
    """One axis of one parameter or buffer that a group runs along."""

    name: str
    dim: int
    layer: str
    role: str  # "produces", "reads", or "follows" (a norm's scale, a bias, a position embedding)


@dataclass(frozen=True)
class Group:
    """Units any of which may be removed, as long as the floor is left."""

    name: str  # of the first layer that produces it
    units: tuple[int, ...]
    members: tuple[Member, ...]
    channels: int  # numbers of the first producer's axis in it: units times channels per unit
    frozen: tuple[Reason, ...]
    inexact: tuple[Reason, ...]  # why outputs change even if a unit that carries nothing is removed
    floor: int = 1  # so many units have to stay

    @property
    def width(self) -> int:
        return len(self.units)

    @property
    def removable(self) -> bool:
        return not self.frozen and self.width > self.floor

    def layers(self, role: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(member.layer for member in self.members if member.role == role))


@dataclass(frozen=True)
class Frozen:
    """Channels that cannot be removed, and why."""

    group: str
    layers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Coupling:
    """What belongs together in one traced model."""

    groups: tuple[Group, ...]
    parameters: Mapping[str, Layout] = field(repr=False)  # and buffers
    activations: Mapping[str, Any] = field(repr=False)  # by node: a `Layout`, nested as the node's result
    numbers: Mapping[str, Any] = field(repr=False)  # by node: sizes and other plain values of the example
    unit_count: int

    @cached_property
    def removable(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.removable)

    @cached_property
    def frozen(self) -> tuple[Frozen, ...]:
        return tuple(
            Frozen(
                group.name,
                tuple(dict.fromkeys(member.layer for member in group.members)),
                group.frozen[0].describe() if group.frozen else "all of it leaves together",
            )
            for group in self.groups
            if not group.removable
        )

    @cached_property
    def layer_groups(self) -> dict[str, tuple[str, ...]]:
        """The groups each layer's outputs belong to."""
        found: dict[str, list[str]] = {}
        for group in self.groups:
            for layer in group.layers("produces"):
                found.setdefault(layer, []).append(group.name)
        return {layer: tuple(names) for layer, names in found.items()}

    def group(self, name: str) -> Group:
        return next(group for group in self.groups if group.name == name)

    def graph(self) -> nx.Graph[str]:
        """Layers and groups: an edge for every axis a group runs along, with the axis and the role it plays there."""
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        for group in self.groups:
            node = f"group {group.name}"
            graph.add_node(node, kind="group", width=group.width, channels=group.channels, removable=group.removable)
            for member in group.members:
                graph.add_node(member.layer, kind="layer")
                graph.add_edge(node, member.layer, parameter=member.name, dim=member.dim, role=member.role)
        return graph

    def table(self) -> pd.DataFrame:
        """One row per group."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "group": group.name,
                    "units": group.width,
                    "channels": group.channels,
                    "produced by": ", ".join(group.layers("produces")),
                    "read by": ", ".join(group.layers("reads")),
                    "removable": group.removable,
                    "exact": not group.inexact,
                    "reason": "; ".join(dict.fromkeys(reason.describe() for reason in (*group.frozen, *group.inexact))),
                }
                for group in self.groups
            ],
            columns=["group", "units", "channels", "produced by", "read by", "removable", "exact", "reason"],
        )


def couple(traced: TracedModel) -> Coupling:
    """The coupling of a traced model; without a graph nothing is known, and nothing is offered."""
    if traced.graph_module is None:
        return Coupling((), {}, {}, {}, 0)
    names = {alias: layer.name for layer in traced.layers for alias in layer.aliases}
    run = _LabelRun(traced.graph_module, {opaque.name for opaque in traced.graph.opaque})
    with preserved(), looking(), torch.no_grad():
        run.run(*(tensor.clone() for tensor in traced.inputs.tensors()))
    run.space.close()
    return _Result(run, names).coupling()


# --- the run ----------------------------------------------------------------------------------------------------


class _LabelRun(fx.Interpreter):
    """Runs the example, and beside every tensor its labels."""

    def __init__(self, module: fx.GraphModule, opaque: set[str]) -> None:
        super().__init__(module)
        self.space = LabelSpace()
        self.labels: dict[fx.Node, Any] = {}
        self.numbers: dict[str, Any] = {}
        self._opaque = opaque
        self._names = canonical_names(module)

    def run_node(self, n: fx.Node) -> Any:
        args, _ = self.fetch_args_kwargs_from_env(n)
        result = super().run_node(n)
        self.labels[n] = self._labelled(n, result, lambda: tuple(args))
        for act in _acts(self.labels[n]):
            for family in act.families:
                self.space.grid(family)
        if isinstance(result, int | float) or (isinstance(result, tuple) and all(isinstance(i, int) for i in result)):
            self.numbers[n.name] = result
        return result

    def _labelled(self, n: fx.Node, result: Any, real: Callable[[], tuple[Any, ...]]) -> Any:
        if n.op == "placeholder":
            return _unlabelled(result)
        if n.op == "get_attr":
            return self._parameter(str(n.target), result)
        if n.op == "output":
            for act in _acts(fx.map_arg(n.args, lambda node: _Holder(self.labels[node]))):
                for family in act.families:
                    self.space.freeze(family, Reason("an output of the model", "", n.name, ""))
            return None
        return self._called(n, result, real)

    def _parameter(self, target: str, tensor: Any) -> Any:
        if not torch.is_tensor(tensor):
            return tensor
        name, shape = self._names.get(target, target), tuple(tensor.shape)
        families = [spread(self.space.of(name, d, shape[d]), d, shape) for d in range(len(shape)) if shape[d] > 1]
        return Act(shape, tuple(families), constant=True)

    def _called(self, n: fx.Node, result: Any, real: Callable[[], tuple[Any, ...]]) -> Any:
        args, kwargs = self._arguments(n)
        module = self.module.get_submodule(str(n.target)) if n.op == "call_module" else None  # type: ignore[operator]
        call = Call(
            space=self.space,
            node=n,
            module=module,
            args=args,
            kwargs=kwargs,
            result=result,
            op=op_name(n, module),
            run=lambda a, k: self._again(n, a, k),
            indices=real,
        )
        if module is not None:
            tensors = dict([*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)])
            n.meta["slim_names"] = {
                name: self._names.get(f"{n.target}.{name}", f"{n.target}.{name}") for name in tensors
            }
            if n.target in self._opaque:
                return self._not_understood(call)
        elif not any(act.families for act in call.acts) and n.target is not operator.getitem:
            return _constant(_unlabelled(result), all(act.constant for act in call.acts) and bool(call.acts))
        rule = rule_for(n, module)
        if rule is None and module is not None and _is_chance(module, real(), result):
            return call.out(call.x.families)
        if not _acts(_unlabelled(result)) and call.op != "setitem":
            return result  # a size, a truth: plain values
        return rule(call) if rule else self._not_understood(call)

    def _not_understood(self, call: Call) -> Any:
        families = [family for act in call.acts for family in act.families]
        call.freeze(families, "an operation that is not understood")
        return frozen_module(call)

    def _arguments(self, n: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A node's arguments with tensors as acts."""
        args = fx.map_arg(n.args, lambda node: _Holder(self.labels[node]))
        kwargs = fx.map_arg(n.kwargs, lambda node: _Holder(self.labels[node]))
        return _released(args), _released(kwargs)

    def _again(self, n: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The node's operation on labels; other tensors it takes a shape from are filled in."""

        def real(value: Any) -> Any:
            return torch.empty(1).expand(value.shape) if isinstance(value, Act) else value

        args, kwargs = mapped_acts(args, real), mapped_acts(kwargs, real)
        return getattr(self, n.op)(n.target, args, kwargs)


@dataclass(frozen=True)
class _Holder:
    """Keeps fx from looking into what stands for a node."""

    value: Any


def _released(value: Any) -> Any:
    if isinstance(value, _Holder):
        return value.value
    if isinstance(value, tuple | list):
        return (
            type(value)(_released(item) for item in value)
            if type(value) in (tuple, list)
            else tuple(map(_released, value))
        )
    if isinstance(value, dict):
        return {key: _released(item) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(_released(value.start), _released(value.stop), _released(value.step))
    return value


def _acts(value: Any) -> list[Act]:
    if isinstance(value, _Holder):
        return _acts(value.value)
    if isinstance(value, Act):
        return [value]
    if isinstance(value, dict):
        return [act for item in value.values() for act in _acts(item)]
    if isinstance(value, list | tuple):
        return [act for item in value for act in _acts(item)]
    return []


def _unlabelled(value: Any) -> Any:
    if torch.is_tensor(value):
        return Act(tuple(value.shape))
    if isinstance(value, list | tuple):
        return tuple(_unlabelled(item) for item in value)
    if isinstance(value, dict):
        return {key: _unlabelled(item) for key, item in value.items()}
    return value


def _constant(value: Any, constant: bool) -> Any:
    return mapped_acts(value, lambda leaf: Act(leaf.shape, (), constant) if isinstance(leaf, Act) else leaf)


def _is_chance(module: nn.Module, args: tuple[Any, ...], result: Any) -> bool:
    """Stochastic depth by whatever name: parameter-free, speaks of chance, and in eval mode changes nothing."""
    return (
        is_stochastic(module)
        and len(args) == 1
        and torch.is_tensor(args[0])
        and torch.is_tensor(result)
        and args[0].shape == result.shape
        and bool(torch.equal(args[0], result))
    )


def canonical_names(module: nn.Module) -> dict[str, str]:
    """One name for each tensor, whatever it goes by: tied weights are one."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in _tensors(module)}


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


# --- the result -------------------------------------------------------------------------------------------------


class _Result:
    """Units and groups, read from a finished run."""

    def __init__(self, run: _LabelRun, layers: Mapping[str, str]) -> None:
        self._run, self._space, self._layers = run, run.space, layers
        self._trainable = {name for name, _ in run.module.named_parameters()}
        self._units = run.space.roots()
        self._signature = np.zeros(int(self._units.max()) + 1, np.uint64)
        self._random = np.random.default_rng(0)

    def coupling(self) -> Coupling:
        activations = {node.name: self._axes(labels) for node, labels in self._run.labels.items()}
        shapes = {name: tuple(t.shape) for name, t in _tensors(self._run.module)}
        axes: dict[str, list[list[Numbers]]] = {}
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

    def _sign(self, units: Numbers) -> None:
        """Units that appear in the same tensors get the same signature."""
        self._signature[np.unique(units[units >= 0])] += self._random.integers(1, 2**63, dtype=np.uint64)

    def _axes(self, labels: Any) -> Any:
        if isinstance(labels, dict):
            return {key: self._axes(item) for key, item in labels.items()}
        if isinstance(labels, tuple | list):
            return tuple(self._axes(item) for item in labels)
        if not isinstance(labels, Act):
            return None
        axes: list[list[Numbers]] = [[] for _ in labels.shape]
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
                self._sign(units.ravel())  # a single place, cut out of a wider axis: it has to stay
        return Layout(labels.shape, tuple(map(tuple, axes)))

    def _reasons(self, found: Iterator[tuple[Numbers, Reason]] | Any) -> dict[int, list[Reason]]:
        reasons: dict[int, list[Reason]] = {}
        for units, reason in found:
            for unit in np.unique(units).tolist():
                reasons.setdefault(unit, []).append(reason)
        return reasons

    def _groups(self, frozen: Mapping[int, list[Reason]]) -> Iterator[Group]:
        inexact = self._reasons(self._space.inexact_roots())
        flags = {role: np.zeros(self._space.size, bool) for role in self._space.roles}
        for role, found in self._space.roles.items():
            for labels in found:
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
                continue  # tables and masks: nobody would look for channels there
            units = by_signature[signature]
            first = next((pair for pair in found if pair[0].role == "produces"), None)
            reasons = list(dict.fromkeys(reason for unit in units for reason in frozen.get(unit, [])))
            if first is None and not reasons:
                reasons.append(Reason("no layer computes it", "", "", ""))
            name = first[0].layer if first else f"{found[0][0].name}[{found[0][0].dim}]"
            drafts.append(
                Group(
                    name=name if reasons else names.of(name),  # the plain name is for what may shrink
                    units=tuple(units),
                    members=tuple(dict.fromkeys(member for member, _ in found)),
                    channels=(first or found[0])[1],
                    frozen=tuple(reasons),
                    inexact=tuple(dict.fromkeys(reason for unit in units for reason in inexact.get(unit, []))),
                    floor=max([1, *(count for few, count in floors if not few.isdisjoint(units))]),
                )
            )
        for group in drafts:
            yield replace(group, name=names.of(group.name)) if group.frozen else group


class _Names:
    """Each name once: the second time it gets a number."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, wish: str) -> str:
        numbered = itertools.chain([wish], (f"{wish}#{number}" for number in itertools.count(2)))
        name = next(name for name in numbered if name not in self._taken)
        self._taken.add(name)
        return name


def _by_value(values: np.ndarray[Any, np.dtype[np.uint64]]) -> dict[int, list[int]]:
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    return {int(values[part[0]]): part.tolist() for part in np.split(order, cuts)}

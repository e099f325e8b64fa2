"""`slim`: build the traced model with fewer channels, as a module with the trained weights that are left."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import fx, nn
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import TorchDispatchMode

from dst_analyze.channels.coupling import couple_channels, example_tensors
from dst_analyze.channels.groups import Coupling, Layout, Mask
from dst_analyze.channels.tensors import canonical_names, named_tensors
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.graph.dead_code import remove_dead_nodes
from dst_analyze.model.graph.graph_proof import GraphLimit
from dst_analyze.model.isolation import preserved, quiet_inspection
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.surgery.cut_shapes import Slimming
from dst_analyze.slimming.surgery.fit_calls import CallSite, fit_call
from dst_analyze.slimming.surgery.fit_modules import fit_module
from dst_analyze.slimming.surgery.variants import apply_variants, find_variants

# Name of a group -> positions within the group of the units to remove.
Removal = Mapping[str, Collection[int]]


def slim(
    traced: TracedModel, removal: Removal, *, coupling: Coupling | None = None, weights: nn.Module | None = None
) -> fx.GraphModule:
    """Return a copy of the model without some of its channels.

    ``weights``: take the tensors from this module (same names) instead of from the traced model. The result takes the
    example's tensors, in their order, and returns plain tuples, lists and dicts, as the traced graph does.
    """
    if traced.graph_module is None:
        raise ModelError(
            "the model has no graph, so its channels cannot be removed",
            place=next((opaque.place for opaque in traced.graph.opaque), ""),
            hint="`dst-analyze inspect` says what the tracer could not follow",
        )
    coupling = coupling or couple_channels(traced)
    slimming = Slimming(coupling, kept_units(coupling, removal))
    with preserved(), quiet_inspection(), torch.no_grad():
        variants = find_variants(traced, lambda: _built(traced, Slimming(coupling, kept_units(coupling, {})), None))
        built = _built(traced, slimming, weights)
        built.meta["inputs"] = [tensor.detach() for tensor in traced.inputs.tensors()]
        apply_variants(built, variants)
        built.meta["notes"] = (*variants.notes, *_limits(traced))
        remove_dead_nodes(built.graph)
        _reorder(built, traced.model)
        built.graph.lint()
        built.recompile()
    return built.train(traced.model.training)


def _limits(traced: TracedModel) -> list[str]:
    """Return a note if the graph, and so the slim model, runs at the example's batch size only."""
    if GraphLimit.ONE_BATCH_SIZE not in traced.graph.limits:
        return []
    return [f"the slim model {note}" for note in traced.graph.notes if note.startswith("holds for batch size")]


def _built(traced: TracedModel, slimming: Slimming, weights: nn.Module | None) -> fx.GraphModule:
    """Return the graph with fewer channels, as the model runs on the example in eval mode."""
    assert traced.graph_module is not None
    built = _assemble(traced.graph_module, slimming, weights)
    _Fitter(built, slimming).run(*example_tensors(traced))
    for node in list(built.graph.nodes):
        _restore_training(node, built)
    _use_input_device(built.graph, traced.inputs.tensors())
    remove_dead_nodes(built.graph)
    built.delete_all_unused_submodules()
    return built


def kept_units(coupling: Coupling, removal: Removal) -> Mask:
    """Return a mask of the units to keep; raise if the removal is not possible."""
    keep = np.ones(coupling.unit_count, np.bool_)
    groups = {group.name: group for group in coupling.groups}
    for name, places in removal.items():
        if name not in groups:
            raise OptionError(
                f"there is no group of channels {name!r}", hint=f"groups are {', '.join(list(groups)[:5])} ..."
            )
        group = groups[name]
        if not places:
            continue
        if not group.removable:
            reason = group.frozen[0].describe() if group.frozen else "all of it leaves together"
            raise OptionError(f"channels of {name!r} cannot be removed: {reason}")
        if not set(places) <= set(range(group.width)):
            raise OptionError(f"group {name!r} has units 0 to {group.width - 1}, not {max(places)}")
        if group.width - len(set(places)) < group.floor:
            gone = len(set(places))
            raise OptionError(f"{gone} of {name!r}'s {group.width} units are to be removed: {group.floor} have to stay")
        keep[[group.units[place] for place in places]] = False
    return keep


class ShapeError(ModelError):
    """The result of a node of the slim graph has another shape than planned."""


# --- assembling -------------------------------------------------------------------------------------------------


def _assemble(source: fx.GraphModule, slimming: Slimming, weights: nn.Module | None) -> fx.GraphModule:
    """Return a copy of the graph and of the modules and tensors it refers to, with tensors cut."""
    graph = fx.Graph()
    output = graph.graph_copy(source.graph, {})
    graph.output(output)
    for old, new in zip(source.graph.nodes, graph.nodes, strict=True):
        new.name = old.name  # the coupling refers to nodes by name
    memo = _cut_tensors(source, slimming, weights)
    attributes: dict[str, Any] = {}
    was: dict[str, dict[str, Any]] = {}
    for target in dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")):
        value: Any = source
        for part in target.split("."):
            value = getattr(value, part)
        attributes[target] = copy.deepcopy(value, memo)
        if isinstance(value, torch.Tensor) and value.shape != attributes[target].shape:
            was[target] = {"shape": tuple(value.shape)}
    built = fx.GraphModule(attributes, graph, class_name=f"Slim{type(source).__name__}")
    built.meta["was"] = was  # for comments in the written source
    return built.eval()


def _cut_tensors(source: fx.GraphModule, slimming: Slimming, weights: nn.Module | None) -> dict[int, Any]:
    """Return the cut tensors by the id of the tensors they replace, as a memo for `copy.deepcopy`."""
    names = canonical_names(source)
    given = dict(named_tensors(weights)) if weights is not None else {}
    memo: dict[int, Any] = {}
    for name, tensor in named_tensors(source):
        if id(tensor) in memo:
            continue
        data = given.get(name, tensor).detach()
        if (layout := slimming.coupling.parameters.get(names[name])) is not None:
            for dim in (dim for dim in range(data.ndim) if layout.axes[dim]):
                kept = torch.from_numpy(np.flatnonzero(layout.kept_places(slimming.keep, dim)))
                data = data.index_select(dim, kept.to(data.device))
        data = data.clone()
        memo[id(tensor)] = nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data
    return memo


def _reorder(module: nn.Module, like: nn.Module | None) -> None:
    """Order submodules as in the user's model, for the state dict and the written source."""
    place = {name: i for i, name in enumerate(like._modules)} if like is not None else {}
    module._modules = dict(sorted(module._modules.items(), key=lambda item: place.get(item[0], len(place))))
    for name, child in module._modules.items():
        if child is not None:
            _reorder(child, like._modules.get(name) if like is not None else None)


_DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")


def _restore_training(node: fx.Node, module: fx.GraphModule) -> None:
    """Make a functional dropout depend on the module's mode again; the trace was made in eval mode."""
    name = getattr(node.target, "__name__", "")
    if node.op != "call_function" or name not in _DROPOUTS or node.target.__module__ != "torch.nn.functional":
        return
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    if training is not False:
        return
    with module.graph.inserting_before(node):
        mode = module.graph.create_node("get_attr", "training")
    if len(node.args) > 2:
        node.update_arg(2, mode)
    else:
        node.update_kwarg("training", mode)


def _use_input_device(graph: fx.Graph, inputs: Sequence[torch.Tensor]) -> None:
    """Replace the example's device in the graph (``.to(device)``) by the input's, as models are moved."""
    if not inputs:
        return
    here, places = inputs[0].device, [node for node in graph.nodes if node.op == "placeholder"]
    with graph.inserting_after(places[-1]):
        # Dead-node removal deletes it if it is not used.
        free = graph.create_node("call_function", getattr, (places[0], "device"), name="device")

    def follow(value: Any) -> Any:
        return free if isinstance(value, torch.device) and value == here else value

    for node in graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, follow), map_aggregate(node.kwargs, follow)


# --- fitting ----------------------------------------------------------------------------------------------------


class ShapeChecker(fx.Interpreter):
    """A run of a slim graph that raises at the first shape that is not as planned."""

    def __init__(self, module: fx.GraphModule, slimming: Slimming) -> None:
        super().__init__(module)
        self.slimming = slimming
        self.extra_traceback = False
        self._counted: set[fx.Node] = set()  # their sizes depend on values, as that of `nonzero`, or may

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        n.meta["is_tensor"] = isinstance(result, torch.Tensor)
        if n.op != "output":
            self._check(n, result)
        return result

    def _check(self, n: fx.Node, result: Any) -> None:
        layout = self.slimming.layout(n)
        if not self._counted.isdisjoint(n.all_input_nodes):
            self._counted.add(n)
        if n.op == "placeholder" or layout is None:
            return
        expected, actual = self.slimming.expected(layout), _shapes(result)
        if expected == actual:
            return
        if n not in self._counted and self._counts(n):
            self._counted.add(n)
        if n not in self._counted or _channels(layout, expected) != _channels(layout, actual):
            raise ShapeError(
                f"{n.name} ({n.op} {n.target}) computes {actual} where {expected} was planned",
                hint="this is a defect of dst-analyze: please report it with the model",
            )

    def _counts(self, n: fx.Node) -> bool:
        """True if a node's size depends on the values that it reads."""
        found = _DynamicShapes()  # type: ignore[no-untyped-call]
        with found:
            super().run_node(n)
        return found.any


class _DynamicShapes(TorchDispatchMode):
    """Notices operations whose result's size depends on values: `nonzero`, `unique`, an index that is a mask."""

    any = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.dynamic_output_shape in func.tags:
            self.any = True
        return func(*args, **(kwargs or {}))


class _Fitter(ShapeChecker):
    """A run of the slim graph on the example that fits each node to its inputs before it runs."""

    def __init__(self, module: fx.GraphModule, slimming: Slimming) -> None:
        super().__init__(module, slimming)
        self._fitted: dict[int, nn.Module] = {}  # by id, as a layer that is called twice is fitted once
        self.was: dict[str, dict[str, Any]] = module.meta["was"]

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module":
            self._fit_module(n)
        elif n.op in ("call_function", "call_method"):
            fit_call(CallSite(n, self.slimming, self._values, partial(self._computed, n)))
        return super().run_node(n)

    def _values(self, argument: Any) -> Any:
        return fx.map_arg(argument, self.env.__getitem__)

    def _computed(self, before: fx.Node, function: Callable[..., Any], *args: Any) -> fx.Node:
        graph: fx.Graph = cast(fx.GraphModule, self.module).graph
        with graph.inserting_before(before):
            node = graph.call_function(function, args)
        node.meta |= {key: before.meta[key] for key in ("nn_module_stack", "calls", "line") if key in before.meta}
        self.env[node] = function(*self._values(args))
        return node

    def _fit_module(self, n: fx.Node) -> None:
        args, _ = self.fetch_args_kwargs_from_env(n)
        path = str(n.target)
        module = self.module.get_submodule(path)
        if id(module) in self._fitted:
            return
        before = _size_attributes(module)
        fitted = fit_module(module, n, args, self.slimming)
        self._fitted |= {id(module): module, id(fitted): fitted}
        if fitted is not module:
            parent, _, name = path.rpartition(".")
            setattr(self.module.get_submodule(parent), name, fitted)
            self.submodules[path] = fitted
        now = _size_attributes(fitted)
        if was := {key: value for key, value in before.items() if now.get(key, value) != value}:
            self.was[path] = was


def _size_attributes(module: nn.Module) -> dict[str, Any]:
    """Return the integers and tuples that a layer was built with."""
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and isinstance(value, int | tuple) and not isinstance(value, bool)
    }


def _channels(layout: Any, shape: Any) -> Any:
    """Return the sizes along axes of channels, and None along others."""
    if isinstance(layout, Layout):
        if not isinstance(shape, tuple) or len(shape) != len(layout.axes):
            return shape
        return tuple(size if units else None for size, units in zip(shape, layout.axes, strict=True))
    if isinstance(layout, tuple) and isinstance(shape, tuple) and len(layout) == len(shape):
        return tuple(_channels(*pair) for pair in zip(layout, shape, strict=True))
    return shape


def _shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    if isinstance(value, list | tuple):
        return tuple(_shapes(item) for item in value)
    if isinstance(value, dict):
        return {key: _shapes(item) for key, item in value.items()}
    return None

"""The ways in which a model's forward runs: in training mode, and without optional inputs such as labels.

A slim model is built from the graph of the example in eval mode. `find_variants` traces the model the other ways where
that graph would not do what the model does, and `apply_variants` merges them into a slim model. Each merge is checked
on the model without removals: outputs and random numbers must be the user's model's.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dst_analyze.model.copying import deep_copied
from dst_analyze.model.graph.dead_code import is_idle_draw
from dst_analyze.model.graph.symbolic import placeholder_names, plain_output
from dst_analyze.model.graph.trace_graph import trace_graph
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.isolation import in_mode, preserved, quiet_inspection
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.model.user_errors import describe_error
from dst_analyze.slimming.conditions import Condition
from dst_analyze.slimming.surgery.compare_graphs import Comparison, UnmergeableError, compare_graphs
from dst_analyze.slimming.surgery.merge_graphs import merge_graph, other_output
from dst_analyze.slimming.surgery.outputs import set_output, typed_output

_SEED = 20200426
_TOLERANCE = 1e-4  # of the largest value of an output


@dataclass(frozen=True)
class Variant:
    """Another way to run: in training mode, without an input, or with a mask that hides something."""

    absent: str  # the input that is not given; "" for none
    comparison: Comparison
    value: Any  # what the model returns this way
    output: Any  # what its graph returns, with nodes
    always: bool = False  # the slim model runs this way only, as if the input were never given
    mask: str = ""  # the input of the graph that is read this way, and not in the base


@dataclass(frozen=True)
class Variants:
    """What a slim model does beside what its graph says.

    Attributes:
        value: What the model returns for the example.
        found: The other ways to run, in the order in which they are merged.
        notes: What the slim model does otherwise than the model.
    """

    value: Any = None
    found: tuple[Variant, ...] = ()
    notes: tuple[str, ...] = ()


Build = Callable[[], fx.GraphModule]
_FOUND: WeakKeyDictionary[nn.Module, Variants] = WeakKeyDictionary()  # by traced graph: tracing takes seconds


def find_variants(traced: TracedModel, build: Build) -> Variants:
    """Return the ways to run that can be merged; ``build`` returns the model as its graph says, without removals."""
    key = traced.graph_module
    assert key is not None
    if key not in _FOUND:
        _FOUND[key] = _Search(traced, build).result() if _has_values(traced) else Variants()
    return _FOUND[key]


def apply_variants(built: fx.GraphModule, variants: Variants) -> None:
    """Merge other ways to run into a slim model, and let it return what the model returns."""
    graph = built.graph
    end = next(iter(reversed(graph.nodes)))
    base = output = typed_output(variants.value, end.args[0]) if variants.value is not None else end.args[0]
    places = {str(node.target): node for node in graph.nodes if node.op == "placeholder"}
    absent = [variant.absent for variant in variants.found if variant.absent]
    optional = {argument: _places_of(argument, places) for argument in absent}
    for variant in variants.found:
        other = typed_output(variant.value, variant.output)
        if variant.always:
            output = base = other_output(built, variant.comparison, other)
            continue
        if variant.absent:
            condition, test = Condition.MISSING, places[optional[variant.absent][0]]
        elif variant.mask:
            condition, test = Condition.GIVEN, places[variant.mask]
        else:
            with graph.inserting_after(list(places.values())[-1]):
                condition, test = Condition.TRAINING, graph.create_node("get_attr", "training")
        name = partial(_part_name, variant.absent or variant.mask)
        output = merge_graph(built, variant.comparison, condition, test, name, (output, base, other))
    set_output(graph, output)
    gone = frozenset[str]().union(*(variant.comparison.extra for variant in variants.found))
    for node in reversed(list(graph.nodes)):
        if node.name in gone and not node.users:
            graph.erase_node(node)
    given = {name for names in optional.values() for name in names}
    first = next((at for at, name in enumerate(places) if name in given), len(places))
    for node in list(places.values())[first:]:  # Python wants a default for all that follow one
        node.args = (None,)


_NAMES = {
    Condition.TRAINING: "in_training",
    Condition.EVAL: "in_eval",
    Condition.GIVEN: "with",
    Condition.MISSING: "without",
}


def _part_name(absent: str, key: Any, when: Condition) -> str:
    """Return ``loss_with_labels`` or ``in_training``: an output's key if there is one, and the condition."""
    what = f"{_NAMES[when]}_{absent}".rstrip("_")
    return f"{key}_{what}" if isinstance(key, str) and key.isidentifier() else what


def _places_of(argument: str, places: Collection[str]) -> list[str]:
    """Return the inputs of the graph that one argument of the model became: one, or several for nested tensors."""
    return [name for name in places if name == argument] or [n for n in places if n.startswith(f"{argument}_")]


class _Search:
    def __init__(self, traced: TracedModel, build: Build) -> None:
        self._model, self._inputs, self._build = traced.model, traced.inputs, build
        assert traced.graph_module is not None
        arguments = _arguments(traced.model, traced.inputs) or {}
        self._nested = {name for name, value in arguments.items() if not isinstance(value, torch.Tensor)}
        self._base, self._fixed_values = traced.graph_module, traced.graph.fixed_values
        self._notes: list[str] = []
        self._idle_draws = False  # in training mode the model draws numbers that nothing reads

    def result(self) -> Variants:
        """Return what can be merged, with notes on what cannot."""
        with preserved(), quiet_inspection(), torch.no_grad():
            value = self._returned(self._inputs, training=False)
            found = Variants(value)
            if value is None or self._differs(found, [(self._inputs, False)]):
                return Variants()  # the graph holds for other values only
            found = self._with_masks(self._with_training(found))
            for name, without in _optional(self._model, self._inputs, self._base):
                found = self._without(found, name, without)
        return replace(found, notes=tuple(self._notes))

    def _with_masks(self, found: Variants) -> Variants:
        """Merge what masks do that the base does not read, since the example's hide nothing."""
        places = [node for node in self._base.graph.nodes if node.op == "placeholder"]
        for node, tensor in zip(places, self._inputs.tensors(), strict=True):
            if node.users or tensor.ndim < 2 or tensor.is_floating_point() or not bool((tensor == 1).all()):
                continue
            half = tensor.clone()
            half[:, tensor.shape[1] // 2 :] = 0
            others = self._inputs.map(lambda one, old=tensor, new=half: new if one is old else one)  # type: ignore[misc]
            value = self._returned(others, training=False)
            expected, actual = (_leaves(value) for value in (self._returned(self._inputs, training=False), value))
            if len(expected) != len(actual) or not all(map(_close, expected, actual)):
                say = (
                    f"the slim model does not read {node.target}, since the example's is all ones: "
                    "an example with padding makes it do so"
                )
                wanted = Variant("", _NOTHING, value, None, mask=str(node.target))
                found = self._merged(found, wanted, others, say, [(others, False), (others, True)])
        return found

    def _with_training(self, found: Variants) -> Variants:
        if not self._differs(found, [(self._inputs, True)]):
            return found
        say = "in training mode the slim model computes what the model computes in eval mode, with dropout"
        value = self._returned(self._inputs, training=True)
        return self._merged(found, Variant("", _NOTHING, value, None), self._inputs, say, [(self._inputs, True)])

    def _without(self, found: Variants, name: str, without: Inputs) -> Variants:
        value = self._returned(without, training=False)
        if value is None:  # the model needs it too
            return found
        absent = {variant.absent for variant in found.found}
        calls = [(without, False), (without, True)]
        all_absent = _call_without(self._model, self._inputs, {name, *absent})
        if absent - {""} and all_absent is not None and self._returned(all_absent, training=False) is not None:
            calls += [(all_absent, False), (all_absent, True)]
        say = f"the slim model needs the input {name}, which the model can do without"
        return self._merged(found, Variant(name, _NOTHING, value, None), without, say, calls)

    def _merged(
        self, found: Variants, wanted: Variant, inputs: Inputs, say: str, calls: list[tuple[Inputs, bool]]
    ) -> Variants:
        """Return the ways to run with one more, if the model without removals then does the same."""
        other = trace_graph(self._model, inputs, training=not (wanted.absent or wanted.mask))
        if other.graph_module is None:
            self._notes.append(f"{say}: {other.opaque[0].reason}")
            return found
        self._idle_draws |= any(map(is_idle_draw, other.graph_module.graph.nodes))
        end = next(iter(reversed(other.graph_module.graph.nodes)))
        try:
            always = wanted.absent in self._nested and self._fixed_values and not other.fixed_values
            comparison = compare_graphs(self._base, other.graph_module, drops=always)
            variant = replace(wanted, comparison=comparison, output=end.args[0], always=always)
            more = replace(found, found=(*found.found, variant))
            if always:  # such as the matching of a detector's boxes with those of the example
                self._notes.append(f"what depends on the values of {wanted.absent} is left out, such as a loss")
                self._inputs = inputs
            if why := self._differs(more, [(self._inputs, False), (self._inputs, True), *calls]):
                raise UnmergeableError(why)
        except UnmergeableError as error:
            self._notes.append(f"{say}: {error}")
            return found
        return more

    def _returned(self, inputs: Inputs, *, training: bool) -> Any:
        """Return what the user's model returns; None if it fails."""
        try:
            return _run(in_mode(deep_copied(self._model), training), inputs)
        except Exception:
            return None

    def _differs(self, variants: Variants, calls: list[tuple[Inputs, bool]]) -> str:
        """Return how a model with these variants differs from the user's; empty if it does not.

        A call that the user's model refuses proves nothing.
        """
        whole = self._build()
        apply_variants(whole, variants)
        whole.recompile()
        own = deep_copied(self._model)
        for inputs, training in calls:
            around: Any = _WithoutIdleDraws() if self._idle_draws else nullcontext()
            try:
                with around:
                    expected = _leaves(_run(in_mode(own, training), inputs))
            except Exception:
                continue
            drawn = torch.get_rng_state()
            names = {str(node.target) for node in whole.graph.nodes if node.op == "placeholder"}
            tensors = zip(placeholder_names(self._model, inputs), inputs.tensors(), strict=True)
            given = {name: tensor for name, tensor in tensors if name in names}
            try:
                actual = _leaves(_run(whole.train(training), Inputs((), given)))
            except Exception as error:
                return describe_error(error)
            if not torch.equal(drawn, torch.get_rng_state()):
                return "it draws other random numbers"
            if len(expected) != len(actual) or not all(map(_close, expected, actual)):
                return "its outputs would differ"
        return ""


class _WithoutIdleDraws(TorchFunctionMode):
    """Single numbers are drawn without a trace: a slim model does not draw those that decide nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        state = torch.get_rng_state() if func is torch.rand else None
        result = func(*args, **(kwargs or {}))
        if state is not None and result.numel() == 1:
            torch.set_rng_state(state)
        return result


_NOTHING = Comparison((), frozenset(), {}, nn.Module())


def _has_values(traced: TracedModel) -> bool:
    tensors = (*traced.model.parameters(), *traced.model.buffers(), *traced.inputs.tensors())
    return not any(tensor.is_meta for tensor in tensors)


def _run(model: nn.Module, inputs: Inputs) -> Any:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    return inputs.map(torch.clone).call(model)


def _leaves(output: Any) -> list[Any]:
    return tree_leaves(plain_output(output, lambda _: None))


def _close(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return bool(one == other)
    if one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(one.abs().nan_to_num(posinf=0).max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=_TOLERANCE * scale, equal_nan=True)


def _arguments(model: nn.Module, inputs: Inputs) -> dict[str, Any] | None:
    """Return a call's arguments by name; None where some have no name."""
    try:
        signature = inspect.signature(model.forward)
        bound = signature.bind(*inputs.args, **inputs.kwargs).arguments
    except (TypeError, ValueError):
        return None
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY) and name in bound:
            return None
        if parameter.kind is parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
    return bound


def _call_without(model: nn.Module, inputs: Inputs, absent: Collection[str]) -> Inputs | None:
    bound = _arguments(model, inputs)
    return None if bound is None else Inputs((), {key: value for key, value in bound.items() if key not in absent})


def _optional(model: nn.Module, inputs: Inputs, base: fx.GraphModule) -> Iterator[tuple[str, Inputs]]:
    """Yield the inputs that forward has None for by default, with a call without each; the last come first."""
    bound: Mapping[str, Any] = _arguments(model, inputs) or {}
    parameters = inspect.signature(model.forward).parameters
    places = [str(node.target) for node in base.graph.nodes if node.op == "placeholder"]
    tensors = {name: [leaf for leaf in tree_leaves(v) if isinstance(leaf, torch.Tensor)] for name, v in bound.items()}
    if sum(bool(found) for found in tensors.values()) < 2:
        return
    for name in reversed([name for name, found in tensors.items() if found]):
        parameter = parameters.get(name)
        if parameter is None or parameter.default is not None or not _places_of(name, places):
            continue
        if (without := _call_without(model, inputs, {name})) is not None:
            yield name, without

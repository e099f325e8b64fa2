"""The proof that a traced graph computes what the model computes, and its limits.

Graph and model run side by side with the same weights and random numbers: on other values than the example's, and at
another batch size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.utils._pytree import tree_leaves

from dst_analyze.model.copying import deep_copied
from dst_analyze.model.graph.recording_tracer import Opaque
from dst_analyze.model.graph.symbolic import plain_output
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.user_errors import describe_error

_SEED = 20200426
_NOISE = 65_537  # random numbers, repeated as needed: drawing a billion would take longer than tracing
# Largest difference between graph and model, relative to the largest value of the output.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


class GraphLimit(Enum):
    """A limit of a proof: where the graph does not hold, or what was not compared."""

    ONE_BATCH_SIZE = auto()  # it holds for the example's batch size only
    EXAMPLE_VALUES = auto()  # it holds for the example's values only
    SHAPES_ONLY = auto()  # there were no values to compare
    NO_OTHER_BATCH = auto()  # the model refuses another length of the first axis, which may not number samples


@dataclass(frozen=True)
class Draft:
    """A graph that is not proven yet."""

    rung: int
    graph: fx.Graph
    constants: dict[str, torch.Tensor]
    opaque: tuple[Opaque, ...]
    notes: tuple[str, ...]
    specialised: bool = False  # it depends on contents of tensors: another example may take another path
    trusting: bool = False  # tensors of unknown origin were taken for constants
    wrapped: tuple[str, ...] = ()  # functions marked with torch.fx.wrap: each a single node
    has_answers: bool = False  # it depends on the example's sizes or lengths


class _MismatchError(Exception):
    """The graph does not compute what the model computes."""


def copy_sharing_parameters(own: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters, to be traced or run and then discarded.

    A module's caches may keep proxies after tracing, or values computed from other weights after a run. Backward hooks
    are left out: torch looks for a tensor in what a hooked module returns, and never finds one in a proxy.
    """
    twin = deep_copied(own, {id(parameter): parameter for parameter in own.parameters()})
    for module in twin.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    return twin


def build_graph_module(root: nn.Module, draft: Draft) -> fx.GraphModule:
    """Return a draft's graph as a module that reads parameters and buffers from ``root``."""
    for name, tensor in draft.constants.items():
        setattr(root, name, tensor)
    module = fx.GraphModule(root, draft.graph, class_name=type(root).__name__)
    module.graph.lint()
    return module.train(root.training)


def has_meta_tensors(own: nn.Module, inputs: Inputs) -> bool:
    """True if only shapes can be compared."""
    return any(tensor.is_meta for tensor in (*own.parameters(), *own.buffers(), *inputs.tensors()))


_Limits = list[tuple[GraphLimit, str]]
"""The limits of a graph, each with a note for readers, or "" where there is nothing to say."""


def prove_graph(own: nn.Module, model: nn.Module, inputs: Inputs, draft: Draft) -> _Limits:
    """Return the graph's limits; raise `_MismatchError` if it does not compute what the model computes."""
    if has_meta_tensors(own, inputs):
        trial = _Trial(own, draft)
        trial.compare(inputs)
        return [(GraphLimit.SHAPES_ONLY, "checked on shapes only (meta)"), *_other_batch(trial, inputs)]
    with _other_weights(own, model):
        trial = _Trial(own, draft)
        limits = [*_other_values(trial, inputs), *_other_batch(trial, inputs)]
        if trial.conclusive:
            return limits
    trial = _Trial(own, draft)  # no usable output with those weights: try the model's
    limits = [*_other_values(trial, inputs), *_other_batch(trial, inputs)]
    if trial.conclusive:
        return limits
    silence = "the example's output is empty, zero or not finite"
    if draft.specialised:
        raise _MismatchError(f"{silence}: nothing to check the graph by")
    return [*limits, (GraphLimit.SHAPES_ONLY, f"checked on shapes only: {silence}")]


def _other_values(trial: _Trial, inputs: Inputs) -> _Limits:
    """Compare on the example flipped along every axis, which keeps its domain (tokens stay tokens).

    If tensors of unknown origin were taken for constants, the values are also scaled: one that was computed from a sum
    or a maximum, which a flip does not change, makes a difference then.
    """

    def other(tensor: torch.Tensor) -> torch.Tensor:
        flipped = tensor.flip(tuple(range(tensor.ndim)))
        return flipped * 0.7 if trial.draft.trusting and tensor.is_floating_point() else flipped

    try:
        trial.compare(inputs.map(other))
    except _MismatchError:
        if not trial.draft.specialised or trial.draft.trusting:
            raise
        trial.compare(inputs)
        return [(GraphLimit.EXAMPLE_VALUES, "holds for the example's values only")]
    except Exception:  # the model refuses the flipped example
        trial.compare(inputs)
    return []


def _other_batch(trial: _Trial, inputs: Inputs) -> _Limits:
    """Compare at twice the batch size, or on two samples of a larger one, which is quicker."""
    size = inputs.batch_size

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or tensor.shape[0] != size:
            return tensor
        return tensor[:2] if size > 2 else torch.cat([tensor, tensor])

    try:
        trial.compare(inputs.map(other), record=False)
    except _MismatchError as mismatch:
        return [(GraphLimit.ONE_BATCH_SIZE, f"holds for batch size {size} only: {mismatch}")]
    except Exception:  # nothing to compare with
        return [(GraphLimit.NO_OTHER_BATCH, "")]
    return []


class _Trial:
    """Model and graph side by side, with the same weights."""

    def __init__(self, own: nn.Module, draft: Draft) -> None:
        self.draft = draft
        self.conclusive = False  # True once an output had values that could differ: finite and not zero
        self._model, self._graph_module = (
            copy_sharing_parameters(own),
            build_graph_module(copy_sharing_parameters(own), draft),
        )

    def compare(self, inputs: Inputs, *, record: bool = True) -> None:
        """Run both with the same random numbers; raise `_MismatchError` if they differ.

        With ``record`` the nodes get the shapes of their results; without it the graph runs as generated code.
        """
        expected = tree_leaves(plain_output(_run(inputs, self._model), lambda _: None))
        run = _Recorder(self._graph_module).run if record else self._graph_module.forward
        try:
            actual = tree_leaves(_run(Inputs(tuple(inputs.tensors())), run))
        except MemoryError:
            raise
        except Exception as error:
            raise _MismatchError(f"the graph does not run: {describe_error(error)}") from error
        if len(expected) != len(actual):
            raise _MismatchError(f"the graph returns {len(actual)} values, the model {len(expected)}")
        for index, (theirs, ours) in enumerate(zip(expected, actual, strict=True)):
            if difference := _difference(theirs, ours):
                raise _MismatchError(f"output {index} differs from the model's: {difference}")
            self.conclusive |= _has_values(theirs)


class _Recorder(fx.Interpreter):
    """An interpreter of the graph that stores every tensor's shape at its node."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if metadata := _metadata(result):
            n.meta["tensor_meta"] = metadata
        return result


def _metadata(result: Any) -> Any:
    """Return shapes and dtypes, nested like the result; None if there is no tensor."""
    if isinstance(result, torch.Tensor):
        return _extract_tensor_metadata(result)
    if isinstance(result, list | tuple):
        items = [_metadata(item) for item in result]
        return tuple(items) if any(items) else None
    if isinstance(result, Mapping):
        named = {key: _metadata(item) for key, item in result.items()}
        return named if any(named.values()) else None
    return None


def _run(inputs: Inputs, function: Callable[..., Any]) -> Any:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    with torch.no_grad():
        return inputs.map(lambda tensor: tensor.clone()).call(function)  # either may write into its inputs


def _difference(expected: Any, actual: Any) -> str:
    """Return how two outputs differ; "" if they agree to rounding."""
    if not (isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor)):
        return "" if expected == actual else f"{actual!r:.40} instead of {expected!r:.40}"
    if (expected.shape, expected.dtype) != (actual.shape, actual.dtype):
        return f"{actual.dtype} {list(actual.shape)} instead of {expected.dtype} {list(expected.shape)}"
    if expected.is_meta or not expected.numel():
        return ""
    if not (expected.is_floating_point() or expected.is_complex()):
        return "" if torch.equal(expected, actual) else "other integers"
    tolerance = _TOLERANCE.get(expected.dtype, 5e-2)
    expected, actual = _wide(expected), _wide(actual)
    finite = torch.isfinite(expected)
    if not torch.equal(finite, torch.isfinite(actual)):
        return "not finite at the same places"
    scale = float(expected[finite].abs().max()) if finite.any() else 0.0
    worst = float((actual[finite] - expected[finite]).abs().max()) if finite.any() else 0.0
    return f"by {worst:.3g} of {scale:.3g}" if worst > tolerance * scale else ""


def _has_values(value: Any) -> bool:
    """True if a tensor has a finite value other than zero."""
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return False
    value = _wide(value)
    return bool((torch.isfinite(value) & (value != 0)).any())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return half and quarter precision as float32, which has all operations."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


@contextmanager
def _other_weights(own: nn.Module, model: nn.Module) -> Iterator[None]:
    """Change the weights a little inside the block, since a layer of zeros hides errors before it."""
    generator = torch.Generator().manual_seed(_SEED)
    noise = torch.randn(_NOISE, generator=generator, device="cpu", dtype=torch.float32)
    try:
        for parameter in own.parameters():
            if (parameter.is_floating_point() or parameter.is_complex()) and (count := parameter.numel()):
                old = _wide(parameter.detach())
                size = float(torch.linalg.vector_norm(old)) / math.sqrt(count)
                beside = noise.repeat(1 + count // _NOISE)[:count].view(parameter.shape).to(parameter.device)
                parameter.copy_(old + beside * (0.1 * size + 0.01))
        yield
    finally:
        with torch.no_grad():  # the model may have left gradients on
            for mine, theirs in zip(own.parameters(), model.parameters(), strict=True):
                mine.copy_(theirs)

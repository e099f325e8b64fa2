"""The proof that a traced graph computes what the model computes, and how far it holds.

Graph and model run side by side with the same weights and random numbers: on other values than the example's, and at
another batch size.
"""

from __future__ import annotations

import copy
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

from dst_analyze.model.graph.recording_tracer import Opaque
from dst_analyze.model.graph.symbolic import plain_output
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.user_errors import describe_error

_SEED = 20200426
_NOISE = 65_537  # so many random numbers, over and over: drawing a billion would take longer than tracing
# Largest difference between graph and model, relative to the largest value of the output.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


class GraphLimit(Enum):
    """What a graph was found not to hold for, or not compared by."""

    ONE_BATCH_SIZE = auto()  # it holds for the example's batch size only
    EXAMPLE_VALUES = auto()  # it holds for the example's values only
    SHAPES_ONLY = auto()  # there were no values to compare


@dataclass(frozen=True)
class Draft:
    """A graph that still has to prove itself."""

    rung: int
    graph: fx.Graph
    constants: dict[str, torch.Tensor]
    opaque: tuple[Opaque, ...]
    notes: tuple[str, ...]
    specialised: bool = False  # contents of tensors were asked for: another example may take another path
    trusting: bool = False  # tensors from nowhere were taken for constants
    wrapped: tuple[str, ...] = ()  # functions that their authors hide from torch.fx: each a single node
    answered: bool = False  # sizes of the example, or its number of items, were asked for


class _MismatchError(Exception):
    """The graph does not compute what the model computes."""


def copy_sharing_parameters(own: nn.Module) -> nn.Module:
    """A second self that shares the parameters: to be traced or run, then thrown away with what it remembers.

    Caches are why: a traced module may keep proxies in them, a run one values computed from other weights.
    """
    return copy.deepcopy(own, {id(parameter): parameter for parameter in own.parameters()})


def build_graph_module(root: nn.Module, draft: Draft) -> fx.GraphModule:
    for name, tensor in draft.constants.items():
        setattr(root, name, tensor)
    module = fx.GraphModule(root, draft.graph, class_name=type(root).__name__)
    module.graph.lint()
    return module.train(root.training)


def has_meta_tensors(own: nn.Module, inputs: Inputs) -> bool:
    """Whether there is nothing to compare but shapes."""
    return any(tensor.is_meta for tensor in (*own.parameters(), *own.buffers(), *inputs.tensors()))


_Limits = list[tuple[GraphLimit, str]]
"""How far a graph holds, each limit with a note for readers."""


def prove_graph(own: nn.Module, model: nn.Module, inputs: Inputs, draft: Draft) -> _Limits:
    """Return how far the graph holds; raise `_MismatchError` where it does not compute what the model computes."""
    if has_meta_tensors(own, inputs):
        trial = _Trial(own, draft)
        trial.compare(inputs)
        return [(GraphLimit.SHAPES_ONLY, "checked on shapes only (meta)"), *_other_batch(trial, inputs)]
    with _other_weights(own, model):
        trial = _Trial(own, draft)
        limits = [*_other_values(trial, inputs), *_other_batch(trial, inputs)]
        if trial.telling:
            return limits
    trial = _Trial(own, draft)  # those weights were too much for it: its own, then
    limits = [*_other_values(trial, inputs), *_other_batch(trial, inputs)]
    if trial.telling:
        return limits
    silence = "the example's output is empty, zero or not finite"
    if draft.specialised:
        raise _MismatchError(f"{silence}: nothing to check the graph by")
    return [*limits, (GraphLimit.SHAPES_ONLY, f"checked on shapes only: {silence}")]


def _other_values(trial: _Trial, inputs: Inputs) -> _Limits:
    """Flipped along every axis the example stays in its domain (tokens stay tokens), and is another one.

    Where tensors from nowhere were trusted also smaller: what was made from a sum or a maximum shows then.
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
    """Twice the batch, or of a large one half: whichever is quick."""
    size = inputs.batch_size

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or tensor.shape[0] != size:
            return tensor
        return tensor[: size // 2] if size >= 4 else torch.cat([tensor, tensor])

    try:
        trial.compare(inputs.map(other), record=False)
    except _MismatchError as mismatch:
        return [(GraphLimit.ONE_BATCH_SIZE, f"holds for batch size {size} only: {mismatch}")]
    except Exception:  # the model itself refuses: nothing to hold the graph to
        return []
    return []


class _Trial:
    """Model and graph side by side, with the same weights."""

    def __init__(self, own: nn.Module, draft: Draft) -> None:
        self.draft = draft
        self.telling = False  # whether any output so far could have told right from wrong
        self._model, self._graph_module = (
            copy_sharing_parameters(own),
            build_graph_module(copy_sharing_parameters(own), draft),
        )

    def compare(self, inputs: Inputs, *, record: bool = True) -> None:
        """Run both with the same random numbers; what the model itself raises is passed on.

        ``record`` leaves the shapes at the nodes; without it the graph runs as the code that is generated from it.
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
            self.telling |= _is_telling(theirs)


class _Recorder(fx.Interpreter):
    """Runs the graph and leaves every tensor's shape at its node."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if metadata := _metadata(result):
            n.meta["tensor_meta"] = metadata
        return result


def _metadata(result: Any) -> Any:
    """Shapes and dtypes in a result's own nesting; None where there is no tensor."""
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
    """How two outputs differ; nothing if they agree to rounding."""
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


def _is_telling(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.is_meta:
        return False
    value = _wide(value)
    return bool((torch.isfinite(value) & (value != 0)).any())


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Half and quarter precision in a type that has all the operations."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


@contextmanager
def _other_weights(own: nn.Module, model: nn.Module) -> Iterator[None]:
    """Weights a little beside the model's: a layer that starts at zero would hide what is wrong before it."""
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

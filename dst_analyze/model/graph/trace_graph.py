"""`trace_graph`: a model's graph, on the first rung of the ladder that reproduces the model.

1. torch.fx's symbolic trace (`symbolic.py`). 2. A trace that runs the example, with submodules that cannot be traced as
opaque leaves (`recording_tracer.py`). 3. No graph. The graph is for reading: it shows the model in eval mode, and each
node has the shape of its result (``node.meta["tensor_meta"]``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from io import StringIO
from types import FunctionType

import torch
from torch import fx, nn

from dst_analyze.errors import ModelError
from dst_analyze.model.graph.graph_proof import (
    Draft,
    GraphLimit,
    build_graph_module,
    copy_sharing_parameters,
    has_meta_tensors,
    prove_graph,
)
from dst_analyze.model.graph.recording_tracer import Opaque, RecordingTracer
from dst_analyze.model.graph.symbolic import SymbolicTracer, notes_on_arguments
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.isolation import deep_copy, preserved, quiet_inspection
from dst_analyze.model.user_errors import place_of

_MOST_ANSWERS = 20  # shown in the notes, of the values built in from the example


@dataclass(frozen=True)
class GraphTrace:
    """A model's graph if there is one, its rung, and its limits.

    ``graph_module(*inputs.tensors())`` computes the model's output, as plain tuples, lists and dicts.
    """

    graph_module: fx.GraphModule | None
    rung: int
    opaque: tuple[Opaque, ...]
    notes: tuple[str, ...]
    parameters: frozenset[str]  # visible in the graph, by all their names
    limits: frozenset[GraphLimit] = frozenset()  # each has a note
    fixed_sizes: bool = False  # the example's sizes are built in
    fixed_values: bool = False  # contents of the example are built in: other inputs may take another path


def trace_graph(model: nn.Module, inputs: Inputs, *, training: bool = False, any_values: bool = False) -> GraphTrace:
    """Trace a copy of the model in eval or training mode.

    With ``any_values`` the graph may not depend on the contents of the example: a submodule that does stays opaque.
    """
    try:
        own = deep_copy(model)
    except ModelError as error:
        return _no_graph(Opaque("", error.cause, error.place), [])
    own.train(training)
    with preserved(), torch.no_grad(), quiet_inspection(own):
        ladder = _Ladder(own, model, inputs)
        plain = ladder.draft(1, _symbolic)
        if plain and not plain.wrapped:
            if trace := ladder.proven(plain):
                return trace
            plain = None
        full = ladder.draft(2, _recorded_draft)
        if any_values:
            if full and full.specialised:
                full = ladder.draft(2, partial(_recorded_draft, strict=True))
            return (full and ladder.proven(full)) or _no_graph(ladder.failure, ladder.notes)
        stopped = full.opaque if full else (ladder.failure,)
        if any(opaque.hidden_call for opaque in stopped) and not has_meta_tensors(own, inputs):
            other = _Ladder(own, model, inputs)
            trusting = other.draft(2, partial(_recorded_draft, trusting=True))
            if trusting and (trace := other.proven(trusting)):
                return trace
        for draft in (full, plain) if full and not full.opaque else (plain, full):
            if draft and (trace := ladder.proven(draft)):
                return trace
        # The graph depends on contents of tensors: keep the modules that read them opaque.
        careful = ladder.draft(2, partial(_recorded_draft, strict=True)) if full and full.specialised else None
        if careful and (trace := ladder.proven(careful)):
            return trace
    return _no_graph(ladder.failure, ladder.notes)


class _Ladder:
    """The attempts to trace one model; failures and their reasons are kept for the notes."""

    def __init__(self, own: nn.Module, model: nn.Module, inputs: Inputs) -> None:
        self.failure = Opaque("", "", "")
        self.notes = notes_on_arguments(inputs)
        self._own, self._model, self._inputs = own, model, inputs

    def draft(self, rung: int, draw: Callable[[nn.Module, Inputs], Draft]) -> Draft | None:
        """Return a graph that is still to be proven; None if tracing fails."""
        try:
            with redirect_stderr(StringIO()):  # torch.fx prints what its graphs raise; the notes say it too
                draft = draw(copy_sharing_parameters(self._own), self._inputs)
        except MemoryError:
            raise
        except Exception as error:
            self._failed(rung, error)
            return None
        if draft.wrapped:
            self.notes.append(f"rung {rung}: does not look inside {', '.join(draft.wrapped)}")
        return draft

    def proven(self, draft: Draft) -> GraphTrace | None:
        """Return the trace if its graph reproduces the model; else None."""
        try:
            with redirect_stderr(StringIO()):
                found = prove_graph(self._own, self._model, self._inputs, draft)
            notes = (*self.notes, *draft.notes, *(note for _, note in found if note))
            return _accepted(self._own, draft, notes, frozenset(limit for limit, _ in found))
        except MemoryError:
            raise
        except Exception as error:
            self._failed(draft.rung, error)
            return None

    def _failed(self, rung: int, error: Exception) -> None:
        self.failure = Opaque.stopped_by(error, "", place_of(error))
        place = f" at {self.failure.place}" if self.failure.place else ""
        self.notes.append(f"rung {rung}: {self.failure.reason}{place}")


# --- drafts -----------------------------------------------------------------------------------------------------


def _symbolic(twin: nn.Module, inputs: Inputs) -> Draft:
    known, dropped = set(_attributes(twin)), dict[str, None]()
    graph = SymbolicTracer(inputs, dropped.setdefault).trace(twin)
    targets = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    constants = {name: getattr(twin, name) for name in targets if name not in known and "." not in name}
    functions = [node.target for node in graph.nodes if isinstance(node.target, FunctionType)]
    wrapped = dict.fromkeys(f.__name__ for f in functions if f.__module__.partition(".")[0] != "torch")
    return Draft(1, graph, constants, (), tuple(dropped), wrapped=tuple(wrapped))


def _recorded_draft(twin: nn.Module, inputs: Inputs, **options: bool) -> Draft:
    dropped = dict[str, None]()
    tracer = RecordingTracer(twin, inputs, dropped.setdefault, **options)
    graph = tracer.trace()
    answers = list(tracer.answers)
    shown = [f"built in from the example: {answer}" for answer in answers[:_MOST_ANSWERS]]
    if len(answers) > _MOST_ANSWERS:
        shown.append(f"built in from the example: {len(answers) - _MOST_ANSWERS} more values")
    trusting = options.get("trusting", False)
    return Draft(
        2, graph, tracer.constants, tuple(tracer.opaque), (*dropped, *shown), tracer.specialised, trusting,
        has_answers=bool(answers),
    )  # fmt: skip


def _attributes(module: nn.Module) -> Iterator[str]:
    """Yield the names of the tensors that a module holds at its top level."""
    yield from (name for name, value in vars(module).items() if isinstance(value, torch.Tensor))
    yield from (name for name, _ in (*module.named_parameters(), *module.named_buffers()))


# --- the result -------------------------------------------------------------------------------------------------


def _accepted(own: nn.Module, draft: Draft, notes: tuple[str, ...], limits: frozenset[GraphLimit]) -> GraphTrace:
    visible = _visible(own, draft)
    module = build_graph_module(own, draft)
    return GraphTrace(module, draft.rung, draft.opaque, notes, visible, limits, draft.has_answers, draft.specialised)


def _visible(own: nn.Module, draft: Draft) -> frozenset[str]:
    """Return the parameters that a node reads, or that belong to a layer that is a node but not opaque."""
    names: dict[int, list[str]] = {}
    for name, parameter in own.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    owners = {name: id(parameter) for name, parameter in own.named_parameters(remove_duplicate=False)}
    hidden = {opaque.name for opaque in draft.opaque}
    seen = {owners[str(node.target)] for node in draft.graph.nodes if node.op == "get_attr" and node.target in owners}
    for node in draft.graph.nodes:
        if node.op == "call_module" and node.target not in hidden:
            seen.update(id(parameter) for parameter in own.get_submodule(str(node.target)).parameters())
    return frozenset(name for key in seen for name in names[key])


def _no_graph(failure: Opaque, notes: list[str]) -> GraphTrace:
    return GraphTrace(None, 3, (failure,), tuple(notes), frozenset())

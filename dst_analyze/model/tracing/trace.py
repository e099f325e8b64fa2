"""`trace_model`: from a model and one example to a `TracedModel` with facts about each layer.

A layer is one weight tensor that reaches a matmul or a convolution, found by the audit (`weight_audit.py`) and named
after the module that owns it. Each layer has the rung of the tracing ladder on which it is visible
(`graph/trace_graph.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import fx, nn

from dst_analyze.deprecation import warn_renamed
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.graph.packed_graph import PackedGraph, pack_graph
from dst_analyze.model.graph.trace_graph import GraphTrace, trace_graph
from dst_analyze.model.inputs.infer import has_annotations
from dst_analyze.model.inputs.inputs import Inputs, as_inputs
from dst_analyze.model.isolation import deep_copy, preserved, quiet_inspection
from dst_analyze.model.tracing.axes import RowLayout
from dst_analyze.model.tracing.extensions import load_extensions
from dst_analyze.model.tracing.macs import total_macs
from dst_analyze.model.tracing.registered import registered_weights
from dst_analyze.model.tracing.registered_uses import watching_registered
from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.model.tracing.skipped import Skipped, skipped_parameters
from dst_analyze.model.tracing.weight_audit import Audit, WeightUse
from dst_analyze.model.user_errors import headline, place_of, user_trace

if TYPE_CHECKING:
    import pandas as pd


# The fields of a layer that tables and JSON show.
FACTS = ("name", "kind", "parameter", "shape", "params", "macs", "macs_note", "output_shape", "rung", "op")


@dataclass(frozen=True)
class LayerFacts:
    """One maskable weight tensor, in the order of its first use."""

    name: str
    kind: str  # class of the module that owns the weight, or "parameter" for a raw one
    parameter: str  # qualified name of the tensor
    aliases: tuple[str, ...]  # all names of the tensor: more than one for tied weights
    shape: tuple[int, ...]
    params: int
    layout: RowLayout
    op: str
    macs: int  # per sample
    macs_note: str  # "" if torch's counter knows the operation
    output_shape: tuple[int, ...]
    rung: int
    recurrent: bool
    place: str


@dataclass(frozen=True)
class Coverage:
    """The shares of the model that the analysis covers, between 0 and 1."""

    weights: float  # masked, of the weights that reach a matmul or convolution
    parameters: float  # visible in the graph, of all parameters
    masked: float  # masked, of all parameters

    def describe(self) -> str:
        """Return the shares in a sentence."""
        return (
            f"{self.weights:.1%} of the matmul and convolution weights can be masked "
            f"({self.masked:.1%} of all parameters); {self.parameters:.1%} of the parameters are visible in the graph"
        )


Mode = Literal["train", "eval"]


@dataclass(frozen=True)
class NoGraph:
    """Why a model has no graph that can run in its place in some mode, and where tracing stopped."""

    reason: str
    place: str = ""


@dataclass(frozen=True)
class TracedModel:
    """A model's layers, the weights that are not measured and why, and the graph if there is one.

    Attributes:
        model: The user's model, unchanged.
        inputs: The example inputs.
        graph: The traced graph, and where tracing stopped.
        layers: The maskable weights, in the order of their first use.
        skipped: The parameters that are not measured, each with the cause.
        coverage: The shares of the model that the analysis covers.
        params: The number of parameters.
        macs: The multiply-accumulates per sample.
        uncounted: Operations that are not in ``macs``, since torch's counter does not know them.
        notes: Limits of this trace, one sentence each.
        mode_graphs: For training and eval mode, the graph that can run in the model's place, or why there is none.

    Example:
        >>> import dst_analyze, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> traced = dst_analyze.trace_model(model, torch.randn(2, 4))
        >>> [(layer.name, layer.shape) for layer in traced.layers]
        [('0', (8, 4)), ('2', (2, 8))]
    """

    model: nn.Module = field(repr=False)  # the user's own object, untouched
    inputs: Inputs = field(repr=False)
    graph: GraphTrace = field(repr=False)
    layers: tuple[LayerFacts, ...]
    skipped: tuple[Skipped, ...]
    coverage: Coverage
    params: int
    macs: int  # per sample
    uncounted: tuple[str, ...]
    notes: tuple[str, ...]
    mode_graphs: Mapping[Mode, PackedGraph | NoGraph] = field(default_factory=dict, repr=False)

    @property
    def graph_module(self) -> fx.GraphModule | None:
        """The torch.fx graph as a module; None if there is no graph."""
        return self.graph.graph_module

    @property
    def rung(self) -> int:
        """The rung of the tracing ladder that the graph comes from: 1 is the best, 3 has no graph."""
        return self.graph.rung

    def frame(self) -> pd.DataFrame:
        """Return ``table``; deprecated."""
        warn_renamed("TracedModel.frame()", "TracedModel.table")
        return self.table

    @property
    def table(self) -> pd.DataFrame:
        """One row per layer, for notebooks and CSV."""
        import pandas as pd

        rows = [
            {fact: str(list(v)) if isinstance(v := getattr(layer, fact), tuple) else v for fact in FACTS}
            for layer in self.layers
        ]
        return pd.DataFrame(rows, columns=list(FACTS))

    def _repr_html_(self) -> str:
        from dst_analyze.html import html_table

        lead = (
            f"{type(self.model).__name__}: {len(self.layers)} layers, {self.params:,} parameters, "
            f"{self.macs:,} MACs per sample"
        )
        rows = [
            (
                layer.name,
                layer.kind,
                "x".join(map(str, layer.shape)),
                f"{layer.params:,}",
                f"{layer.macs:,}",
                layer.rung,
            )
            for layer in self.layers
        ]
        left_out = [f"{one.name} is not analysed: {one.reason}" for one in self.skipped]
        notes = [f"{self.coverage.describe()}.", *left_out, *self.notes]
        return html_table(lead, ["layer", "kind", "shape", "params", "MACs", "rung"], rows, notes)


def trace_model(
    model: nn.Module, example_inputs: Any, *, include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> TracedModel:
    """Return a model's layers and graph, found by running a copy on example inputs, without training.

    Args:
        model: The model; it is not changed.
        example_inputs: A tensor, a tuple of positional arguments, or a dict of keywords.
        include: Shell patterns of the layers (or parameters) to mask; without any, all layers.
        exclude: Shell patterns of the layers (or parameters) not to mask.

    Returns:
        The layers, the weights that are not measured and why, and the graph if there is one.

    Raises:
        ModelError: The model cannot be copied, or does not run on its example inputs.
        OptionError: A pattern matches no layer.

    Example:
        >>> import dst_analyze, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> traced = dst_analyze.trace_model(model, torch.randn(2, 4), exclude=["2"])
        >>> [layer.name for layer in traced.layers], [one.reason for one in traced.skipped]
        (['0'], ['left out by --exclude'])
    """
    missing = load_extensions()
    inputs = as_inputs(example_inputs, model)
    # torch's FLOP counter fails on parameters that require gradients, which tracing does not need.
    copy = deep_copy(model).requires_grad_(False)
    audit, notes, runs_in_eval = _audited(copy, inputs, model)
    macs, uncounted = _macs(copy, inputs, training=not runs_in_eval)
    graph = trace_graph(model, inputs)
    found = _layers(copy, audit, graph, inputs.batch_size)
    layers, left_out = _selected(found, tuple(include), tuple(exclude))
    refused = ((use, _refusal(use)) for use in audit.uses.values())
    skipped = (
        *(
            Skipped(
                use.parameter or f"tensor {list(use.shape)}", cause, use.shape, use.place, dtype=str(use.tensor.dtype)
            )
            for use, cause in refused
            if cause is not None
        ),
        *left_out,
        *skipped_parameters(copy, audit, {alias for layer in found for alias in layer.aliases}),
    )
    sizes = {name: p.numel() for name, p in copy.named_parameters()}
    params, masked = sum(sizes.values()), sum(layer.params for layer in layers)
    reached = sum(use.tensor.numel() for use in audit.uses.values())
    macs += audit.missed_macs // inputs.batch_size
    del copy, audit  # as large as the model, and graphs are traced on further copies
    return TracedModel(
        model=model,
        inputs=inputs,
        graph=graph,
        layers=layers,
        skipped=skipped,
        coverage=Coverage(
            weights=masked / reached if reached else 0.0,
            parameters=sum(n for name, n in sizes.items() if name in graph.parameters) / params if params else 0.0,
            masked=masked / params if params else 0.0,
        ),
        params=params,
        macs=macs,
        uncounted=uncounted,
        notes=(*missing, *notes, *graph.notes),
        mode_graphs=_mode_graphs(model, inputs, graph, runs_in_training=not notes or not runs_in_eval),
    )


def _mode_graphs(
    model: nn.Module, inputs: Inputs, graph: GraphTrace, *, runs_in_training: bool
) -> dict[Mode, PackedGraph | NoGraph]:
    """Return the graphs that can run in the model's place, by mode; equal graphs are one object."""
    if graph.fixed_values:
        graph = trace_graph(model, inputs, any_values=True)
    found: dict[Mode, PackedGraph | NoGraph] = {"eval": _runnable(model, graph)}
    if runs_in_training:
        found["train"] = _runnable(model, trace_graph(model, inputs, training=True, any_values=True))
    else:
        found["train"] = NoGraph("the example does not run in training mode")
    one, other = found["eval"], found["train"]
    if isinstance(one, PackedGraph) and isinstance(other, PackedGraph) and one.same_as(other):
        found["train"] = one
    return found


def _runnable(model: nn.Module, graph: GraphTrace) -> PackedGraph | NoGraph:
    if graph.graph_module is None:
        opaque = graph.opaque[0]
        return NoGraph(opaque.reason, opaque.place)
    return pack_graph(graph.graph_module, model, rung=graph.rung, fixed_sizes=graph.fixed_sizes)


def _audited(copy: nn.Module, inputs: Inputs, model: nn.Module) -> tuple[Audit, list[str], bool]:
    """Return the audit of both modes, since some heads exist in training only, notes, and whether eval mode runs."""
    audit, notes, failed = Audit(copy, model), [], None
    with preserved(copy), quiet_inspection(copy):
        copy.eval()
        try:
            with watching_registered(audit, copy, "eval"):
                audit.run(copy, inputs, "eval")
        except ModelError:
            raise
        except Exception as error:
            failed = error
        copy.train()
        try:
            with watching_registered(audit, copy, "train"):
                audit.run(copy, inputs, "train")
        except Exception as error:  # a batch of one under batch norm, or missing targets: the eval run is enough
            if failed is not None:
                raise _cannot_run(failed, inputs) from failed
            notes.append(f"read in eval mode only: in training mode the example fails with {headline(error)}")
        if failed is not None:
            if not has_annotations(inputs.args):
                raise _cannot_run(failed, inputs) from failed
            notes.append(f"read in training mode only: in eval mode the example fails with {headline(failed)}")
    for name, place in audit.foreign.items():
        raise ModelError(
            f"a copy of the model still reads {name} of the model itself, through a global name or a hidden reference",
            place=place,
            hint="reach layers through self in forward: copies of the model are masked, trained and narrowed",
        )
    return audit, notes, failed is None


def _macs(copy: nn.Module, inputs: Inputs, *, training: bool) -> tuple[int, tuple[str, ...]]:
    with preserved(copy), quiet_inspection(copy):
        copy.train(training)
        macs, uncounted = total_macs(lambda: inputs.map(torch.clone).call(copy))
    return macs // inputs.batch_size, uncounted


def _layers(copy: nn.Module, audit: Audit, graph: GraphTrace, batch: int) -> list[LayerFacts]:
    aliases: dict[int, list[str]] = {}
    for name, parameter in copy.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(parameter), []).append(name)
    uses = [(key, use) for key, use in audit.uses.items() if _refusal(use) is None]
    names = _names(copy, [use.parameter for _, use in uses])
    return [
        LayerFacts(
            name=names[use.parameter],
            kind=_kind(copy, use.parameter),
            parameter=use.parameter,
            aliases=tuple(aliases[key]),
            shape=use.shape,
            params=use.tensor.numel(),
            layout=use.layout,
            op=use.op,
            macs=use.macs // batch,
            macs_note=use.macs_note,
            output_shape=use.output_shape,
            rung=graph.rung if any(alias in graph.parameters for alias in aliases[key]) else 3,
            recurrent=use.recurrent,
            place=use.place,
        )
        for key, use in uses
    ]


def _owner(parameter: str) -> str:
    """Return the name of the module that owns a parameter; for a parametrized weight, the layer."""
    return (
        parameter.partition(".parametrizations.")[0]
        if ".parametrizations." in parameter
        else parameter.rpartition(".")[0]
    )


def _names(model: nn.Module, parameters: Sequence[str]) -> dict[str, str]:
    """Return each layer's name: its module's if that has one weight and no submodules, else the weight's."""
    owned = Counter(_owner(parameter) for parameter in parameters)
    containers = {_owner(name) for name, _ in model.named_modules() if ".parametrizations" not in name}
    return {
        parameter: owner
        if (owner := _owner(parameter)) and owned[owner] == 1 and owner not in containers
        else parameter
        for parameter in parameters
    }


def _kind(model: nn.Module, parameter: str) -> str:
    owner = model.get_submodule(_owner(parameter))
    if type(owner).__module__ == "torch.nn.utils.parametrize":  # Parametrized<Layer>, made on the fly
        return type(owner).__mro__[1].__name__
    leaf, own = parameter.rpartition(".")[2], {weight.parameter for weight in registered_weights(owner)}
    known = leaf in own or leaf.startswith(("weight", "in_proj", "original", "q_proj", "k_proj", "v_proj"))
    return type(owner).__name__ if known else "parameter"


def _refusal(use: WeightUse) -> SkipCause | None:
    """Return why a weight that does reach an operation cannot carry a mask; None if it can."""
    if not use.parameter:
        return SkipCause.UNREGISTERED
    return None if use.tensor.dtype.is_floating_point else SkipCause.DTYPE


def _selected(
    layers: Sequence[LayerFacts], include: tuple[str, ...], exclude: tuple[str, ...]
) -> tuple[tuple[LayerFacts, ...], list[Skipped]]:
    for option, patterns in (("--include", include), ("--exclude", exclude)):
        for pattern in patterns:
            if not any(_matches(layer, (pattern,)) for layer in layers):
                raise OptionError(
                    f"{option} {pattern!r} matches no layer",
                    hint="layers are named as `dst-analyze inspect` shows them, e.g. "
                    + ", ".join(repr(layer.name) for layer in layers[:3]),
                )
    kept, left = [], []
    for layer in layers:
        if include and not _matches(layer, include):
            left.append(Skipped(layer.name, SkipCause.NOT_INCLUDED, layer.shape, layer.place))
        elif _matches(layer, exclude):
            left.append(Skipped(layer.name, SkipCause.EXCLUDED, layer.shape, layer.place))
        else:
            kept.append(layer)
    return tuple(kept), left


def _matches(layer: LayerFacts, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in (layer.name, *layer.aliases))


def _cannot_run(error: Exception, inputs: Inputs) -> ModelError:
    place, trace = user_trace(error)
    hint = "define example_inputs() in the model's file: a tensor, a tuple of arguments, or a dict of keywords"
    if "meta tensors" in str(error):
        hint = "a model on `meta` has no values, and its code reads one of weights or data: build it on the CPU"
    return ModelError(
        f"the model does not run on its example inputs ({inputs.describe()}): {headline(error)}",
        place=place or place_of(error),
        trace=trace,
        hint=hint,
    )

"""What `inspect` looks at: a model without its memory where that works, so that any size fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dst_analyze.errors import ModelError, at
from dst_analyze.masking.masked import mask_model
from dst_analyze.model.inputs.infer import find_example_inputs
from dst_analyze.model.loading.load import LoadedModel, load_model
from dst_analyze.model.tracing.trace import FACTS, NoGraph, TracedModel, trace_model

_SMALL = 50_000_000  # parameters: 200 MB
_PROVEN = 5_000_000  # parameters: in a second or two


def inspect_model(
    spec: str, args: Mapping[str, Any], include: Sequence[str], exclude: Sequence[str]
) -> tuple[LoadedModel, TracedModel]:
    """The model without its memory where that works; the real one where it does not."""

    def trace(loaded: LoadedModel) -> TracedModel:
        with at(spec):
            return trace_model(loaded.model, find_example_inputs(loaded), include=include, exclude=exclude)

    loaded = load_model(spec, model_args=args, device="meta")
    if any(parameter.is_meta for parameter in loaded.model.parameters()):
        try:
            traced = trace(loaded)
            if traced.rung == 1 or traced.params > _SMALL:
                return loaded, traced
        except ModelError:  # code that asks for values gets no answer on meta
            pass
        # With values, tracing may come further, as it will in a sweep.
        loaded = load_model(spec, model_args=args)
    return loaded, trace(loaded)


def masked_form(loaded: LoadedModel, traced: TracedModel, args: Mapping[str, Any]) -> str:
    """In which form the model would be trained, as a graph or as modules, and why.

    Small models are masked and the graph is proven here, as before a training; of large ones it says what is traced.
    """
    missing = next((graph for graph in traced.mode_graphs.values() if isinstance(graph, NoGraph)), None)
    if missing:
        return f"modules: {missing.reason}{f' ({missing.place})' if missing.place else ''}"
    if not traced.layers or traced.params > _PROVEN:
        return "graph, if the proof before training confirms it"
    if any(parameter.is_meta for parameter in loaded.model.parameters()):
        loaded = load_model(loaded.spec, model_args=args)
        traced = replace(traced, model=loaded.model, inputs=find_example_inputs(loaded))
    return str(mask_model(traced).form)


def as_json(loaded: LoadedModel, traced: TracedModel, form: str) -> dict[str, Any]:
    """The same for machines."""
    return {
        "schema_version": 1,
        "model": loaded.name,
        "spec": loaded.spec,
        "inputs": traced.inputs.describe(),
        "params": traced.params,
        "macs": traced.macs,
        "rung": traced.rung,
        "form": form,
        "coverage": {"weights": traced.coverage.weights, "parameters": traced.coverage.parameters},
        "layers": [{fact: getattr(layer, fact) for fact in FACTS} for layer in traced.layers],
        "skipped": [{"name": s.name, "reason": s.reason, "place": s.place, "params": s.params} for s in traced.skipped],
        "uncounted": traced.uncounted,
        "notes": traced.notes,
    }

"""Inspection of models, on the meta device if possible, so that any size fits into memory."""

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
_PROVEN = 5_000_000  # parameters: the proof takes a second or two


def inspect_model(
    spec: str, args: Mapping[str, Any], include: Sequence[str], exclude: Sequence[str]
) -> tuple[LoadedModel, TracedModel]:
    """Return the model and its trace, on the meta device if its code runs there."""

    def trace(loaded: LoadedModel) -> TracedModel:
        with at(spec):
            return trace_model(loaded.model, find_example_inputs(loaded), include=include, exclude=exclude)

    loaded = load_model(spec, model_args=args, device="meta")
    if any(parameter.is_meta for parameter in loaded.model.parameters()):
        try:
            traced = trace(loaded)
            if traced.rung == 1 or traced.params > _SMALL:
                return loaded, traced
        except ModelError:  # the code reads values, which meta tensors do not have
            pass
        # With values tracing may succeed, as it would in a sweep.
        loaded = load_model(spec, model_args=args)
    return loaded, trace(loaded)


def masked_form(loaded: LoadedModel, traced: TracedModel, args: Mapping[str, Any]) -> str:
    """Return the form in which the model would be trained, graph or modules, and why.

    The graphs of small models are proven here as before a training; those of large models are only traced.
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
    """Return the inspection as a value for JSON."""
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

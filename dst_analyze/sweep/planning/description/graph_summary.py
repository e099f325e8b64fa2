"""Summaries of the traced graph for the run folder: what a drawing needs, readable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from torch import fx, nn

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.files.paths import GROUP_COLUMNS
from dst_analyze.run.record import GraphNode, ModelGraph

INPUT, OUTPUT = "input", "output"


def layer_groups(traced: TracedModel, coupling: Coupling) -> pd.DataFrame:
    """Return the layers that make the same channels as another one, with their groups, for the ranking.

    Parameters outside the sweep (an LSTM's biases, layers left out by a pattern) shrink too, but are not ranked.
    """
    known, rows = {layer.name for layer in traced.layers}, dict[str, str]()
    for group in coupling.removable:
        layers = [layer for layer in group.layers("produces") if layer in known]
        rows |= {layer: group.name for layer in layers if len(layers) > 1 and layer not in rows}
    return pd.DataFrame(rows.items(), columns=list(GROUP_COLUMNS))


def summarize_graph(traced: TracedModel) -> ModelGraph | None:
    """Return the nodes of a model's graph that carry activations; None if the model has no graph.

    Sizes and constants are left out, as a drawing would show edges that carry no activation. A function that reads a
    layer's weight, as in ``F.linear(x, self.w)``, becomes that layer's node.
    """
    module = traced.graph_module
    if module is None:
        return None
    owners = {alias: layer.name for layer in traced.layers for alias in layer.aliases}
    places = {layer.name: _short(layer.place) for layer in traced.layers}
    constants: dict[fx.Node, tuple[str, ...]] = {}  # node -> layers whose weights it reads
    numbers: dict[fx.Node, int] = {}
    nodes: list[GraphNode] = []
    for node in module.graph.nodes:
        read = [source for source in node.all_input_nodes if "tensor_meta" in source.meta]
        used = tuple(dict.fromkeys(name for source in read for name in constants.get(source, ())))
        if node.op == "get_attr":
            constants[node] = (owners[node.target],) if node.target in owners else ()
        elif node.op not in ("placeholder", "output", "call_module") and not any(s in numbers for s in read):
            constants[node] = used
        elif node.op == "output" or "tensor_meta" in node.meta:
            layers = _inside(str(node.target), owners) if node.op == "call_module" else used
            numbers[node] = len(nodes)
            nodes.append(
                GraphNode(
                    op=_named(node, module),
                    scope=_scope(node),
                    layers=layers,
                    place=places[layers[0]] if layers else "",
                    inputs=tuple(numbers[source] for source in read if source in numbers),
                )
            )
    return ModelGraph(schema_version=1, nodes=tuple(nodes))


def _inside(module: str, owners: Mapping[str, str]) -> tuple[str, ...]:
    """Return the layers whose weights a module holds, in their order."""
    return tuple(dict.fromkeys(name for alias, name in owners.items() if alias.startswith(f"{module}.")))


def _named(node: fx.Node, module: nn.Module) -> str:
    if node.op in ("placeholder", "output"):
        return INPUT if node.op == "placeholder" else OUTPUT
    if node.op == "call_module":
        return type(module.get_submodule(str(node.target))).__name__
    return str(getattr(node.target, "__name__", node.target))


def _scope(node: fx.Node) -> str:
    """Return the module that a node calls, or the innermost one whose forward was running."""
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "call_module":
        return str(node.target)
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]) if stack else ""


def _short(place: str) -> str:
    """Return file and line without the folders, which differ between machines."""
    return Path(place).name

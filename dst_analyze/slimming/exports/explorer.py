"""`model_explorer/`: the analysed model as a graph of Google's Model Explorer, with node data for its nodes.

The node data are four files, one value per layer: redundancy, label, spare and width. Each also names the nodes of the
exported slim model, so that it can be laid over slim_model.pt2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dst_analyze.ranking.verdict import LABELS, NEEDED, REDUNDANT
from dst_analyze.run.files.paths import EXPLORER, GRAPH
from dst_analyze.run.files.safe_read import is_there
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import GraphNode, ModelGraph
from dst_analyze.slimming.exports.layer_notes import LayerNote, layer_notes
from dst_analyze.slimming.exports.result import Exported, NotExportedError, SlimResult
from dst_analyze.slimming.exports.torch_export import export_program
from dst_analyze.sweep.planning.description.graph_summary import summarize_graph

MODEL, PT2 = "model", "graph"
"""Ids of graphs: of the one written here, and of the one that Model Explorer makes of a .pt2 file."""

_WEAK, _STRONG = "#f4f4f5", "#c2410c"
_COLOURS = {REDUNDANT: "#fdba74", NEEDED: "#93c5fd"}
_OTHER = "#e4e4e7"


def write_explorer(result: SlimResult) -> Exported:
    """Return the folder `model_explorer`: the model's graph and its node data."""
    graph = _graph_of(result)
    if graph is None:
        raise NotExportedError("the model has no graph")
    notes = layer_notes(result)
    nodes = {MODEL: {f"n{at}": node.layers for at, node in enumerate(graph.nodes) if node.layers}}
    note = ""
    try:
        nodes[PT2] = _program_nodes(result, notes)
    except NotExportedError as error:
        note = f"no node data for slim_model.pt2: {error.cause}"
    name = result.plan.model if result.plan is not None else "model"
    files = {
        "model.json": {"label": name, "graphs": [{"id": MODEL, "nodes": _graph_nodes(graph, notes)}]},
        "redundancy.json": _numbers("redundancy", nodes, notes, lambda note: note.redundancy),
        "spare.json": _numbers("spare share of weights", nodes, notes, lambda note: note.spare),
        "width.json": _numbers("suggested width", nodes, notes, lambda note: note.new_width),
        "label.json": _labels(nodes, notes),
    }
    contents = {file: f"{json.dumps(value, indent=1, allow_nan=False)}\n".encode() for file, value in files.items()}
    return Exported(folders={EXPLORER: contents}, note=note or "open model.json, then add the other files as node data")


def _graph_of(result: SlimResult) -> ModelGraph | None:
    if result.record is not None and is_there(result.record.folder / GRAPH):
        return read_json(result.record.folder / GRAPH, ModelGraph)
    return summarize_graph(result.traced) if result.traced is not None else None


def _graph_nodes(graph: ModelGraph, notes: Mapping[str, LayerNote]) -> list[dict[str, Any]]:
    """Return the nodes of a graph as Model Explorer takes them; modules become nested groups."""
    return [
        {
            "id": f"n{at}",
            "label": node.op,
            "namespace": node.scope.replace(".", "/"),
            "attrs": [{"key": key, "value": value} for key, value in _attributes(node, notes)],
            "incomingEdges": [
                {"sourceNodeId": f"n{source}", "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
                for place, source in enumerate(node.inputs)
            ],
        }
        for at, node in enumerate(graph.nodes)
    ]


def _attributes(node: GraphNode, notes: Mapping[str, LayerNote]) -> Iterator[tuple[str, str]]:
    if node.place:
        yield "source", node.place
    for layer in node.layers:
        yield "layer", layer
        yield from notes[layer].properties().items() if layer in notes else ()


def _program_nodes(result: SlimResult, notes: Mapping[str, LayerNote]) -> dict[str, tuple[str, ...]]:
    """Return the layers whose weights a node of the exported slim model reads, by the node's name."""
    program = export_program(result.model).program
    weights = {**program.graph_signature.inputs_to_parameters}
    found: dict[str, tuple[str, ...]] = {}
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        names = [weights[given.name] for given in node.all_input_nodes if given.name in weights]
        layers = dict.fromkeys(layer for name in names for layer in (name, name.rpartition(".")[0]) if layer in notes)
        if layers:
            found[node.name] = tuple(layers)
    return found


def _numbers(
    name: str,
    nodes: Mapping[str, Mapping[str, tuple[str, ...]]],
    notes: Mapping[str, LayerNote],
    value: Callable[[LayerNote], float | None],
) -> dict[str, Any]:
    """Return node data of numbers, coloured from the smallest to the largest."""
    gradient = [{"stop": 0, "bgColor": _WEAK}, {"stop": 1, "bgColor": _STRONG}]
    data = {}
    for graph, layers_of in nodes.items():
        results = {}
        for node, layers in layers_of.items():
            known = [found for layer in layers if layer in notes and (found := value(notes[layer])) is not None]
            if known:
                results[node] = {"value": max(known)}
        data[graph] = {"name": name, "results": results, "gradient": gradient}
    return data


def _labels(nodes: Mapping[str, Mapping[str, tuple[str, ...]]], notes: Mapping[str, LayerNote]) -> dict[str, Any]:
    """Return node data of labels, each with its colour."""
    data = {}
    for graph, layers_of in nodes.items():
        results = {}
        for node, layers in layers_of.items():
            known = [notes[layer].label for layer in layers if layer in notes and notes[layer].label]
            if known:
                label = min(known, key=lambda one: LABELS.index(one) if one in LABELS else len(LABELS))
                results[node] = {"value": label, "bgColor": _COLOURS.get(label, _OTHER)}
        data[graph] = {"name": "label", "results": results, "showExpandedSummaryOnGroupNode": True}
    return data

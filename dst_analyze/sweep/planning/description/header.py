"""The header of a run folder, from what was planned."""

from __future__ import annotations

from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import DstError
from dst_analyze.model.inputs.stand_in import describe_inputs
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.header import RunHeader
from dst_analyze.run.record import ExampleInputs, Manifest
from dst_analyze.sweep.planning.description.graph_summary import layer_groups, summarize_graph


def header_of(config: SweepConfig, manifest: Manifest, traced: TracedModel, coupling: Coupling | DstError) -> RunHeader:
    """Return the header: configuration, manifest, layers, graph, groups, example inputs."""
    inputs = describe_inputs(traced.inputs)
    return RunHeader(
        config,
        manifest,
        traced.table.rename(columns={"name": "layer"}),
        summarize_graph(traced),
        None if isinstance(coupling, DstError) else layer_groups(traced, coupling),
        None if inputs is None else ExampleInputs(**inputs),
    )

"""`couple_channels`: which channels belong together, found by running the graph once on numbers instead of values.

Every axis of every parameter gets numbers of its own; the rules (`rule_call.py` has the table) say how they travel and
where they meet. What is joined is a **unit**: it leaves as a whole. Units that appear in exactly the same tensors make
a **group**: any of them may leave, as long as one stays.
"""

from __future__ import annotations

import torch

from dst_analyze.channels.grouping import Grouping
from dst_analyze.channels.groups import Coupling, Group, Member
from dst_analyze.channels.labels import Reason
from dst_analyze.channels.propagate import LabelRun
from dst_analyze.model.graph.trace_graph import GraphLimit
from dst_analyze.model.isolation import preserved, quiet_inspection
from dst_analyze.model.tracing.trace import LayerFacts, TracedModel


def couple_channels(traced: TracedModel) -> Coupling:
    """The coupling of a traced model; without a graph nothing is known of its channels, so all of them stay."""
    if traced.graph_module is None:
        return Coupling(tuple(_unknown(layer, traced) for layer in traced.layers), {}, {}, {}, 0)
    names = {alias: layer.name for layer in traced.layers for alias in layer.aliases}
    run = LabelRun(traced.graph_module, {opaque.name for opaque in traced.graph.opaque}, type(traced.model))
    with preserved(), quiet_inspection(), torch.no_grad():
        run.run(*example_tensors(traced))
    run.space.close()
    return Grouping(run, names).coupling()


def _unknown(layer: LayerFacts, traced: TracedModel) -> Group:
    why = next((opaque for opaque in traced.graph.opaque), None)
    reason = Reason("the model has no graph", why.reason if why else "", "", why.place if why else "")
    return Group(layer.name, (), (Member(layer.parameter, 0, layer.name, "produces"),), 0, (reason,), ())


def example_tensors(traced: TracedModel) -> list[torch.Tensor]:
    """The example, of its batch no more than two: channels are the same in all of it.

    Whole, if not every tensor begins with the batch: what looks like one may be the nodes of a graph.
    """
    size = traced.inputs.batch_size
    tensors = [tensor.clone() for tensor in traced.inputs.tensors()]
    if size <= 2 or GraphLimit.ONE_BATCH_SIZE in traced.graph.limits:
        return tensors
    batched = all(tensor.shape[0] == size for tensor in tensors if tensor.ndim)
    return [tensor[:2] if tensor.ndim else tensor for tensor in tensors] if batched else tensors

"""`couple`: which channels belong together, found by running the traced graph once on numbers instead of values.

Every axis of every parameter gets numbers of its own; the rules (`calls.py` has the table) say how they travel and
where they meet. What is joined is a **unit**: it leaves as a whole. Units that appear in exactly the same tensors make
a **group**: any of them may leave, as long as one stays.
"""

from __future__ import annotations

import torch

from dst_analyze.model.preserve import looking, preserved
from dst_analyze.model.tracing import TracedModel
from dst_analyze.slimming.grouping import Grouping
from dst_analyze.slimming.groups import Coupling
from dst_analyze.slimming.label_run import LabelRun

__all__ = ["Coupling", "couple"]


def couple(traced: TracedModel) -> Coupling:
    """The coupling of a traced model; without a graph nothing is known, and nothing is offered."""
    if traced.graph_module is None:
        return Coupling((), {}, {}, {}, 0)
    names = {alias: layer.name for layer in traced.layers for alias in layer.aliases}
    run = LabelRun(traced.graph_module, {opaque.name for opaque in traced.graph.opaque})
    with preserved(), looking(), torch.no_grad():
        run.run(*(tensor.clone() for tensor in traced.inputs.tensors()))
    run.space.close()
    return Grouping(run, names).coupling()

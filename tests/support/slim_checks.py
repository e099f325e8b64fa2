"""What a slim model is measured by: planned shapes, and the whole model with its removed channels zeroed.

The tests of slimming and benchmarks/slim_survey.py share it.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import fx

from dst_analyze.channels.coupling import couple_channels, example_tensors
from dst_analyze.channels.groups import Coupling
from dst_analyze.model.isolation import preserved
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.surgery.build import Removal, ShapeChecker, ShapeError, kept_units
from dst_analyze.slimming.surgery.cut_shapes import Slimming


def zero_removed(traced: TracedModel, removal: Removal, *, coupling: Coupling | None = None) -> fx.GraphModule:
    """Return the whole traced graph, the removed channels' weights zero wherever they are made, shifted or read.

    Where removal can be exact (`Group.inexact` is empty), it computes what `slim` computes.
    """
    assert traced.graph_module is not None
    coupling = coupling or couple_channels(traced)
    module, keep = copy.deepcopy(traced.graph_module), kept_units(coupling, removal)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, layout in coupling.parameters.items():
            for dim in range(len(layout.shape)) if name in parameters else ():
                gone = np.flatnonzero(~layout.kept_places(keep, dim))
                parameters[name].index_fill_(dim, torch.from_numpy(gone).to(parameters[name].device), 0)
    return module


def planned_shapes(coupling: Coupling, removal: Removal) -> dict[str, tuple[int, ...]]:
    """Return the shape that each parameter and buffer with channels will have."""
    keep = kept_units(coupling, removal)
    return {name: layout.shape_after(keep) for name, layout in coupling.parameters.items()}


def first_difference(module: fx.GraphModule, traced: TracedModel, removal: Removal, *, coupling: Coupling) -> str:
    """Return the first node of a slim model whose result does not have the planned shape; empty if there is none."""
    try:
        with preserved(module), torch.no_grad():
            slimming = Slimming(coupling, kept_units(coupling, removal))
            ShapeChecker(module.eval(), slimming).run(*example_tensors(traced))
    except ShapeError as error:
        return error.cause
    return ""

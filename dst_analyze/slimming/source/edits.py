"""A plan as a list of changes, for users who edit their own source or use another pruning tool."""

from __future__ import annotations

import pandas as pd
from torch import nn

from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.source.constructors import Imports, construct
from dst_analyze.slimming.source.literals import SourceError


def changed_lines(traced: TracedModel, slim: nn.Module) -> pd.DataFrame:
    """Return the layers whose constructor calls differ between the model and the slim one, with both calls."""
    assert traced.graph_module is not None
    before, after = dict(traced.graph_module.named_modules()), dict(slim.named_modules())
    rows = []
    for name, module in before.items():
        if name in after and not any(module.children()):
            old, new = _call(module), _call(after[name])
            if old != new:
                rows.append((name, old, new))
    own = {name: tuple(p.shape) for name, p in slim.named_parameters(recurse=True)}
    modules = {name for name, _, _ in rows}
    for name, parameter in traced.graph_module.named_parameters():
        if name in own and own[name] != tuple(parameter.shape) and name.rpartition(".")[0] not in modules:
            rows.append((name, f"shape {tuple(parameter.shape)}", f"shape {own[name]}"))
    return pd.DataFrame(rows, columns=["layer", "before", "after"])


def _call(module: nn.Module) -> str:
    try:
        return construct(module, Imports())
    except SourceError:  # a custom layer: show its parameters' shapes
        shapes = ", ".join(f"{name} {tuple(p.shape)}" for name, p in module.named_parameters(recurse=False))
        return f"{type(module).__name__}({shapes})"


def pruning_ratios(plan: SlimPlan) -> dict[str, float]:
    """Return the share of output channels that each layer loses, for torch_pruning's ``pruning_ratio_dict``."""
    return {
        layer: round(1 - group.new_width / group.width, 4)
        for group in plan.groups
        if group.removed
        for layer in group.layers
    }

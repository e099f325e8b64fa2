"""A plan as a list of changes, for users who edit their own source or use another pruning tool."""

from __future__ import annotations

import pandas as pd
from torch import nn

from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.source.constructors import Imports, construct
from dst_analyze.slimming.source.literals import SourceError
from dst_analyze.slimming.source.places import lines_of, remarks


def changed_lines(traced: TracedModel, slim: nn.Module) -> pd.DataFrame:
    """Return the layers that are built in another way in the slim model, with both calls and what to write where.

    ``line`` is a statement for the user's source, ``place`` the class and line where it belongs, and ``remark`` says
    what else has to change, or that the class cannot express it.
    """
    assert traced.graph_module is not None
    calls = layer_calls(traced, slim)
    changed = {name for name, (old, new) in calls.items() if old != new}
    own = {name: tuple(p.shape) for name, p in slim.named_parameters(recurse=True)}
    shapes = {
        name: (f"shape {tuple(parameter.shape)}", f"shape {own[name]}")
        for name, parameter in traced.graph_module.named_parameters()
        if name in own and own[name] != tuple(parameter.shape) and name.rpartition(".")[0] not in changed
    }
    lines = lines_of(traced.model, list(calls))
    rows = []
    for name, said in remarks(lines, calls).items():
        old, new = calls[name]
        line = lines.get(name)
        written = f"{line.target} = {new}" if line is not None and line.target else new
        rows.append((name, old, new, written, line.place if line else "", _with_item(line, said)))
    rows += [(name, old, new, "", "", "a parameter: give it this shape") for name, (old, new) in shapes.items()]
    return pd.DataFrame(rows, columns=["layer", "before", "after", "line", "place", "remark"])


def layer_calls(traced: TracedModel, slim: nn.Module) -> dict[str, tuple[str, str]]:
    """Return the call that builds each layer, before and after."""
    assert traced.graph_module is not None
    before, after = dict(traced.graph_module.named_modules()), dict(slim.named_modules())
    kinds = {name: type(module) for name, module in traced.model.named_modules()}
    return {
        name: (_call(module, kinds.get(name)), _call(after[name], kinds.get(name)))
        for name, module in before.items()
        if name in after and not any(module.children())
    }


def _with_item(line: object, said: str) -> str:
    item = getattr(line, "item", "")
    return "; ".join(filter(None, (f"item {item}" if item else "", said)))


def _call(module: nn.Module, kind: type[nn.Module] | None) -> str:
    """Return the call that builds a layer of a class; its parameters' shapes if the call is not known."""
    kind = kind if kind is not None and type(module) is nn.Module else type(module)
    weight = getattr(module, "weight", None)
    if kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") and weight is not None:
        return f"Conv1D({weight.shape[1]}, {weight.shape[0]})"  # outputs, inputs
    try:
        return construct(module, Imports())
    except SourceError:
        shapes = ", ".join(f"{name} {tuple(p.shape)}" for name, p in module.named_parameters(recurse=False))
        return f"{kind.__name__} with {shapes}" if shapes else kind.__name__


def pruning_ratios(plan: SlimPlan) -> dict[str, float]:
    """Return the share of output channels that each layer loses, for torch_pruning's ``pruning_ratio_dict``."""
    return {
        layer: round(1 - group.new_width / group.width, 4)
        for group in plan.groups
        if group.removed
        for layer in group.layers
    }

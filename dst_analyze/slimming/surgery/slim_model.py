"""`slim_model`: build the model that a plan describes."""

from __future__ import annotations

from typing import Any

import torch

from dst_analyze.channels.groups import Coupling
from dst_analyze.deprecation import renamed_arguments
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading.weights import first_difference, reinitialize_modules
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.surgery.build import slim


@renamed_arguments(fresh="reinitialize")
def slim_model(
    model: torch.nn.Module | TracedModel,
    plan: SlimPlan,
    example_inputs: Any = None,
    *,
    reinitialize: bool = False,
    coupling: Coupling | None = None,
) -> torch.fx.GraphModule:
    """Return the model that a plan describes, with the weights that are left, as a copy.

    Args:
        model: The model that the plan was made for.
        plan: The plan, of `suggest_widths` or `SlimPlan.load`.
        example_inputs: Inputs to trace the model with; zeros of the plan's input shapes by default.
        reinitialize: Draw new weights in every module that has ``reset_parameters``, as torch's modules do.
        coupling: The groups of channels, of `couple_channels`, if computed before.

    Returns:
        The slim model. It takes tensors in the order of the example's.

    Raises:
        ModelError: The plan is for another model.

    Example:
        >>> import pandas as pd, torch
        >>> from dst_analyze import rank_layers, slim_model, suggest_widths, trace_model
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> slim_model(net, plan).get_submodule("0")
        Linear(in_features=4, out_features=16, bias=True)
    """
    traced = model if isinstance(model, TracedModel) else _traced(model, plan, example_inputs)
    check_plan_fits(traced, plan)
    built = slim(traced, plan.removal, coupling=coupling)
    built.meta["plan"] = plan  # for what other formats say of it
    if reinitialize:
        reinitialize_modules(built)
    return built


def check_plan_fits(traced: TracedModel, plan: SlimPlan) -> None:
    """Raise if a plan was made for a model with other parameters."""
    assert traced.graph_module is not None
    given = {name: p.shape for name, p in traced.graph_module.named_parameters()}
    if difference := first_difference(plan.parameters, given, "parameter"):
        name, there, here = difference
        raise ModelError(
            f"the plan is for another model: {name} is {there} in the plan, {here} in the model",
            hint=f"the plan was made for {plan.model}; `dst-analyze slim` makes one for yours",
        )


def _traced(model: torch.nn.Module, plan: SlimPlan, example_inputs: Any) -> TracedModel:
    if example_inputs is None:
        if not plan.tensors_only:
            raise OptionError(
                "the model is called with more than tensors, which the plan does not keep",
                place="slim_model",
                hint="give example_inputs, as for trace_model",
            )
        example_inputs = Inputs(tuple(torch.zeros(i.shape, dtype=getattr(torch, i.dtype)) for i in plan.inputs))
    return trace_model(model, example_inputs)

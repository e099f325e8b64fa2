"""From evidence and budgets to a plan: widths, the channels that go, and the sizes of the model built from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.planning.budget import (
    DEFAULT_RULE,
    RULES,
    TOLERANCE,
    Budget,
    Cost,
    Widths,
    check_asked,
    why_kept,
    widths_for,
)
from dst_analyze.slimming.planning.density import Evidence
from dst_analyze.slimming.planning.plan_types import AXIS_WORDS, FrozenGroup, GroupPlan, Limits, SlimPlan, TensorShape
from dst_analyze.slimming.proof.timing import milliseconds
from dst_analyze.slimming.surgery.build import slim
from dst_analyze.sweep.training.device import Device

_LATENCY_TRIES = 7


def plan_widths(
    traced: TracedModel,
    coupling: Coupling,
    evidence: Evidence,
    *,
    rule: str = DEFAULT_RULE,
    limits: Limits,
    asked: Mapping[str, float],
) -> SlimPlan:
    """Return the plan that follows from evidence, with the sizes of the model built from it."""
    if not asked:
        raise OptionError("no target size of the model is given", hint="give --target-params or --target-macs")
    check_asked({**{f"target_{name}": share for name, share in asked.items()}, "rule": rule})
    if (
        traced.graph_module is not None
        and coupling.removable
        and all(why_kept(limits, group) for group in coupling.removable)
    ):
        raise ModelError(
            f"nothing may be removed: every group of channels is {why_kept(limits, coupling.removable[0])}",
            hint="leave out --only-clear: all groups then go by their evidence" if limits.unclear else "keep fewer",
        )
    if traced.graph_module is None or not coupling.removable:
        raise ModelError(
            "no channels of this model can be removed",
            hint="`dst-analyze inspect` says what the tracer could not follow; frozen groups name the reason",
        )

    def widths_of(shares: Mapping[str, float]) -> Widths:
        budgets = [Budget(cost_of(traced, coupling, name), share) for name, share in shares.items()]
        return widths_for(coupling.removable, evidence, RULES[rule], limits, budgets)

    counted = {name: share for name, share in asked.items() if name != "latency"}
    widths: Widths = {group.name: group.width for group in coupling.removable}
    if counted:
        widths |= widths_of(counted)
    if "latency" in asked:
        chosen = _for_latency(traced, coupling, asked["latency"], lambda params: widths_of({"params": params}))
        widths = {group: min(width, chosen.get(group, width)) for group, width in widths.items()}
    return plan_of(traced, coupling, widths, evidence, rule=rule, asked=asked, limits=limits)


def _for_latency(traced: TracedModel, coupling: Coupling, share: float, widths_of: Callable[[float], Widths]) -> Widths:
    """Return the largest widths whose model takes at most a share of the time, by bisection and timing."""
    assert traced.graph_module is not None
    dense, inputs = copy.deepcopy(traced.graph_module), traced.inputs.tensors()

    def ratio(widths: Widths) -> float:
        small = slim(traced, _first_units(coupling, widths), coupling=coupling)
        both = milliseconds((dense, small), lambda model: model(*inputs), Device(inputs[0].device.type))
        return both[1] / both[0]

    low, high = 0.0, 1.0
    for _ in range(_LATENCY_TRIES):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(widths_of(middle)) <= share else (low, middle)
    return widths_of(max(low, 1e-3))


def _first_units(coupling: Coupling, widths: Widths) -> dict[str, range]:
    return {group.name: range(widths[group.name], group.width) for group in coupling.removable if group.name in widths}


def cost_of(traced: TracedModel, coupling: Coupling, what: str) -> Cost:
    """Return the cost model for "params" or "macs"."""
    assert traced.graph_module is not None
    if what == "macs":
        run = {name for name, _ in traced.graph_module.named_parameters(remove_duplicate=False)}
        return Cost(coupling, {layer.parameter: layer.macs for layer in traced.layers if layer.parameter in run})
    inside = {name: p.numel() for name, p in traced.graph_module.named_parameters()}
    return Cost(coupling, inside, outside=_param_count(traced.model) - sum(inside.values()))


def plan_of(
    traced: TracedModel,
    coupling: Coupling,
    widths: Mapping[str, int],
    evidence: Evidence,
    *,
    rule: str,
    asked: Mapping[str, float],
    limits: Limits,
) -> SlimPlan:
    """Return the plan for widths in units; each group loses its least dense units, of equals the smallest weights."""
    assert traced.graph_module is not None
    # Without values, as on `meta`, units of equal density keep their order.
    weights = {name: p.detach() for name, p in traced.graph_module.named_parameters() if not p.is_meta}
    groups = []
    for group in coupling.removable:
        width = widths[group.name]
        order = np.lexsort((unit_magnitudes(coupling, group, weights), np.round(evidence[group.name].units, 6)))
        groups.append(
            GroupPlan(
                group=group.name,
                layers=group.layers("produces"),
                readers=group.layers("reads"),
                width=group.width * group.per_unit,
                new_width=width * group.per_unit,
                removed=tuple(sorted(order[: group.width - width].tolist())),
                units=group.width,
                density=round(evidence[group.name].density, 4),
                reason=why_kept(limits, group),
            )
        )
    removal = {group.group: group.removed for group in groups if group.removed}
    built = slim(traced, removal, coupling=coupling)
    flat = Inputs(tuple(traced.inputs.tensors()))
    small = trace_model(built, flat)
    latency = None
    if "latency" in asked:
        inputs = traced.inputs.tensors()
        models = copy.deepcopy(traced.graph_module), built
        before, after = milliseconds(models, lambda model: model(*inputs), Device(inputs[0].device.type), rounds=31)
        latency = round(after / before, 3)
    plan = SlimPlan(
        latency=latency,
        model=type(traced.model).__name__,
        parameters={name: tuple(p.shape) for name, p in traced.graph_module.named_parameters()},
        inputs=tuple(
            TensorShape(shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch."))
            for t in traced.inputs.tensors()
        ),
        tensors_only=all(
            isinstance(value, torch.Tensor) for value in (*traced.inputs.args, *traced.inputs.kwargs.values())
        ),
        rule=rule,
        asked=dict(asked),
        limits=limits,
        groups=tuple(groups),
        frozen=tuple(FrozenGroup(group=f.group, layers=f.layers, reason=f.reason) for f in coupling.frozen),
        params=_param_count(traced.model),
        new_params=_param_count(built),
        macs=traced.macs,
        new_macs=small.macs * flat.batch_size // traced.inputs.batch_size,
    )
    return plan.model_copy(update={"notes": (*_missed_budgets(plan, limits), *_outside(traced))})


def _param_count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _outside(traced: TracedModel) -> list[str]:
    """Return a note on the parameters that the outputs do not depend on: they leave with the rest."""
    assert traced.graph_module is not None
    count = _param_count(traced.model) - _param_count(traced.graph_module)
    if count <= 0:
        return []
    inside = {name for name, _ in traced.graph_module.named_parameters(remove_duplicate=False)}
    names = [name for name, _ in traced.model.named_parameters() if name not in inside]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return [f"{count:,} parameters take no part in eval mode ({shown}): the slim model is without them"]


def _missed_budgets(plan: SlimPlan, limits: Limits) -> list[str]:
    """Return notes on the budgets that are not met within the tolerance, with the reason."""
    notes, reached = [], plan.reached
    binding = [name for name, share in plan.asked.items() if abs(reached[name] - share) <= TOLERANCE * share]
    for name, share in plan.asked.items():
        if name in binding or (binding and reached[name] < share):
            continue  # another budget was the tighter one
        if reached[name] > share and plan.at_floor:
            needed = f"; what is needed keeps {limits.needed_share:.0%}" if limits.needed else ""
            why = f"every group that may be narrowed is at its floor, the rest stays (frozen, kept or unclear){needed}"
        elif reached[name] > share:
            why = f"widths are multiples of {limits.steps}"
        else:
            why = f"widths are multiples of {limits.steps}, and one step more is too large"
        meant, got = (f"{100 * value:.1f}".removesuffix(".0") for value in (share, reached[name]))
        notes.append(f"{got} % of the {AXIS_WORDS[name]} in place of {meant} %: {why}")
    return notes


def unit_magnitudes(coupling: Coupling, group: Group, weights: Mapping[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    """Return the squared norm of the weights that make each unit, to order units of equal density."""
    sums = np.zeros(group.width)
    for member in group.members:
        if member.role == "produces" and member.name in weights:
            moved = weights[member.name].float().movedim(member.dim, 0)
            sums += coupling.by_unit(group, member, moved.reshape(len(moved), -1).square().sum(1).cpu().numpy())
    return sums

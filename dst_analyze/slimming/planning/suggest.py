"""`suggest_widths`: from a ranking to a plan of the channels to remove, and `slim_model`, which builds it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.deprecation import renamed_arguments
from dst_analyze.errors import DataError, ModelError, OptionError
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading.weights import first_difference, reinitialize_modules
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.statistics.measures import COLLAPSED
from dst_analyze.run.files.masks import read_masks
from dst_analyze.run.files.paths import MASKS, trial_folder
from dst_analyze.run.record import WORKING, SweepRecord, TrialResult
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
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence, Masks, from_masks, from_ratios, late_ratios
from dst_analyze.slimming.planning.departures import Explainer
from dst_analyze.slimming.planning.depth import empty_branches
from dst_analyze.slimming.planning.ladder import ladder_of
from dst_analyze.slimming.planning.plan_types import FrozenGroup, GroupPlan, Limits, SlimPlan, TensorShape
from dst_analyze.slimming.planning.ranked import Ranked, needed_layers, ranked_layers, unclear_layers
from dst_analyze.slimming.proof.timing import milliseconds
from dst_analyze.slimming.surgery.build import slim
from dst_analyze.sweep.training.device import Device

DEFAULT_TARGET = {"params": 0.5}
_LATENCY_TRIES = 7
_RANK_FIRST = "pass rank_layers(record), or rank_layers(frame) of a table with the columns layer, alpha and remaining"
_REHEARSAL = "no slimmer architecture is advised: this was a rehearsal, which built and wrote a model without evidence"


def suggest_widths(
    traced: TracedModel,
    ranking: Ranking,
    *,
    target_params: float | None = None,
    target_macs: float | None = None,
    target_latency: float | None = None,
    round_to: int = 8,
    min_width: int = 1,
    keep: Sequence[str] = (),
    rule: str = DEFAULT_RULE,
    only_clear: bool = False,
    coupling: Coupling | None = None,
    rehearsal: bool = False,
) -> SlimPlan:
    """Return a plan with widths for a smaller model, from a ranking of its layers.

    The ranking of a sweep (`rank_layers(record)`) comes with its masks, which show the density of each channel. A
    ranking of a table of ratios (`rank_layers(frame)`) shows that of whole layers only; of their channels those with
    the smallest weights are removed.

    Args:
        traced: The model, of `trace_model`.
        ranking: The ranking of its layers, of `rank_layers`.
        target_params: The share of the parameters to keep; 0.5 if no target is given.
        target_macs: The share of the MACs to keep.
        target_latency: The share of the time of a forward pass to keep, measured on this machine.
        round_to: Widths are multiples of this.
        min_width: The least width of a layer, in channels.
        keep: Patterns of the names of layers that keep their width.
        rule: How evidence becomes widths: "balance", "density", "sqrt" or "units" (docs/slimming.md).
        only_clear: Keep the widths of layers that the ranking calls unclear; layers that it calls needed lose no more
            than if all layers were thinned alike.
        coupling: The groups of channels, of `couple_channels`, if computed before.
        rehearsal: Make a plan even without evidence, which is no advice.

    Returns:
        The plan, for `slim_model`, `verify_plan` and `SlimPlan.save`.

    Raises:
        OptionError: ``ranking`` is no ranking, or an option has an invalid value.
        DataError: No trial of the ranking can be used, or it ranks other layers.
        ModelError: No channels of the model can be removed.

    Example:
        >>> import pandas as pd, torch
        >>> from dst_analyze import rank_layers, suggest_widths, trace_model
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> [(group.group, group.width, group.new_width) for group in plan.groups]
        [('0', 32, 16)]
    """
    if not isinstance(ranking, Ranking):
        raise OptionError(f"widths are suggested from a ranking, not from a {type(ranking).__name__}", hint=_RANK_FIRST)
    coupling = coupling or couple_channels(traced)
    ranked, record = ranked_layers(ranking), ranking.record
    if not ranked.used and not rehearsal:
        raise ranked.no_evidence()
    evidence: Evidence
    if record is None:
        ratios = _used_ratios(traced, ranking, ranked)
        working, evidence = ranked.used, from_ratios(coupling, ratios)
    else:
        ratios = list(late_ratios(record, "remaining").values())
        working = frozenset(trial.key for trial in _working(record, ranked))
        evidence = sweep_evidence(coupling, record, ranked) if ranked.used else equal_evidence(coupling)
    limits = Limits(round_to=round_to, min_width=min_width, keep=tuple(keep))
    given = {"params": target_params, "macs": target_macs, "latency": target_latency}
    asked = {name: share for name, share in given.items() if share is not None} or DEFAULT_TARGET
    if only_clear:
        alike = math.sqrt(max(0.0, min(1.0, *asked.values())))
        held = {"unclear": unclear_layers(ranked), "needed": needed_layers(ranked), "needed_share": alike}
        limits = limits.model_copy(update=held)
    plan = plan_widths(traced, coupling, evidence, rule=rule, limits=limits, asked=asked)
    costs = {name: cost_of(traced, coupling, name) for name in ("params", "macs")}
    counted = {name: share for name, share in asked.items() if name != "latency"} or DEFAULT_TARGET
    budgets = {name: Budget(costs[name], share) for name, share in counted.items()}
    plan = Explainer(coupling, evidence, RULES[rule], limits, budgets, ranked).explained(plan)

    def widths_of(shares: Mapping[str, float]) -> Widths:
        wanted = [Budget(costs[name], share) for name, share in shares.items()]
        return widths_for(coupling.removable, evidence, RULES[rule], limits, wanted)

    notes = [*([_REHEARSAL] if rehearsal else []), *plan.notes]
    if ranked.used and not rehearsal and not working:
        notes.append(f"every trial scores below {WORKING:.0%} of the dense model, so none shows what the task needs")
    found = {
        "depth": empty_branches(traced, ratios),
        "ladder": ladder_of(traced, coupling, widths_of, costs, "macs" if set(counted) == {"macs"} else "params"),
        "trials": 0 if rehearsal else len(working or ranked.used),
        "notes": tuple(notes),
    }
    return plan.model_copy(update=found)


def equal_evidence(coupling: Coupling) -> Evidence:
    """Return evidence that is the same for every group."""
    return {group.name: GroupEvidence.equal(group.width) for group in coupling.removable}


def _used_ratios(traced: TracedModel, ranking: Ranking, ranked: Ranked) -> list[dict[str, float]]:
    """Return the layers' ratios at each usable alpha, for a ranking without a sweep."""
    if not {layer.name for layer in traced.layers} & {*ranked.labels}:
        raise DataError(
            "the ranking is of other layers than this model's",
            hint="layers are named as `dst-analyze inspect` shows them, e.g. "
            + ", ".join(repr(layer.name) for layer in traced.layers[:3]),
        )
    alphas, table = {key.alpha for key in ranked.used}, ranking.remaining()
    return [table[alpha].dropna().to_dict() for alpha in table.columns if alpha in alphas]


def sweep_evidence(coupling: Coupling, record: SweepRecord, ranked: Ranked) -> Evidence:
    """Return evidence from the final masks of the usable trials that do the task, or of all usable ones if none does.

    A layer whose thresholds were reset counts as collapsed, as it does in the ranking: its last mask shows only how
    long ago the reset was.
    """
    parameters = dict(zip(record.layers["layer"], record.layers["parameter"], strict=True))
    if not ranked.used:
        raise ranked.no_evidence()
    trials = _working(record, ranked) or _usable(record, ranked)

    def masks_of(trial: TrialResult) -> Masks:
        masks = read_masks(trial_folder(record.folder, trial.key) / MASKS)
        return {n: np.full(mask.shape, COLLAPSED) if n in trial.resets else mask for n, mask in masks.items()}

    return from_masks(coupling, parameters, map(masks_of, trials))


def _usable(record: SweepRecord, ranked: Ranked) -> list[TrialResult]:
    trials = [trial for alpha in record.alphas for trial in record.at(alpha)]
    return [trial for trial in trials if trial.key in ranked.used]


def _working(record: SweepRecord, ranked: Ranked) -> list[TrialResult]:
    """Return the usable trials that do the task."""
    return [trial for trial in _usable(record, ranked) if record.does_the_task(trial)]


def null_evidence(coupling: Coupling, record: SweepRecord) -> Evidence:
    """Return evidence from the null, that is, from the initial weights alone."""
    return from_ratios(coupling, list(late_ratios(record, "null").values()))


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
    weights = {name: p.detach() for name, p in traced.graph_module.named_parameters()}
    groups = []
    for group in coupling.removable:
        width = widths[group.name]
        order = np.lexsort((_magnitudes(coupling, group, weights), np.round(evidence[group.name].units, 6)))
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
        least = all(
            group.new_width < limits.least(group.layers, group.width) + limits.round_to
            for group in plan.groups
            if not group.reason
        )
        if reached[name] > share and least:
            needed = f"; what is needed keeps {limits.needed_share:.0%}" if limits.needed else ""
            why = f"every group that may be narrowed is at its floor, the rest stays (frozen, kept or unclear){needed}"
        elif reached[name] > share:
            why = f"widths are multiples of {limits.round_to}"
        else:
            why = f"widths are multiples of {limits.round_to}, and one more step is too many"
        notes.append(f"asked for {share:.1%} of the {name}, reached {reached[name]:.1%}: {why}")
    return notes


def _magnitudes(coupling: Coupling, group: Group, weights: Mapping[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    """Return the squared norm of the weights that make each unit, to order units of equal density."""
    sums = np.zeros(group.width)
    for member in group.members:
        if member.role == "produces" and member.name in weights:
            moved = weights[member.name].float().movedim(member.dim, 0)
            sums += coupling.by_unit(group, member, moved.reshape(len(moved), -1).square().sum(1).cpu().numpy())
    return sums


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

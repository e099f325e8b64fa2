"""`suggest_widths`: from a ranking to a plan of the channels to remove."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import OptionError
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.record import WORKING
from dst_analyze.slimming.planning.budget import (
    DEFAULT_RULE,
    RULES,
    Budget,
    Widths,
    check_asked,
    widths_for,
)
from dst_analyze.slimming.planning.density import Evidence, from_ratios, late_ratios
from dst_analyze.slimming.planning.departures import Explainer
from dst_analyze.slimming.planning.depth import empty_branches
from dst_analyze.slimming.planning.evidence import equal_evidence, sweep_evidence, table_ratios, working_trials
from dst_analyze.slimming.planning.ladder import ladder_of
from dst_analyze.slimming.planning.plan_types import Limits, RoundTo, SlimPlan
from dst_analyze.slimming.planning.plan_widths import cost_of, plan_widths
from dst_analyze.slimming.planning.proportions import width_excess
from dst_analyze.slimming.planning.ranked import needed_layers, ranked_layers, unclear_layers
from dst_analyze.slimming.planning.target import FALLBACK, SizeTarget, alpha_results, expected_target

_RANK_FIRST = "pass rank_layers(record), or rank_layers(frame) of a table with the columns layer, alpha and remaining"
_REHEARSAL = "no slimmer architecture is advised: this was a rehearsal, which built and wrote a model without evidence"


def suggest_widths(
    traced: TracedModel,
    ranking: Ranking,
    *,
    target: Literal["auto"] | None = None,
    target_params: float | None = None,
    target_macs: float | None = None,
    target_latency: float | None = None,
    round_to: RoundTo = "auto",
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
        target: "auto", the default, for the shares of parameters and MACs that the sweep's masks let one
            expect to be enough (half of them if they say nothing); not together with another target.
        target_params: The share of the parameters to keep.
        target_macs: The share of the MACs to keep.
        target_latency: The share of the time of a forward pass to keep, measured on this machine.
        round_to: Widths are multiples of this; "auto" for 8, or of 4, 2 or 1 where a layer is narrow.
        min_width: The least width of a layer, in channels.
        keep: Patterns of the names of layers that keep their width.
        rule: How evidence becomes widths: "balance", "density", "sqrt" or "units" (docs/explanation/slimming.md).
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
        ratios = table_ratios(traced, ranking, ranked)
        working, evidence = ranked.used, from_ratios(coupling, ratios)
    else:
        ratios = list(late_ratios(record, "remaining").values())
        working = frozenset(trial.key for trial in working_trials(record, ranked))
        evidence = sweep_evidence(coupling, record, ranked) if ranked.used else equal_evidence(coupling)
    limits = Limits(round_to=round_to, min_width=min_width, keep=tuple(keep))
    given = {"params": target_params, "macs": target_macs, "latency": target_latency}
    asked = {name: share for name, share in given.items() if share is not None}
    check_asked({"target": target, **{f"target_{name}": share for name, share in asked.items()}})
    size = None
    if not asked:
        quick = record is not None and record.config.quick
        expected = expected_target(alpha_results(ranking), quick=quick)
        size = SizeTarget(basis="rehearsal", share=FALLBACK) if rehearsal else expected
        asked = shares_of(traced, size.at(size.share))
    if only_clear:
        alike = math.sqrt(max(0.0, min(1.0, *asked.values())))
        held = {"unclear": unclear_layers(ranked), "needed": needed_layers(ranked), "needed_share": alike}
        limits = limits.model_copy(update=held)
    plan = plan_widths(traced, coupling, evidence, rule=rule, limits=limits, asked=asked)
    costs = {name: cost_of(traced, coupling, name) for name in ("params", "macs")}
    counted = {name: share for name, share in asked.items() if name != "latency"} or {"params": FALLBACK}
    budgets = {name: Budget(costs[name], share) for name, share in counted.items()}
    if ranked.used and not rehearsal:
        excess = width_excess(coupling.removable, evidence, costs["params"])
        wide = (group.model_copy(update={"excess": round(excess[group.group], 3)}) for group in plan.groups)
        plan = plan.model_copy(update={"groups": tuple(wide)})
    plan = Explainer(coupling, evidence, RULES[rule], limits, budgets, ranked).explained(plan)

    def widths_of(shares: Mapping[str, float]) -> Widths:
        wanted = [Budget(costs[name], share) for name, share in shares.items()]
        return widths_for(coupling.removable, evidence, RULES[rule], limits, wanted)

    notes = [*([_REHEARSAL] if rehearsal else []), *plan.notes]
    if ranked.used and not rehearsal and not working:
        notes.append(f"every trial scores below {WORKING:.0%} of the dense model, so none shows what the task needs")
    found = {
        "target": size,
        "depth": empty_branches(traced, ratios),
        "ladder": ladder_of(traced, coupling, widths_of, costs, "macs" if set(counted) == {"macs"} else "params"),
        "trials": 0 if rehearsal else len(working or ranked.used),
        "notes": tuple(notes),
    }
    return plan.model_copy(update=found)


def options_of(plan: SlimPlan) -> dict[str, Any]:
    """Return the options of `suggest_widths` that a plan was made with, but for its size."""
    limits = plan.limits
    return {
        "rule": plan.rule,
        "round_to": limits.round_to,
        "min_width": limits.min_width,
        "keep": limits.keep,
        "only_clear": bool(limits.needed_share),
    }


def shares_of(traced: TracedModel, size: Mapping[str, float]) -> dict[str, float]:
    """Return the budgets of a size that was not asked for, by axis: without MACs those of the parameters alone."""
    return {axis: share for axis, share in size.items() if axis == "params" or traced.macs}

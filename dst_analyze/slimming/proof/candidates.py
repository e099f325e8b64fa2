"""The candidates of a proof: the suggestion, the dense model, and models of the same size without its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import fx, nn

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence
from dst_analyze.slimming.planning.evidence import null_evidence
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_widths
from dst_analyze.slimming.proof.result import DENSE, FAN_IN, RANDOM, SLIM, UNIFORM
from dst_analyze.slimming.surgery.build import slim
from dst_analyze.sweep.training.trial import ModelSource

ALIKE = ", which here gives the same widths"


@dataclass(frozen=True)
class Candidate:
    """A model of a proof; ``plan`` is None for the dense one."""

    name: str
    about: str
    plan: SlimPlan | None


def list_candidates(
    traced: TracedModel, coupling: Coupling, record: SweepRecord | None, plan: SlimPlan
) -> list[Candidate]:
    """Return the suggestion, the dense model, and models of its size thinned alike, at random and by fan-in."""
    # The same budget as the suggestion, with the sizes that it has reached.
    counted = [name for name in plan.asked if name != "latency"] or ["params"]
    asked = {name: plan.reached[name] for name in counted}
    # The user's limits hold for all; unclear and needed layers are evidence, which only the suggestion may use.
    limits = plan.limits.model_copy(update={"unclear": (), "needed": ()})

    def of(evidence: Evidence) -> SlimPlan:
        return plan_widths(traced, coupling, evidence, rule="density", limits=limits, asked=asked)

    rng = np.random.default_rng(0)
    chance = {g.name: GroupEvidence.equal(g.width, float(rng.uniform(0.1, 1))) for g in coupling.removable}
    equal = {g.name: GroupEvidence.equal(g.width) for g in coupling.removable}
    found = [
        Candidate(DENSE, "the model as it is", None),
        Candidate(SLIM, "the suggestion", plan),
        Candidate(UNIFORM, "every group thinned alike", of(equal)),
        Candidate(RANDOM, "groups thinned at random", of(chance)),
    ]
    if record is not None:
        found.append(
            Candidate(FAN_IN, "what the initial weights alone would suggest", of(null_evidence(coupling, record)))
        )
    widths = _widths(plan)
    alike = [c.name for c in found if c.name != SLIM and c.plan is not None and _widths(c.plan) == widths]
    return [replace(c, about=f"{c.about}{ALIKE}") if c.name in alike else c for c in found]


def _widths(plan: SlimPlan) -> dict[str, int]:
    return {group.group: group.new_width for group in plan.groups}


class TensorCallAdapter(nn.Module):
    """A graph of tensors that is called with the arguments of the model it was made from."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self.graph = graph
        self._names = {str(node.target) for node in graph.graph.nodes if node.op == "placeholder"}

    def forward(self, *args: object, **kwargs: object) -> object:
        named = {name: value for name, value in kwargs.items() if value is not None}
        if self._names.issuperset(named):  # in any order, and without those that are optional
            return self.graph(*Inputs(args).tensors(), **named)
        return self.graph(*Inputs(args, kwargs).tensors())


def build_candidate(candidate: Candidate, traced: TracedModel, coupling: Coupling, source: ModelSource) -> nn.Module:
    """Return a candidate with untrained weights, drawn from the current seed.

    Weights that read fewer channels than they were drawn for are scaled up by the square root of the ratio, as their
    initialisation would have done, so that thinned models start on equal terms with the dense one.
    """
    dense = source.untrained()
    if candidate.plan is None:
        return dense
    built = slim(traced, candidate.plan.removal, coupling=coupling, weights=dense)
    with torch.no_grad():
        for name, factor in _factors(coupling, dict(built.named_parameters())).items():
            built.get_parameter(name).mul_(factor)
    return TensorCallAdapter(built)


def _factors(coupling: Coupling, parameters: Mapping[str, nn.Parameter]) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for member in {member for group in coupling.groups for member in group.members if member.role == "reads"}:
        if member.name in parameters:
            before = coupling.parameters[member.name].shape[member.dim]
            ratios[member.name] = ratios.get(member.name, 1.0) * before / parameters[member.name].shape[member.dim]
    return {name: ratio**0.5 for name, ratio in ratios.items()}

"""The candidates of a proof: the suggestion, the dense model, and models of the same size without its evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import fx, nn

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence, from_ratios
from dst_analyze.slimming.planning.evidence import equal_evidence, null_evidence
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_widths
from dst_analyze.slimming.proof.result import (
    DENSE,
    DEPTH,
    FAN_IN,
    FINE_TUNED,
    LONGER,
    MAGNITUDE,
    RANDOM,
    SLIM,
    UNIFORM,
    UNIFORM_MACS,
    UNIFORM_PARAMS,
    WORDS,
)
from dst_analyze.slimming.surgery.build import slim
from dst_analyze.sweep.training.trial import ModelSource

ALIKE = ", which here gives the widths of {}"
_SHALLOWEST, _DEEPEST = 1.0, 0.1
"""The densities of the first and the last layer, for widths from depth alone."""


@dataclass(frozen=True)
class Candidate:
    """A model of a proof; ``plan`` is None for the dense one.

    ``like`` names the candidate of the very same widths that is trained in its place. ``longer`` is how many times as
    long as the others it is trained.
    """

    name: str
    about: str
    plan: SlimPlan | None
    like: str = ""
    longer: int = 1


LONGER_DENSE = Candidate(f"{DENSE}-{LONGER}x", f"the dense model trained {LONGER} times as long", None, longer=LONGER)


class Candidates:
    """The models of a proof, at the size of a plan.

    Those of the initial weights, of depth and of magnitude follow the plan's own rule: they differ from the
    suggestion only in their evidence.
    """

    def __init__(self, traced: TracedModel, coupling: Coupling, record: SweepRecord | None, plan: SlimPlan) -> None:
        self._traced, self._coupling, self._plan = traced, coupling, plan
        # What the suggestion was asked for, with the size that it has reached on the axis that decided.
        counted = {name: share for name, share in plan.asked.items() if name != "latency"}
        self._asked = {**counted, plan.decisive: plan.reached[plan.decisive]}
        # The user's limits hold for all; unclear and needed layers are evidence, which only the suggestion may use.
        self._limits = plan.limits.model_copy(update={"unclear": (), "needed": ()})
        self._random: dict[int, Candidate] = {}  # by seed: a plan builds and traces its model
        equal = equal_evidence(coupling)
        found = [
            Candidate(DENSE, "the model as it is", None),
            Candidate(SLIM, "the suggestion", plan),
            Candidate(UNIFORM, "every group thinned alike", self._plan_of(equal, "density")),
        ]
        for other, name in (("params", UNIFORM_PARAMS), ("macs", UNIFORM_MACS)):
            if (other not in self._asked or len(self._asked) > 1) and getattr(plan, other):
                about = f"every group thinned alike, to the suggestion's {WORDS[other]}"
                asked = {other: plan.reached[other]}
                found.append(Candidate(name, about, self._plan_of(equal, "density", asked)))
        found.append(self.random(0))
        if record is not None:
            about = "what the initial weights alone would suggest"
            found.append(Candidate(FAN_IN, about, self._plan_of(null_evidence(coupling, record))))
        found.append(Candidate(DEPTH, "later layers thinned more", self._plan_of(self._by_depth())))
        self.fixed = self._without_repeats(found)

    def random(self, seed: int) -> Candidate:
        """Return the model whose groups are thinned at random, with widths of its own for each seed."""
        if seed not in self._random:
            rng = np.random.default_rng(seed)
            groups = self._coupling.removable
            chance = {g.name: GroupEvidence.equal(g.width, float(rng.uniform(0.1, 1))) for g in groups}
            about = "groups thinned at random, anew for each seed"
            self._random[seed] = Candidate(RANDOM, about, self._plan_of(chance, "density"))
        return self._random[seed]

    def by_magnitude(self, ratios: Sequence[Mapping[str, float]]) -> list[Candidate]:
        """Return all models, with that of the magnitudes of a trained dense model: what is left of each layer."""
        about = "what magnitude pruning of the trained dense model would suggest"
        made = Candidate(MAGNITUDE, about, self._plan_of(from_ratios(self._coupling, ratios)))
        return self._without_repeats([*self.fixed, made])

    def fine_tuned(self) -> Candidate:
        """Return the model of the suggestion's widths that starts from the weights of a trained dense model."""
        about = "the suggestion's widths with the weights of the trained dense model, trained on"
        return Candidate(FINE_TUNED, about, self._plan)

    def _plan_of(self, evidence: Evidence, rule: str = "", asked: Mapping[str, float] | None = None) -> SlimPlan:
        return plan_widths(
            self._traced,
            self._coupling,
            evidence,
            rule=rule or self._plan.rule,
            limits=self._limits,
            asked=asked or self._asked,
        )

    def _by_depth(self) -> Evidence:
        """Return evidence that falls from the first layer to the last."""
        names = [layer.name for layer in self._traced.layers]
        densities = np.geomspace(_SHALLOWEST, _DEEPEST, len(names)).tolist()
        return from_ratios(self._coupling, [dict(zip(names, densities, strict=True))])

    @staticmethod
    def _without_repeats(found: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates; one with the widths of the suggestion, or of one before it, is not trained."""
        first: dict[str, str] = {}
        kept = []
        for candidate in found:
            if candidate.plan is None or candidate.name == RANDOM or candidate.like:
                kept.append(candidate)
                continue
            like = first.setdefault(_widths(candidate.plan), candidate.name)
            if like == candidate.name:
                kept.append(candidate)
            else:
                kept.append(replace(candidate, about=f"{candidate.about}{ALIKE.format(like)}", like=like))
        return kept


def _widths(plan: SlimPlan) -> str:
    return json.dumps({group.group: group.new_width for group in plan.groups})


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

"""Reasons why widths depart from the ranking: the factor of the width rule that outweighs the layer's rank.

The share that a group keeps is a product (see `WidthRule`) of the densities in the layers that make and read it, the
number of layers that use it, its price and its width. A row departs if its layers rank first and it keeps clearly more
of its width than if all groups were thinned alike, or if they rank last and it keeps clearly less. The reason is the
factor that is furthest from the mean of all groups in that direction; if none explains it, rounding or a limit does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.slimming.planning.budget import Budget, WidthRule, allowed_widths, prices_at, share_alike, why_kept
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence
from dst_analyze.slimming.planning.plan_types import FrozenGroup, GroupPlan, Limits, SlimPlan
from dst_analyze.slimming.planning.ranked import Ranked
from dst_analyze.text import shorten_middle

_MARGIN = 0.05  # of a group's width: the least difference from thinning all groups alike
_NAMED, _NAME = 2, 32  # layers named in a reason, and the terminal cells that each may take
_WORDS = {"params": "parameters", "macs": "MACs"}


@dataclass(frozen=True)
class Explainer:
    """The inputs of one plan's widths, which explain its departures from the ranking."""

    coupling: Coupling
    evidence: Evidence
    rule: WidthRule
    limits: Limits
    budgets: Mapping[str, Budget]
    """The budgets by cost: "params", "macs"."""
    ranked: Ranked

    def explained(self, plan: SlimPlan) -> SlimPlan:
        """Return the plan with the ranking's labels and ranks in every row, and why a row departs from them."""
        why = self._departures(plan)
        groups = [self._with_rank(group).model_copy(update={"why": why.get(group.group, "")}) for group in plan.groups]
        frozen = [self._frozen(group) for group in plan.frozen]
        found = {"groups": tuple(groups), "frozen": tuple(frozen), "ranked": len(self.ranked.ranks)}
        return plan.model_copy(update=found)

    def _with_rank(self, group: GroupPlan) -> GroupPlan:
        ranks = tuple(self.ranked.ranks.get(layer) for layer in group.layers)
        return group.model_copy(update={"label": self.ranked.label_of(group.layers), "ranks": ranks})

    def _frozen(self, frozen: FrozenGroup) -> FrozenGroup:
        """Return a frozen group with the ranks of its redundant layers, which could shrink if it were not frozen."""
        made = self.coupling.group(frozen.group).layers("produces")
        first = [layer for layer in made if self.ranked.side_of(layer) > 0]
        return frozen.model_copy(update={"first": tuple(first), "why": self._named(first)}) if first else frozen

    def _departures(self, plan: SlimPlan) -> dict[str, str]:
        groups = {g.name: g for g in self.coupling.removable if not why_kept(self.limits, g)}
        rows = [row for row in plan.groups if row.group in groups]
        widths = {row.group: float(row.units - len(row.removed)) for row in plan.groups}
        what = max(self.budgets, key=lambda name: self.budgets[name].used(widths))
        cost = self.budgets[what].cost
        spent = cost.of(widths)
        alike = share_alike(list(groups.values()), lambda thinned: cost.of(thinned) / spent)
        if len(groups) < 2 or alike >= 1:
            return {}
        terms = self._terms(list(groups.values()), prices_at(cost, groups.values(), widths))
        dependent_shares = cost.dependent_shares({})
        found = {}
        for row in rows:
            group, share = groups[row.group], widths[row.group] / row.units
            side = self._side(group, share, alike)
            layers = [layer for layer in row.layers if side and self.ranked.side_of(layer) == side]
            if not layers:
                found[row.group] = self._shared(row.layers)
                continue
            name = self._strongest(terms[row.group], math.log(share / alike), side)
            reason = self._words(name, group, self.evidence[row.group], dependent_shares[row.group], what, side, share)
            amount = "more" if side > 0 else "less"
            said = f"keeps {amount} than its rank suggests" if len(layers) == 1 else f"keep {amount} than ranks suggest"
            who = f"{self._named(layers)} " if len(row.layers) > 1 else ""
            found[row.group] = f"{who}{said}: {reason}"
        return found

    def _shared(self, layers: Sequence[str]) -> str:
        """Return which layers share one width, where some rank as redundant and others as needed."""
        ranked = sorted((layer for layer in layers if layer in self.ranked.ranks), key=self.ranked.ranks.__getitem__)
        if {self.ranked.side_of(layer) for layer in ranked} >= {1, -1}:
            return f"one width for {len(layers)} layers, {self._named(ranked[:1])} to {self._named(ranked[-1:])}"
        return ""

    def _side(self, group: Group, share: float, alike: float) -> int:
        """Return 1 if a group keeps clearly more than if all were thinned alike, -1 if clearly less, else 0."""
        steps = allowed_widths(self.limits, group)
        step = max((b - a for a, b in pairwise(steps)), default=1) / group.width
        margin = max(_MARGIN, step / 2)
        return (share > alike + margin) - (share < alike - margin)

    def _terms(self, groups: Sequence[Group], prices: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Return the logarithm of each factor of each group's share, less the mean over groups."""
        logs: dict[str, dict[str, float]] = {}
        typical = float(np.mean([math.log(self.evidence[group.name].density) for group in groups]))
        for group in groups:
            found = self.evidence[group.name]
            seen = {role: count * (math.log(density) - typical) for role, (density, count) in found.ends.items()}
            if not seen:
                seen = {"produces": math.log(found.density) - typical}
            factors = self.rule.factors(group, prices[group.name])
            logs[group.name] = {role: self.rule.power * value for role, value in seen.items()}
            logs[group.name] |= {name: math.log(factor) for name, factor in factors.items()}
        for name in ("uses", "price", "width"):
            mean = float(np.mean([terms.get(name, 0.0) for terms in logs.values()]))
            for terms in logs.values():
                if name in terms:
                    terms[name] -= mean
        return logs

    def _strongest(self, terms: Mapping[str, float], departs: float, side: int) -> str:
        """Return the factor that moves a share furthest to one side, or "rounding" if none explains it."""
        name = max(terms, key=lambda term: side * terms[term])
        rest = departs - sum(terms.values())
        return "rounding" if side * terms[name] < min(0.02, side * rest) or side * terms[name] <= 0 else name

    def _words(
        self, name: str, group: Group, found: GroupEvidence, dependent_share: float, what: str, side: int, share: float
    ) -> str:
        makers, readers = group.layers("produces"), group.layers("reads")
        if name in ("produces", "uses") and len(makers) > 1:
            return f"{len(makers)} layers make the same channels ({_names(makers)})"
        if name == "uses":
            return f"{len(readers)} layers read it" if side > 0 else "few layers use it"
        if name == "price":
            saves = "less" if side > 0 else "more"
            return (
                f"narrowing it saves {saves} than narrowing others ({_percent(dependent_share)} of the {_WORDS[what]})"
            )
        if name == "reads":
            dense = "dense" if side > 0 else "sparse"
            return f"what reads it is {dense} ({_names(readers)}: {_percent(found.ends['reads'][0])} left)"
        if name == "width":
            width = group.width * group.per_unit
            return f"it is {'narrow' if side > 0 else 'wide'} ({width} channels)"
        if name == "produces":
            density = found.ends.get("produces", (found.density, 1.0))[0]
            return f"the trials that do the task left {_percent(density)} of its weights"
        if share >= 1:
            return "all of it is left"
        return f"widths are multiples of {self.limits.steps}, at least {self.limits.min_width}"

    def _named(self, layers: Sequence[str]) -> str:
        """Return the first layers with their ranks: "conv2 (rank 1 of 9, redundant)"."""
        ranked, count = self.ranked, len(self.ranked.ranks)
        ordered = sorted(layers, key=lambda layer: ranked.ranks.get(layer, math.inf))
        parts = [
            f"{shorten_middle(layer, _NAME)} (rank {ranked.ranks[layer]:g} of {count}, {ranked.labels[layer]})"
            for layer in ordered[:_NAMED]
            if layer in ranked.ranks
        ]
        more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
        return ", ".join(parts) + more


def _names(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - _NAMED} more" if len(layers) > _NAMED else ""
    return ", ".join(shorten_middle(layer, _NAME) for layer in layers[:_NAMED]) + more


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"

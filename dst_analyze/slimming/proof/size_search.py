"""The search for the smallest size that is level with the dense model, by training, size by size.

It begins at the size that the sweep's masks let one expect. While a size is level with the dense model the next smaller
one is tried; if the first is not, larger ones are, until one is. Every size is trained until it is decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dst_analyze.run.events import Notice
from dst_analyze.run.record import ScoreKind
from dst_analyze.slimming.planning.ladder import SHARES
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.target import RungStanding, SizeTarget, TriedSize
from dst_analyze.slimming.proof.candidates import Candidate
from dst_analyze.slimming.proof.comparison import Lead, compare_with_others
from dst_analyze.slimming.proof.result import DENSE, LEVEL, SLIM, Seeds, looks_of
from dst_analyze.slimming.proof.trainings import CandidateRun, TrainingCount, Trainings
from dst_analyze.text import size_text

_NEAR = 1.15  # sizes of the ladder that are closer to the expected one than this factor are not tried beside it


def sizes_to_try(expected: float) -> tuple[float, ...]:
    """Return the sizes that a search may try, the largest first."""
    others = [share for share in SHARES if max(share / expected, expected / share) > _NEAR]
    return tuple(sorted({expected, *others}, reverse=True))


def search_size(
    trainings: Trainings, plan_at: Callable[[float], SlimPlan], expected: SizeTarget, seeds: Seeds
) -> SizeTarget:
    """Return the smallest size that is level with the dense model, and all that were tried.

    Args:
        trainings: The trainings of the run.
        plan_at: Returns the plan of a size, a share of parameters and MACs.
        expected: The size where the search begins.
        seeds: The number of trainings of each size; "auto" adds seeds until it is decided.

    Returns:
        The size found. If none is level, it is the smallest that was not decided, else the largest of all.
    """
    return _Search(trainings, plan_at, sizes_to_try(expected.share), looks_of(seeds)).run(expected)


def search_count(sizes: Sequence[float], looks: Sequence[int]) -> TrainingCount:
    """Return how many trainings a search may take: one size, decided at once, or all of them to the last seed."""
    return TrainingCount(2 * looks[0], (1 + len(sizes)) * looks[-1])


@dataclass
class _Search:
    trainings: Trainings
    plan_at: Callable[[float], SlimPlan]
    sizes: Sequence[float]
    looks: Sequence[int]
    scores: dict[str, list[float | None]] = field(default_factory=dict)
    tried: dict[float, TriedSize] = field(default_factory=dict)

    def run(self, expected: SizeTarget) -> SizeTarget:
        self._announce()
        start = self.sizes.index(expected.share)
        if self._is_level(start):
            next((at for at in range(start + 1, len(self.sizes)) if not self._is_level(at)), None)
        else:
            next((at for at in range(start - 1, -1, -1) if self._is_level(at)), None)
        found = [size for size in self.tried.values() if size.standing == "level"]
        found = found or [size for size in self.tried.values() if size.standing == "open"]
        share = min(size.share for size in found) if found else self.sizes[0]
        tried = tuple(self.tried.values())
        macs = None if expected.macs is None else expected.at(share)["macs"]
        return SizeTarget(basis="proof", share=share, macs=macs, left=expected.left, alpha=expected.alpha, tried=tried)

    def _announce(self) -> None:
        """Say what the search costs, before it begins."""
        cost = self.trainings.cost_words(search_count(self.sizes, self.looks))
        self.trainings.listener(Notice(f"the search for the smallest size that is level: {cost}"))

    def _is_level(self, at: int) -> bool:
        """Train one size beside the dense model until it is decided, and return whether it is level."""
        share = self.sizes[at]
        name, plan = size_text(share), self.plan_at(share)
        candidates = {DENSE: Candidate(DENSE, "", None), name: Candidate(SLIM, "", plan)}
        for count in self.looks:
            self._train(candidates, count)
            lead = self._lead(name)
            standing = standing_of(lead, self.trainings.task.score, self._dense_mean())
            if standing != "open":
                break
        known = {key: None if not math.isfinite(v) else v for key, v in vars(lead).items()}
        self.tried[share] = TriedSize(
            share=share,
            params=plan.new_params,
            standing=standing,
            lead=known["mean"],
            low=known["low"],
            high=known["high"],
            seeds=len(self.scores[name]),
        )
        words = {"level": "level with", "below": "below", "open": "not shown to be level with"}[standing]
        self.trainings.listener(Notice(f"a size of {name} is {words} the dense model, {count} seeds"))
        return standing == "level"

    def _train(self, candidates: dict[str, Candidate], count: int) -> None:
        runs = [
            (name, CandidateRun(candidate, seed, "" if candidate.plan is None else f"at {name}"))
            for seed in range(count)
            for name, candidate in candidates.items()
            if seed >= len(self.scores.get(name, ()))
        ]
        for (name, _), score in zip(runs, self.trainings.scores([run for _, run in runs]), strict=True):
            self.scores.setdefault(name, []).append(score)

    def _lead(self, name: str) -> Lead:
        """Return the lead of a size over the dense model; the intervals of all sizes hold together."""
        sign = -1 if self.trainings.task.score == "loss" else 1
        signed = {
            key: [None if score is None else sign * score for score in found] for key, found in self.scores.items()
        }
        over = compare_with_others(
            signed.pop(DENSE), signed, apart=(), looks=len(self.looks), comparisons=len(self.sizes)
        )[name]
        return Lead(-over.mean, -over.high, -over.low)

    def _dense_mean(self) -> float:
        known = [score for score in self.scores[DENSE] if score is not None]
        return sum(known) / len(known) if known else math.nan


def standing_of(lead: Lead, score: ScoreKind, dense: float) -> RungStanding:
    """Return how a size stands: level if it is surely not worse than the dense model by more than `LEVEL`."""
    if math.isnan(lead.mean):  # every training of the size diverged
        return "below"
    within = LEVEL[score] * (1 if score == "accuracy" else abs(dense))
    if lead.low >= -within:
        return "level"
    return "below" if lead.high < 0 else "open"

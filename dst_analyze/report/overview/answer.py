"""The answer in one sentence: how much of the network can go, and how far that is proven."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, REDUNDANT, UNCLEAR, Verdict
from dst_analyze.report.overview.task import Task, task_of
from dst_analyze.run.caveats import Title, notes_of
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.result import DENSE, SLIM, Verification
from dst_analyze.text import short

_PARTS = {
    1 / 10: "A tenth", 1 / 5: "A fifth", 1 / 4: "A quarter", 1 / 3: "A third", 2 / 5: "Two fifths", 1 / 2: "Half",
    3 / 5: "Three fifths", 2 / 3: "Two thirds", 3 / 4: "Three quarters", 4 / 5: "Four fifths", 9 / 10: "Nine tenths",
}  # fmt: skip
_NEAR = 0.015  # distance within which a share is written as a fraction
_NOTHING = 0.005  # share of the parameters below which nothing is saved
_BECAUSE: dict[str, str] = {
    Title.HARDLY_LEARNED: "the dense model has hardly learned",
    Title.NO_EFFECT: "what remains does not depend on the strength of pruning",
    Title.NOTHING_PRUNED: "nothing was pruned",
    Title.BROKEN: "no pruned model still does the task",
}
"""Notes that leave a sweep without evidence, each in a clause."""


class Standing(StrEnum):
    """What is known about the suggested network."""

    TEST_RUN = "test run"  # a few steps, to see that everything works
    NO_PLAN = "no plan"
    NO_EVIDENCE = "no evidence"  # the sweep says nothing about the layers
    NOTHING = "nothing to save"
    UNPROVEN = "not proven yet"
    UNFINISHED = "the proof did not finish"
    TRAINED = "trained, but not proven"  # too few seeds to exclude a loss
    DOUBTFUL = "doubtful"  # on average it scores far below the dense model; too few seeds to be sure
    PROVEN = "proven"
    COSTLY = "costly"  # it certainly scores far below the dense model
    LOST = "lost"  # another network of its size is better


@dataclass(frozen=True)
class Answer:
    """The answer of a run: a headline, its numbers, and the state of the proof; none ends with a full stop."""

    standing: Standing
    headline: str
    detail: str = ""
    proof: str = ""
    size: str = ""  # why the suggested network has its size

    @property
    def sentence(self) -> str:
        """The whole answer on one line."""
        rest = "; ".join(filter(None, (self.detail, self.proof)))
        return f"{self.headline}: {rest}" if rest else self.headline


def answer_of(record: SweepRecord, ranking: Ranking, plan: SlimPlan | None, proof: Verification | None) -> Answer:
    """Return the answer of a run; the proof counts most, then the plan, then the ranking."""
    if plan is not None and not plan.is_advice:
        return Answer(Standing.TEST_RUN, "A test run of a few steps: nothing here is a result")
    on = " (on stand-in data)" if record.manifest.data.stand_in else ""
    if proof is not None and plan is not None and (pairs := _pairs(proof)) is not None:
        return _proven(plan, proof, pairs, on)
    title = without_evidence(record)
    if title is not None or (ranking.verdict is Verdict.NONE and not ranking.statistics.similar):
        why = ranking.why if title is None else _BECAUSE[title]
        return Answer(Standing.NO_EVIDENCE, "This sweep does not show which layers are redundant", why)
    if plan is None:
        return Answer(Standing.NO_PLAN, _labels(ranking), "no slimmer network has been suggested yet")
    if 1 - plan.new_params / plan.params < _NOTHING:
        return Answer(Standing.NOTHING, "No part of this network is suggested to go")
    standing = Standing.UNPROVEN if proof is None else Standing.UNFINISHED
    headline = f"{part_words(plan)} of this network could go{on}"
    return Answer(standing, headline, size_words(plan), str(standing), plan.size_reason)


def without_evidence(record: SweepRecord) -> str | None:
    """Return the title of the note that leaves a sweep without evidence; None if there is none."""
    return next((note.title for note in notes_of(record) if note.title in _BECAUSE), None)


def _proven(plan: SlimPlan, proof: Verification, pairs: np.ndarray, on: str) -> Answer:
    slim, dense = (float(mean) for mean in pairs.mean(axis=0))
    scores = f"{proof.score} {score_words(slim, proof.score)} against {score_words(dense, proof.score)} dense"
    trained = f"trained from scratch with {len(pairs)} seed{'s' if len(pairs) != 1 else ''}"
    detail, why = f"{size_words(plan)}, {scores}", plan.size_reason
    worse = [entry.name for entry in proof.rivals("worse")]
    if worse:
        headline = "Do not follow the suggested widths"
        return Answer(
            Standing.LOST, headline, detail, f"trained alike, {' and '.join(worse)} of its size is better", why
        )
    if 1 - plan.new_params / plan.params < _NOTHING:
        return Answer(Standing.NOTHING, "No part of this network is suggested to go", scores, trained)
    task = task_of(proof) or Task.PERHAPS_LOST  # there are pairs
    standing, may, certain = _BY_TASK[task]
    cost = f" at a cost of {_cost_words(proof)}" if task is Task.KEPT_AT_A_COST else ""
    state = f"proven: {trained}" if certain else f"{trained}, too few to prove it"
    return Answer(standing, f"{part_words(plan)} of this network {may}{cost}{on}", detail, state, why)


_BY_TASK = {
    Task.KEPT: (Standing.PROVEN, "can go", True),
    Task.KEPT_AT_A_COST: (Standing.PROVEN, "can go", True),
    Task.PERHAPS_KEPT: (Standing.TRAINED, "could go", False),
    Task.PERHAPS_LOST: (Standing.DOUBTFUL, "can probably not go without a loss", False),
    Task.LOST: (Standing.COSTLY, "cannot go without a loss", True),
}
"""The standing of a trained network, what is said of the part that it lacks, and whether that is certain."""


def _cost_words(proof: Verification) -> str:
    """Return how much worse than the dense model the network is, in words."""
    lead = abs(proof.lead(DENSE)[0])
    if proof.score == "accuracy":
        return f"{100 * lead:.1f} points of accuracy"
    return f"{lead:.2g} of {proof.score}"


def _pairs(proof: Verification) -> np.ndarray | None:
    """Return the scores of the slim and the dense model for each seed that both finished; None if there is none."""
    scores = zip(proof.entry(SLIM).scores, proof.entry(DENSE).scores, strict=False)  # dense may have fewer
    found = [(slim, dense) for slim, dense in scores if slim is not None and dense is not None]
    return np.array(found) if found else None


def _labels(ranking: Ranking) -> str:
    """Return how many layers are redundant and needed."""
    if ranking.verdict is Verdict.NONE:
        return "All layers keep about the same share: none is more redundant than another"
    counts = ranking.table["label"].value_counts()
    redundant, needed, average, unclear = (int(counts.get(name, 0)) for name in (REDUNDANT, NEEDED, AVERAGE, UNCLEAR))
    total = len(ranking.table)
    if not redundant and not needed:
        rest = f"{average} keep about as much as each other" if average else f"{unclear} are unclear"
        return f"None of {total} layers is clearly redundant or needed; {rest}"
    be = ["is" if count < 2 else "are" for count in (redundant, needed)]
    return f"{redundant or 'None'} of {total} layers {be[0]} redundant, {needed or 'none'} {be[1]} needed"


# --- words ---------------------------------------------------------------------------------------------------------


def part_words(plan: SlimPlan) -> str:
    """Return the share of the parameters that would go, as the beginning of a sentence."""
    gone = 1 - plan.new_params / plan.params
    near = min(_PARTS, key=lambda part: abs(part - gone))
    if gone > 0.99:
        return "Over 99 %"
    return _PARTS[near] if abs(near - gone) <= _NEAR else f"{gone:.0%}".replace("%", " %")


def sentence(clause: str) -> str:
    """Return a clause as a sentence: with a capital and a full stop."""
    return f"{clause[:1].upper()}{clause[1:]}."


def size_words(plan: SlimPlan) -> str:
    """Return the parameters before and after, and what is left of the MACs."""
    macs = f", MACs to {plan.new_macs / plan.macs:.0%}" if plan.macs and plan.new_macs is not None else ""
    return f"{short(plan.params)} → {short(plan.new_params)} parameters{macs.replace('%', ' %')}"


def score_words(value: float | None, kind: str) -> str:
    """Return a score as text: an accuracy in percent, a loss as a number."""
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:.1f} %" if kind == "accuracy" else f"{value:.4g}"

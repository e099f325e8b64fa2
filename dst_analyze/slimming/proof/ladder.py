"""The proof of a ladder: the suggestion and its rivals trained at several sizes, the dense model once for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from dst_analyze.errors import OptionError
from dst_analyze.run.events import Notice
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.ladder import SHARES
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.candidates import Candidate
from dst_analyze.slimming.proof.ladder_result import Axis, LadderProof, LadderRung, rung_name
from dst_analyze.slimming.proof.result import DENSE, Seeds, looks_of
from dst_analyze.slimming.proof.trainings import CandidateRun, TrainingCount, Trainings
from dst_analyze.slimming.proof.verify import PlanProof, check_seeds

PlanAt = Callable[[Axis, float], SlimPlan]
"""Returns the plan at a share of the parameters or MACs."""

Sizes = Sequence[tuple[Axis, float]]


def sizes_of(rungs: Sequence[float] | None, axes: Sequence[Axis]) -> list[tuple[Axis, float]]:
    """Return the sizes of a ladder, from large to small for each axis."""
    shares = sorted(set(rungs or SHARES), reverse=True)
    wrong = next((share for share in shares if not 0 < share < 1), None)
    if wrong is not None:
        raise OptionError(
            f"{wrong:g} is not a share between 0 and 1", place="--rungs", hint="give some such as 0.5,0.1"
        )
    return [(axis, share) for axis in axes for share in shares]


class Ladder:
    """The proofs of several sizes of one suggestion."""

    def __init__(self, trainings: Trainings, plan_at: PlanAt, sizes: Sizes, record: SweepRecord) -> None:
        self._trainings, self._record = trainings, record
        both = len({axis for axis, _ in sizes}) > 1
        self._plans = {size: plan_at(*size) for size in sizes}
        self._proofs = {
            (axis, share): PlanProof(trainings, plan, record, f"at {rung_name(axis, share, both=both)}")
            for (axis, share), plan in self._plans.items()
        }

    def count(self, seeds: Seeds) -> TrainingCount:
        """Return how many trainings there will be; the dense model's are those of one size."""
        looks, shared = looks_of(seeds), len(self._proofs) - 1
        whole = reduce(add, (proof.count(seeds) for proof in self._proofs.values()))
        dense = Candidate(DENSE, "", None)
        kept = sum(self._trainings.is_done(CandidateRun(dense, seed)) for seed in range(looks[0]))
        return TrainingCount(
            whole.least - shared * looks[0], whole.most - shared * looks[-1], whole.done - shared * kept
        )

    def cost_words(self, seeds: Seeds) -> str:
        """Return the cost of the ladder in words."""
        count = len(self._proofs)
        return f"the ladder: {count} size{'s' if count > 1 else ''}, {self._trainings.cost_words(self.count(seeds))}"

    def run(self, seeds: Seeds) -> LadderProof:
        """Train every size and return the ladder."""
        check_seeds(seeds)
        here = self._trainings
        here.listener(Notice(self.cost_words(seeds)))
        rungs = []
        for (axis, share), proof in self._proofs.items():
            here.listener(Notice(f"the ladder at {rung_name(axis, share, both=True)}"))
            found = proof.run(seeds, sizes=len(self._proofs), announced=True)
            rungs.append(LadderRung(axis=axis, share=share, proof=found.untimed()))
        plan = next(iter(self._plans.values()))
        return LadderProof(
            score=here.task.score,
            steps=here.task.steps,
            rungs=tuple(rungs),
            rule=plan.rule,
            limits=plan.limits,
            params=plan.params,
            macs=plan.macs,
            sweep=self._record.sha256,
        )

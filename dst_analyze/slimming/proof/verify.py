"""`verify_plan`: train a suggestion from scratch, the dense model and others of its size, and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import OptionError
from dst_analyze.run.events import Emit, Notice, ProofStarted, ignore_event
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.candidates import LONGER_DENSE, Candidate, Candidates
from dst_analyze.slimming.proof.costs import measure_costs
from dst_analyze.slimming.proof.fine_tuning import trainings_of
from dst_analyze.slimming.proof.kept_scores import AskedProof, KeptScores
from dst_analyze.slimming.proof.result import (
    LONGER,
    MAGNITUDE,
    RANDOM,
    SLIM,
    Entry,
    LongerTraining,
    Seeds,
    Verification,
    looks_of,
)
from dst_analyze.slimming.proof.trainings import CandidateRun, TrainingCount, Trainings, training_seconds
from dst_analyze.slimming.surgery.slim_model import check_plan_fits
from dst_analyze.sweep.engines.engine import Engine
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.options import TrainingOptions
from dst_analyze.sweep.planning.plan import plan_task
from dst_analyze.sweep.training.trial import ModelSpec, Task


def verify_plan(
    model: ModelSpec,
    data: Any,
    plan: SlimPlan,
    *,
    record: SweepRecord | None = None,
    seeds: Seeds = "auto",
    fine_tune: bool = False,
    check_length: bool = False,
    jobs: int | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    keep_in: Path | str | None = None,
    listener: Emit = ignore_event,
    **options: Unpack[TrainingOptions],
) -> Verification:
    """Train a plan's model from scratch beside the dense model and others of its size, and compare them.

    Args:
        model: The module that the plan was made for, or a spec that names it, as for `run_sweep`.
        data: What to train and score on, as for `run_sweep`; None for the data of the model's file.
        plan: The plan, of `suggest_widths` or `SlimPlan.load`.
        record: The sweep that the plan was made from; with it, a model with widths from the initial weights alone is
            also trained.
        seeds: The number of trainings of each model; "auto" repeats them until every comparison is decided, with up
            to 10 seeds.
        fine_tune: Also train the same widths on from the weights of a trained dense model, which is no rival.
        check_length: Also train the dense model five times as long, to see whether the trainings are long enough.
        jobs: Trainings at once, as for `run_sweep`.
        engine: "local" or "ray", as for `run_sweep`.
        ray_address: The address of a Ray cluster, as for `run_sweep`.
        keep_in: A folder for the score of each training; trainings whose scores are there are not repeated.
        listener: Called with every event.
        **options: The length and recipe of trainings, see `TrainingOptions`.

    Returns:
        The scores and costs of every model; its ``verdict`` is the comparison in words.

    Raises:
        ModelError: The plan is for another model.
        OptionError: An option has an invalid value.
        DataError: The data cannot be used.
        DstError: A training failed.

    Example:
        >>> import pandas as pd, torch
        >>> from dst_analyze import rank_layers, suggest_widths, trace_model, verify_plan
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> x = torch.randn(64, 4)
        >>> result = verify_plan(net, (x, (x[:, 0] > 0).long()), plan, seeds=1, steps=20)
        >>> list(result.table["contender"])
        ['dense', 'slim', 'uniform', 'uniform-params', 'uniform-macs', 'random', 'depth', 'magnitude']
    """
    task = plan_task(model, data, **options)
    check_plan_fits(task.traced, plan)
    with Workers(jobs, engine, ray_address, here=True).started(task, None) as workers:
        kept = None if keep_in is None else Path(keep_in)
        return verify_task_plan(
            task, plan, record=record, seeds=seeds, fine_tune=fine_tune, check_length=check_length, keep_in=kept,
            engine=workers, listener=listener,
        )  # fmt: skip


def verify_task_plan(
    task: Task,
    plan: SlimPlan,
    *,
    record: SweepRecord | None = None,
    seeds: Seeds = "auto",
    fine_tune: bool = False,
    check_length: bool = False,
    keep_in: Path | None = None,
    engine: Engine | None = None,
    listener: Emit = ignore_event,
) -> Verification:
    """Train the suggestion, the dense model and others of its size on the task's data and budget, and compare them.

    Scores are kept in the folder ``keep_in``, and trainings whose scores are there are not repeated. Without an
    ``engine`` trainings run one after the other in this process, with the same results.
    """
    check_seeds(seeds)
    coupling = couple_channels(task.traced)
    if check_length:
        check_lengthens(task)
    kept = KeptScores(keep_in, task.steps)
    kept.save_asked(AskedProof(seeds=seeds, fine_tune=fine_tune, check_length=check_length))
    trainings = Trainings(task, coupling, kept, engine, listener, training_seconds(record))
    return PlanProof(trainings, plan, record, fine_tune=fine_tune, check_length=check_length).run(seeds)


def check_seeds(seeds: Seeds) -> None:
    """Raise on a number of seeds that makes no comparison."""
    if seeds != "auto" and seeds < 1:
        raise OptionError(f"{seeds} seeds make no comparison", place="--verify-seeds", hint="give 3 or more, or auto")


def check_lengthens(task: Task) -> None:
    """Raise if the length of a task's trainings is not the tool's to choose."""
    if task.own_loop:
        raise OptionError(
            "the model file's own loop decides how long it trains",
            place="--check-length",
            hint="leave --check-length out, and train longer in fit()",
        )


class PlanProof:
    """The proof of one plan: its model and its rivals, trained with more and more seeds."""

    def __init__(
        self,
        trainings: Trainings,
        plan: SlimPlan,
        record: SweepRecord | None,
        size: str = "",
        *,
        fine_tune: bool = False,
        check_length: bool = False,
    ) -> None:
        """Prepare; ``size`` names the plan's size where several plans are proven."""
        self._trainings, self._plan, self._size, self._check_length = trainings, plan, size, check_length
        self._models = Candidates(trainings.task.traced, trainings.coupling, record, plan)
        self._candidates = self._models.fixed
        self._beside = [self._models.fine_tuned()] if fine_tune else []
        self._scores: dict[str, list[float | None]] = {}
        self._costs: dict[str, tuple[float, int]] = {}
        self._decided: set[str] = set()

    def count(self, seeds: Seeds) -> TrainingCount:
        """Return how many trainings there will be."""
        looks = looks_of(seeds)
        first = self._runs([c for c in self._candidates if not c.like], range(looks[0]))
        per_seed = len(first) // looks[0] + 1  # the widths by magnitude are known after the first training
        done = sum(map(self._trainings.is_done, first))
        # Beside the rivals: decided by no seed, so as many as at the first look.
        beside = len(self._beside) * looks[0] * trainings_of(self._trainings.task) + LONGER * self._check_length
        return TrainingCount(per_seed * looks[0] + beside, per_seed * looks[-1] + beside, done)

    def run(self, seeds: Seeds, *, sizes: int = 1, announced: bool = False) -> Verification:
        """Return the comparison; the intervals of all ``sizes`` that are proven hold together."""
        here, looks = self._trainings, looks_of(seeds)
        if not announced:
            count = self.count(seeds)
            times = {"seconds": here.time_of(count.left), "most_seconds": here.time_of(count.most_left)}
            here.listener(
                ProofStarted(count.least, count.done, here.task.steps, here.engine.jobs, most=count.most, **times)
            )
        longer = self._longer() if self._check_length else None
        for number in looks:
            self._train_all(range(number))
            if number == looks[0]:
                self._train(self._beside, range(number))
            found = self._result(range(number), len(looks) * sizes)
            self._decided = {e.name for e in found.entries if e.name != SLIM} - {*found.open}
            if not found.open:
                break
            if number < looks[-1]:
                said = f"with {number} seeds it is open against {', '.join(found.open)}: these are trained with more"
                here.listener(Notice(said))
        return found.model_copy(update={"longer": longer})

    def _longer(self) -> LongerTraining:
        """Train the dense model longer, and once as long as the others."""
        runs = [CandidateRun(candidate, 0) for candidate in (LONGER_DENSE, self._candidates[0])]
        score, usual = self._trainings.scores(runs)
        return LongerTraining(factor=LONGER, seed=0, score=score, usual=usual)

    def _train_all(self, seeds: range) -> None:
        """Train all models whose comparison is not decided with these seeds, those by magnitude last."""
        self._train(self._candidates, seeds)
        magnitudes = self._trainings.magnitudes
        if magnitudes and MAGNITUDE not in {c.name for c in self._candidates}:
            self._candidates = self._models.by_magnitude([*magnitudes.values()])
            self._train([c for c in self._candidates if c.name == MAGNITUDE], seeds)

    def _result(self, seeds: range, looks: int) -> Verification:
        """Return the comparison of the scores that are there."""
        task, plan = self._trainings.task, self._plan
        missing = [c for c in (*self._candidates, *self._beside) if c.name not in self._costs]
        with torch_threads(task.threads):
            costs = measure_costs(task, self._trainings.coupling, missing) if missing else ()
            self._costs |= dict(zip((c.name for c in missing), costs, strict=True))
        return Verification(
            score=task.score,
            steps=task.steps,
            seeds=tuple(seeds),
            entries=tuple(
                Entry(
                    name=c.name,
                    about=c.about,
                    params=c.plan.new_params if c.plan else plan.params,
                    macs=c.plan.new_macs if c.plan else plan.macs,
                    latency_ms=self._costs[c.name][0],
                    memory=self._costs[c.name][1],
                    scores=tuple(self._scores[c.like or c.name]),
                    like=c.like,
                )
                for c in (*self._candidates, *self._beside)
            ),
            looks=looks,
            plan=plan.sha256,
        )

    def _train(self, candidates: Sequence[Candidate], seeds: range) -> None:
        """Train candidates with the seeds that each has not been trained with."""
        needed = {c.like or c.name for c in candidates if c.name not in self._decided} | {SLIM}
        wanted = [c for c in candidates if c.name in needed and not c.like]
        runs = [run for run in self._runs(wanted, seeds) if run.seed >= len(self._scores.get(run.candidate.name, ()))]
        for run, score in zip(runs, self._trainings.scores(runs), strict=True):
            self._scores.setdefault(run.candidate.name, []).append(score)

    def _runs(self, candidates: Sequence[Candidate], seeds: range) -> list[CandidateRun]:
        return [
            CandidateRun(self._models.random(seed) if c.name == RANDOM else c, seed, self._size if c.plan else "")
            for seed in seeds
            for c in candidates
        ]

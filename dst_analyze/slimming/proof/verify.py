"""`verify_plan`: train a suggestion from scratch, the dense model and others of its size, and compare them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from dst_analyze.baselines.values import SETTINGS
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import DstError, OptionError
from dst_analyze.model.graph.trace_graph import trace_graph
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.events import CandidateTrained, Emit, Notice, ProofStarted, ignore_event
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.candidates import Candidate, Candidates, build_candidate
from dst_analyze.slimming.proof.costs import measure_costs
from dst_analyze.slimming.proof.kept_scores import KeptScore, KeptScores, Ratios
from dst_analyze.slimming.proof.result import MAGNITUDE, RANDOM, SLIM, Entry, Seeds, Verification, looks_of
from dst_analyze.slimming.surgery.slim_model import check_plan_fits
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.options import TrainingOptions
from dst_analyze.sweep.planning.plan import plan_task
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.own_loop.fit_function import own_scores, train_plain
from dst_analyze.sweep.training.train import DivergedError, evaluate
from dst_analyze.sweep.training.trial import ModelSpec, Task, seeded


@dataclass(frozen=True)
class CandidateRun:
    """A job that trains one candidate with one seed; the coupling is not sent along but computed again."""

    candidate: Candidate
    seed: int
    coupling: Coupling | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Unique within one proof."""
        return f"{self.candidate.name}, seed {self.seed}"

    @property
    def tells_magnitudes(self) -> bool:
        """True for the one training of the dense model whose magnitudes make a rival."""
        return self.candidate.plan is None and self.seed == 0

    def run(self, task: Task, emit: Emit) -> Outcome:
        """Train the model and return its score."""
        if task.traced.graph_module is None:  # it is not sent, see `serialize.PickledTask`
            graph = trace_graph(task.traced.model, task.traced.inputs)
            task = replace(task, traced=replace(task.traced, graph=graph))
        return train_and_score(task, self.coupling or couple_channels(task.traced), self)

    def failed(self, reason: str, seconds: float) -> Outcome:
        """Return the outcome of a training that failed."""
        return Outcome(self, None, reason)

    def retry_event(self, reason: str) -> Notice:
        """Return the notice that the training is repeated."""
        return Notice(f"{self.name} starts again: {reason}")

    def __reduce__(self) -> tuple[object, ...]:
        return CandidateRun, (self.candidate, self.seed)


@dataclass(frozen=True)
class Outcome:
    """The end of a training: a score, None if it diverged, or the ``reason`` of a failure.

    ``magnitudes`` says of the dense model with the first seed what magnitude pruning would leave of its layers.
    """

    run: CandidateRun
    score: float | None
    reason: str = ""
    magnitudes: Ratios = field(default_factory=dict)


def verify_plan(
    model: ModelSpec,
    data: Any,
    plan: SlimPlan,
    *,
    record: SweepRecord | None = None,
    seeds: Seeds = "auto",
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
        ['dense', 'slim', 'uniform', 'uniform-macs', 'random', 'depth', 'magnitude']
    """
    task = plan_task(model, data, **options)
    check_plan_fits(task.traced, plan)
    with Workers(jobs, engine, ray_address, here=True).started(task, None) as workers:
        kept = None if keep_in is None else Path(keep_in)
        return verify_task_plan(task, plan, record=record, seeds=seeds, keep_in=kept, engine=workers, listener=listener)


def verify_task_plan(
    task: Task,
    plan: SlimPlan,
    *,
    record: SweepRecord | None = None,
    seeds: Seeds = "auto",
    keep_in: Path | None = None,
    engine: Engine | None = None,
    listener: Emit = ignore_event,
) -> Verification:
    """Train the suggestion, the dense model and others of its size on the task's data and budget, and compare them.

    Scores are kept in the folder ``keep_in``, and trainings whose scores are there are not repeated. Without an
    ``engine`` trainings run one after the other in this process, with the same results.
    """
    if seeds != "auto" and seeds < 1:
        raise OptionError(f"{seeds} seeds make no comparison", place="--verify-seeds", hint="give 3 or more, or auto")
    coupling = couple_channels(task.traced)
    kept = KeptScores(keep_in, task.steps)
    kept.save_asked(seeds)
    proof = _Proof(task, coupling, Candidates(task.traced, coupling, record, plan), kept, engine, listener)
    looks = looks_of(seeds)
    proof.announce(looks)
    for count in looks:
        proof.train(range(count))
        found = proof.result(plan, range(count), len(looks))
        proof.decided = {e.name for e in found.entries if e.name != SLIM} - {*found.open}
        if not found.open:
            break
        if count < looks[-1]:
            listener(
                Notice(f"with {count} seeds it is open against {', '.join(found.open)}: these are trained with more")
            )
    return found


class _Proof:
    """The trainings of a proof so far."""

    def __init__(
        self,
        task: Task,
        coupling: Coupling,
        models: Candidates,
        kept: KeptScores,
        engine: Engine | None,
        listener: Emit,
    ) -> None:
        self._task, self._coupling, self._models, self._kept = task, coupling, models, kept
        self._engine, self._listener = engine or InProcessEngine(), listener
        self._candidates = models.fixed
        self._magnitudes: Ratios = {}
        self._scores: dict[str, list[float | None]] = {}
        self._costs: dict[str, tuple[float, int]] = {}
        self.decided: set[str] = set()

    def announce(self, looks: Sequence[int]) -> None:
        """Emit how many trainings there will be, before the first one."""
        first = self._runs([c for c in self._candidates if not c.like], range(looks[0]))
        done = sum(self._read(run) is not None for run in first)
        per_seed = len(first) // looks[0] + 1  # the widths by magnitude are known after the first training
        trainings = per_seed * looks[0]
        self._listener(ProofStarted(trainings, done, self._task.steps, self._engine.jobs, most=per_seed * looks[-1]))

    def train(self, seeds: range) -> None:
        """Train all models whose comparison is not decided with these seeds, those by magnitude last."""
        self._train(self._candidates, seeds)
        if self._magnitudes and MAGNITUDE not in {c.name for c in self._candidates}:
            self._candidates = self._models.by_magnitude([*self._magnitudes.values()])
            self._train([c for c in self._candidates if c.name == MAGNITUDE], seeds)

    def result(self, plan: SlimPlan, seeds: range, looks: int) -> Verification:
        """Return the comparison of the scores that are there."""
        missing = [c for c in self._candidates if c.name not in self._costs]
        with torch_threads(self._task.threads):
            costs = measure_costs(self._task, self._coupling, missing) if missing else ()
            self._costs |= dict(zip((c.name for c in missing), costs, strict=True))
        return Verification(
            score=self._task.score,
            steps=self._task.steps,
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
                for c in self._candidates
            ),
            looks=looks,
            plan=plan.sha256,
        )

    def _train(self, candidates: Sequence[Candidate], seeds: range) -> None:
        """Train candidates with the seeds that each has not been trained with."""
        needed = {c.like or c.name for c in candidates if c.name not in self.decided} | {SLIM}
        wanted = [c for c in candidates if c.name in needed and not c.like]
        runs = [run for run in self._runs(wanted, seeds) if run.seed >= len(self._scores.get(run.candidate.name, ()))]
        kept = {run.name: score for run in runs if (score := self._read(run)) is not None}
        ended: dict[tuple[str, int], float | None] = {}

        def count(run: CandidateRun, score: float | None, magnitudes: Ratios) -> None:
            ended[run.candidate.name, run.seed] = score
            self._magnitudes = self._magnitudes or magnitudes
            self._listener(CandidateTrained(run.candidate.name, run.seed, score))

        for run in runs:
            if run.name in kept:
                count(run, kept[run.name].score, kept[run.name].magnitudes)
        missing = [run for run in runs if run.name not in kept]
        with closing(self._engine.run(self._task, missing, self._listener)) as outcomes:
            for outcome in outcomes:
                if outcome.reason:
                    raise DstError(
                        f"the training of {outcome.run.name} failed: {outcome.reason}",
                        hint="repeat the command: finished trainings are kept" if self._kept.folder else "",
                    )
                self._kept.save(outcome.run.candidate, outcome.run.seed, outcome.score, outcome.magnitudes)
                count(outcome.run, outcome.score, outcome.magnitudes)
        for name, seed in sorted(ended):
            self._scores.setdefault(name, []).append(ended[name, seed])

    def _runs(self, candidates: Sequence[Candidate], seeds: range) -> list[CandidateRun]:
        return [
            CandidateRun(self._models.random(seed) if c.name == RANDOM else c, seed, self._coupling)
            for seed in seeds
            for c in candidates
        ]

    def _read(self, run: CandidateRun) -> KeptScore | None:
        """Return the kept score of a training; that of a dense model counts only with what is needed of it."""
        kept = self._kept.read(run.candidate, run.seed)
        if kept is not None and run.tells_magnitudes and kept.score is not None and not kept.magnitudes:
            return None
        return kept


def trained(task: Task, coupling: Coupling, candidate: Candidate, seed: int) -> nn.Module:
    """Return a candidate trained from scratch on the task's budget."""
    return train_plain(task, lambda: build_candidate(candidate, task.traced, coupling, task.source), seed)


def train_and_score(task: Task, coupling: Coupling, run: CandidateRun) -> Outcome:
    """Return the outcome of a training; without a score if it diverged."""
    try:
        model = trained(task, coupling, run.candidate, run.seed)
    except DivergedError:
        return Outcome(run, None)
    magnitudes = magnitude_ratios(task.traced, model) if run.tells_magnitudes else {}
    if task.own_loop:
        return Outcome(run, own_scores(task, model).score, magnitudes=magnitudes)
    with seeded(run.seed):
        loss, score, _ = evaluate(model, task.test_data.once(), task.objective(task.traced.model), task.device)
    return Outcome(run, score if math.isfinite(loss) else None, magnitudes=magnitudes)


def magnitude_ratios(traced: TracedModel, model: nn.Module) -> Ratios:
    """Return what is left of each layer when the smallest weights of a trained model go, by the share that stays."""
    magnitudes = Magnitudes({layer.name: model.get_parameter(layer.parameter) for layer in traced.layers})
    return {
        f"{share:g}": {name: round(float(left), 6) for name, left in magnitudes.null(share).items()}
        for share in SETTINGS["magnitude"]
    }

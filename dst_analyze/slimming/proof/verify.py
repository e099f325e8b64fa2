"""`verify_plan`: train a suggestion from scratch, the dense model and others of its size, and compare them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import DstError, FolderError, OptionError
from dst_analyze.model.graph.trace_graph import trace_graph
from dst_analyze.run.config import Json
from dst_analyze.run.events import CandidateTrained, Emit, Notice, ProofStarted, ignore_event
from dst_analyze.run.files.atomic_io import broken, listed_sums, replace_files, writing
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.candidates import Candidate, build_candidate, list_candidates
from dst_analyze.slimming.proof.result import Entry, Verification
from dst_analyze.slimming.proof.timing import milliseconds
from dst_analyze.slimming.surgery.slim_model import check_plan_fits
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.options import TrainingOptions
from dst_analyze.sweep.planning.plan import plan_task
from dst_analyze.sweep.training.objective import main_output
from dst_analyze.sweep.training.own_loop.fit_function import own_scores, train_plain
from dst_analyze.sweep.training.train import DivergedError, evaluate
from dst_analyze.sweep.training.trial import ModelSpec, Task, seeded


class _Scored(Json):
    """The saved score of one training of one candidate."""

    plan: str
    steps: int
    score: float | None


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

    def run(self, task: Task, emit: Emit) -> Outcome:
        """Train the model and return its score."""
        if task.traced.graph_module is None:  # it is not sent, see `serialize.PickledTask`
            graph = trace_graph(task.traced.model, task.traced.inputs)
            task = replace(task, traced=replace(task.traced, graph=graph))
        return Outcome(
            self, trained_score(task, self.coupling or couple_channels(task.traced), self.candidate, self.seed)
        )

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
    """The end of a training: a score, None if it diverged, or the ``reason`` of a failure."""

    run: CandidateRun
    score: float | None
    reason: str = ""


def verify_plan(
    model: ModelSpec,
    data: Any,
    plan: SlimPlan,
    *,
    record: SweepRecord | None = None,
    seeds: int = 3,
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
        seeds: The number of trainings of each model.
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
        ['dense', 'slim', 'uniform', 'random']
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
    seeds: int = 3,
    keep_in: Path | None = None,
    engine: Engine | None = None,
    listener: Emit = ignore_event,
) -> Verification:
    """Train dense, slim, uniform, random and fan-in models on the task's data and budget, and compare them.

    Scores are kept in the folder ``keep_in``, and trainings whose scores are there are not repeated. Without an
    ``engine`` trainings run one after the other in this process, with the same results.
    """
    if seeds < 1:
        raise OptionError(f"{seeds} seeds make no comparison", place="--verify-seeds", hint="give 3 or more")
    coupling = couple_channels(task.traced)
    found = list_candidates(task.traced, coupling, record, plan)
    scores: dict[tuple[str, int], float | None] = {}

    def count(run: CandidateRun, score: float | None) -> None:
        scores[run.candidate.name, run.seed] = score
        listener(CandidateTrained(run.candidate.name, run.seed, score))

    engine = engine or InProcessEngine()
    runs = [CandidateRun(candidate, seed, coupling) for seed in range(seeds) for candidate in found]
    kept = {run.name: there for run in runs if (there := _read_score(keep_in, run, task.steps))}
    listener(ProofStarted(len(runs), len(kept), task.steps, engine.jobs))
    for run in runs:
        if run.name in kept:
            count(run, kept[run.name].score)
    missing = [run for run in runs if run.name not in kept]
    with closing(engine.run(task, missing, listener)) as outcomes:
        for outcome in outcomes:
            if outcome.reason:
                raise DstError(
                    f"the training of {outcome.run.name} failed: {outcome.reason}",
                    hint="repeat the command: finished trainings are kept" if keep_in else "",
                )
            if keep_in is not None:
                _save_score(keep_in, outcome.run, task.steps, outcome.score)
            count(outcome.run, outcome.score)
    with torch_threads(task.threads):
        costs = dict(zip((c.name for c in found), _costs(task, coupling, found), strict=True))
    return Verification(
        score=task.score,
        steps=task.steps,
        seeds=tuple(range(seeds)),
        entries=tuple(
            Entry(
                name=c.name,
                about=c.about,
                params=c.plan.new_params if c.plan else plan.params,
                macs=c.plan.new_macs if c.plan else plan.macs,
                latency_ms=costs[c.name][0],
                memory=costs[c.name][1],
                scores=tuple(scores[c.name, seed] for seed in range(seeds)),
            )
            for c in found
        ),
        plan=plan.sha256,
    )


def trained(task: Task, coupling: Coupling, candidate: Candidate, seed: int) -> nn.Module:
    """Return a candidate trained from scratch on the task's budget."""
    return train_plain(task, lambda: build_candidate(candidate, task.traced, coupling, task.source), seed)


def trained_score(task: Task, coupling: Coupling, candidate: Candidate, seed: int) -> float | None:
    """Return the score of a candidate after its training; None if it diverged."""
    try:
        model = trained(task, coupling, candidate, seed)
    except DivergedError:
        return None
    if task.own_loop:
        return own_scores(task, model).score
    with seeded(seed):
        loss, score, _ = evaluate(model, task.test_data.once(), task.objective(task.traced.model), task.device)
    return score if math.isfinite(loss) else None


def _costs(task: Task, coupling: Coupling, found: Sequence[Candidate]) -> Iterator[tuple[float, int]]:
    """Yield the milliseconds of a forward pass over one batch, and the bytes of memory, of each candidate."""
    objective = task.objective(task.traced.model)
    batch = None if task.own_loop else task.device.moved(next(iter(task.train_data.once())))
    inputs = task.traced.inputs if task.own_loop else objective.inputs(batch)

    def loss(model: nn.Module) -> torch.Tensor:
        outputs = inputs.call(model)
        return main_output(outputs).float().sum() if task.own_loop else objective.loss(outputs, batch)

    with seeded(0):
        models = [build_candidate(c, task.traced, coupling, task.source).to(task.device.name) for c in found]
    for model, taken in zip(models, milliseconds(models, inputs.call, task.device), strict=True):
        yield round(taken, 4), _memory(model, loss)


def _memory(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> int:
    """Return the bytes of weights and of what autograd saves for the backward pass of one batch."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(model.train())
    return sum(saved.values()) + sum(p.numel() * p.element_size() for p in model.parameters())


def _file(folder: Path, run: CandidateRun) -> Path:
    return folder / f"{run.candidate.name},seed={run.seed}.json"


def _digest(candidate: Candidate) -> str:
    """Return a hash of the removed units, which alone determine a training; reasons in the plan do not count."""
    text = "" if candidate.plan is None else json.dumps(candidate.plan.removal)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_score(folder: Path | None, run: CandidateRun, steps: int) -> _Scored | None:
    if folder is None or _file(folder, run).name not in listed_sums(folder):
        return None
    try:
        if broken(folder, only=_file(folder, run).name):
            return None
        kept = read_json(_file(folder, run), _Scored)
    except FolderError:
        return None
    return kept if kept.plan == _digest(run.candidate) and kept.steps == steps else None


def _save_score(folder: Path, run: CandidateRun, steps: int, score: float | None) -> None:
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    scored = _Scored(plan=_digest(run.candidate), steps=steps, score=score)
    replace_files(folder, {_file(folder, run).name: f"{scored.model_dump_json()}\n".encode()})

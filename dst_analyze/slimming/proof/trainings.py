"""The trainings of proofs: each model and seed once, here or by workers, from scratch, as a folder keeps them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from torch import nn

from dst_analyze.baselines.values import SETTINGS
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import DstError
from dst_analyze.model.graph.trace_graph import trace_graph
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.events import CandidateTrained, Emit, Notice, ignore_event
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.proof.candidates import Candidate, build_candidate
from dst_analyze.slimming.proof.fine_tuning import fine_tuned
from dst_analyze.slimming.proof.kept_scores import KeptScore, KeptScores, Ratios, training_name
from dst_analyze.slimming.proof.result import FINE_TUNED
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.own_loop.fit_function import own_scores, train_plain
from dst_analyze.sweep.training.train import DivergedError, evaluate
from dst_analyze.sweep.training.trial import Task, seeded
from dst_analyze.text import minutes


@dataclass(frozen=True)
class CandidateRun:
    """A job that trains one candidate with one seed; the coupling is not sent along but computed again.

    ``size`` tells candidates of one name apart, as in "at 25 %".
    """

    candidate: Candidate
    seed: int
    size: str = ""
    coupling: Coupling | None = field(default=None, compare=False)

    @property
    def contender(self) -> str:
        """The candidate's name, with its size where there are several."""
        return f"{self.candidate.name} {self.size}".rstrip()

    @property
    def name(self) -> str:
        """Unique within one proof."""
        return f"{self.contender}, seed {self.seed}"

    @property
    def tells_magnitudes(self) -> bool:
        """True for the one training of the dense model whose magnitudes make a rival."""
        return self.candidate.plan is None and self.candidate.longer == 1 and self.seed == 0

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
        return CandidateRun, (self.candidate, self.seed, self.size)


@dataclass(frozen=True)
class Outcome:
    """The end of a training: a score, None if it diverged, or the ``reason`` of a failure.

    ``magnitudes`` says of the dense model with the first seed what magnitude pruning would leave of its layers.
    """

    run: CandidateRun
    score: float | None
    reason: str = ""
    magnitudes: Ratios = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingCount:
    """How many trainings a proof takes: at least, at most, and those of the least that are done."""

    least: int
    most: int
    done: int = 0

    @property
    def left(self) -> int:
        """The trainings that are left of the least."""
        return self.least - self.done

    @property
    def most_left(self) -> int:
        """The trainings that are left of the most."""
        return self.most - self.done

    def __add__(self, other: TrainingCount) -> TrainingCount:
        return TrainingCount(self.least + other.least, self.most + other.most, self.done + other.done)


class Trainings:
    """The trainings of a task's candidates: each is made once, and kept."""

    def __init__(
        self,
        task: Task,
        coupling: Coupling,
        kept: KeptScores,
        engine: Engine | None = None,
        listener: Emit = ignore_event,
        seconds: float = 0.0,
    ) -> None:
        """Prepare; ``seconds`` is about how long one takes, 0 if that is not known."""
        self.task, self.coupling, self.kept, self.seconds = task, coupling, kept, seconds
        self.engine, self.listener = engine or InProcessEngine(), listener
        self.magnitudes: Ratios = {}
        """What magnitude pruning leaves of the dense model, once that is trained."""
        self._known: dict[str, float | None] = {}

    def time_of(self, count: int) -> float:
        """Return about how many seconds so many trainings take."""
        return count * self.seconds / max(1, min(self.engine.jobs, count))

    def cost_words(self, count: TrainingCount) -> str:
        """Return how many trainings there will be and how long they take, in words."""
        more = f" to {count.most}" if count.most > count.least else ""
        done = f", {count.done} of them done already" if count.done else ""
        jobs = f", {self.engine.jobs} at once" if self.engine.jobs > 1 else ""
        said = f"{count.least}{more} trainings of {self.task.steps:,} steps{done}{jobs}"
        if not self.seconds:
            return said
        most = f", {minutes(self.time_of(count.most_left))} at most" if more else ""
        return f"{said}: {minutes(self.time_of(count.left))}{most}"

    def is_done(self, run: CandidateRun) -> bool:
        """Return True if the score of a training is known."""
        return _key(run) in self._known or self._read(run) is not None

    def scores(self, runs: Sequence[CandidateRun]) -> list[float | None]:
        """Return the score of each training, None where it diverged; those that are not kept are trained."""
        new = [run for run in runs if _key(run) not in self._known]
        kept = {run.name: score for run in new if (score := self._read(run)) is not None}
        for run in new:
            if run.name in kept:
                self._end(run, kept[run.name].score, kept[run.name].magnitudes)
        missing = [replace(run, coupling=self.coupling) for run in new if run.name not in kept]
        with closing(self.engine.run(self.task, missing, self.listener)) as outcomes:
            for outcome in outcomes:
                if outcome.reason:
                    raise DstError(
                        f"the training of {outcome.run.name} failed: {outcome.reason}",
                        hint="repeat the command: finished trainings are kept" if self.kept.folder else "",
                    )
                self.kept.save(outcome.run.candidate, outcome.run.seed, outcome.score, outcome.magnitudes)
                self._end(outcome.run, outcome.score, outcome.magnitudes)
        return [self._known[_key(run)] for run in runs]

    def _end(self, run: CandidateRun, score: float | None, magnitudes: Ratios) -> None:
        self._known[_key(run)] = score
        self.magnitudes = self.magnitudes or magnitudes
        self.listener(CandidateTrained(run.contender, run.seed, score))

    def _read(self, run: CandidateRun) -> KeptScore | None:
        """Return the kept score of a training; that of a dense model counts only with what is needed of it."""
        kept = self.kept.read(run.candidate, run.seed)
        if kept is not None and run.tells_magnitudes and kept.score is not None and not kept.magnitudes:
            return None
        return kept


def _key(run: CandidateRun) -> str:
    return training_name(run.candidate, run.seed)


def training_seconds(record: SweepRecord | None) -> float:
    """Return about how long a training of a run takes, by its trials; 0 if that is not known."""
    return 0.0 if record is None or not record.trials else record.seconds / len(record.trials)


def trained(task: Task, coupling: Coupling, candidate: Candidate, seed: int) -> nn.Module:
    """Return a trained candidate: from scratch on the task's budget, unless it is another kind of candidate."""
    if candidate.name == FINE_TUNED and candidate.plan is not None:
        return fine_tuned(task, coupling, candidate.plan, seed)
    task = replace(task, steps=candidate.longer * task.steps)
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

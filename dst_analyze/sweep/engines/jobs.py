"""The jobs that engines run: trials and warm-ups of a sweep. They are pickled to be sent to workers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from dst_analyze.run.events import (
    Emit,
    Event,
    Notice,
    TrialRetried,
    TrialStarted,
    WarmUpFinished,
    WarmUpStarted,
    WarmUpStep,
)
from dst_analyze.run.record import TrialKey, TrialOutput
from dst_analyze.sweep.training.measurements import PULSE, without_readings
from dst_analyze.sweep.training.own_loop.fit_function import run_own_trial, train_own_warm_up
from dst_analyze.sweep.training.quick_trial import run_quick_trial
from dst_analyze.sweep.training.trial import Task, WarmUpResult, run_trial, train_warm_up
from dst_analyze.sweep.training.warm_start import Origin

Output = TypeVar("Output", covariant=True)


class Job(Protocol[Output]):
    """A training for a task that an engine runs in this or in another process; it must be picklable."""

    @property
    def name(self) -> str:
        """A name that is unique within one batch of jobs."""

    def run(self, task: Task, emit: Emit) -> Output:
        """Run the job and return its output."""

    def failed(self, reason: str, seconds: float) -> Output:
        """Return the output of a job that raised or whose worker was lost."""

    def retry_event(self, reason: str) -> Event:
        """Return the event that says that the job is repeated because its worker was lost."""


@dataclass(frozen=True)
class JobResult:
    """A worker's last message, with the job's output."""

    output: Any


@dataclass(frozen=True)
class Trial:
    """One trial of a sweep."""

    key: TrialKey

    @property
    def name(self) -> str:
        return self.key.name

    def run(self, task: Task, emit: Emit) -> TrialOutput:
        emit(TrialStarted(self.key, task.steps))
        if task.config.quick:
            return run_quick_trial(task, self.key, emit)
        return (run_own_trial if task.own_loop else run_trial)(task, self.key, emit)

    def failed(self, reason: str, seconds: float) -> TrialOutput:
        return without_readings(self.key, "failed", reason, seconds)

    def retry_event(self, reason: str) -> TrialRetried:
        return TrialRetried(self.key, reason)


@dataclass(frozen=True)
class WarmUp:
    """The training of the weights that all trials of a seed start from."""

    start: Origin

    @property
    def name(self) -> str:
        seed, control = self.start
        return f"{'control,' if control else ''}warm-up,seed={seed}"

    def run(self, task: Task, emit: Emit) -> tuple[Origin, WarmUpResult]:
        began = last = time.monotonic()
        emit(WarmUpStarted(*self.start, task.recipe.warm_up))

        def on_step(step: int, loss: float) -> bool:
            nonlocal last
            if time.monotonic() - last >= PULSE:
                last = time.monotonic()
                emit(WarmUpStep(*self.start, step, task.recipe.warm_up, loss))
            return False

        if task.own_loop:
            trained = WarmUpResult(train_own_warm_up(task, self.start))
        else:
            trained = train_warm_up(task, self.start, on_step)
        emit(WarmUpFinished(*self.start, round(time.monotonic() - began, 3)))
        return self.start, trained

    def failed(self, reason: str, seconds: float) -> tuple[Origin, WarmUpResult]:
        """Return no weights: each trial trains its own, or fails for the same reason and reports it."""
        return self.start, WarmUpResult(None)

    def retry_event(self, reason: str) -> Notice:
        return Notice(f"the warm-up of seed {self.start[0]} starts again: {reason}")

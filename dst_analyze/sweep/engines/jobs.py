"""What engines run: a trial of a sweep, or whatever else is trained for a task. It travels to where it is run."""

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
from dst_analyze.sweep.training.measurements import PULSE
from dst_analyze.sweep.training.trial import Task, WarmUpResult, run_trial, train_warm_up, without_readings
from dst_analyze.sweep.training.warm_start import Origin

Output = TypeVar("Output", covariant=True)


class Job(Protocol[Output]):
    """Something to be done for a task, in this process or in another one; it is sent by pickling."""

    @property
    def name(self) -> str:
        """Its own among those that are run together."""

    def run(self, task: Task, emit: Emit) -> Output: ...

    def failed(self, reason: str, seconds: float) -> Output:
        """What comes out if it raises, or if its worker is lost."""

    def retry_event(self, reason: str) -> Event:
        """What is told when it starts again, its worker having been lost."""


@dataclass(frozen=True)
class JobResult:
    """A worker's last message: what came out."""

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
        return run_trial(task, self.key, emit)

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

        trained = train_warm_up(task, self.start, on_step)
        emit(WarmUpFinished(*self.start, round(time.monotonic() - began, 3)))
        return self.start, trained

    def failed(self, reason: str, seconds: float) -> tuple[Origin, WarmUpResult]:
        """Nothing to hand on: each trial trains its own, or fails for the same reason and says so."""
        return self.start, WarmUpResult(None)

    def retry_event(self, reason: str) -> Notice:
        return Notice(f"the warm-up of seed {self.start[0]} starts again: {reason}")

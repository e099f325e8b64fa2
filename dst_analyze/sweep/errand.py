"""What engines run: a trial of a sweep, or whatever else is trained for a task. It travels to where it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pandas as pd

from dst_analyze.sweep.events import Emit, Event, TrialRetried, TrialStarted
from dst_analyze.sweep.record import READING_COLUMNS, STEP_COLUMNS, TrialKey, TrialOutput, TrialResult
from dst_analyze.sweep.trial import Task, run_trial

Output = TypeVar("Output", covariant=True)


class Errand(Protocol[Output]):
    """Something to be done for a task, in this process or in another one; it is sent by pickling."""

    @property
    def name(self) -> str:
        """Its own among those that are run together."""

    def run(self, task: Task, emit: Emit) -> Output: ...

    def failed(self, reason: str, seconds: float) -> Output:
        """What comes out if it raises, or if its worker is lost."""

    def again(self, reason: str) -> Event:
        """What is told when it starts again, its worker having been lost."""


@dataclass(frozen=True)
class Done:
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
        key = self.key
        result = TrialResult(
            alpha=key.alpha, seed=key.seed, control=key.control, status="failed", reason=reason, steps=0
        )
        layers, steps = (pd.DataFrame(columns=list(columns)) for columns in (READING_COLUMNS, STEP_COLUMNS))
        return TrialOutput(result, layers, steps, None, seconds)

    def again(self, reason: str) -> TrialRetried:
        return TrialRetried(self.key, reason)

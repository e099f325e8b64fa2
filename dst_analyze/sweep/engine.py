"""Where trials run. An engine takes a task and keys and yields outputs, in any order; this one runs them right here."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from typing import Protocol

import pandas as pd

from dst_analyze.errors import DstError
from dst_analyze.model.failures import headline
from dst_analyze.sweep.events import Emit, TrialStarted
from dst_analyze.sweep.record import READING_COLUMNS, STEP_COLUMNS, TrialKey, TrialOutput, TrialResult
from dst_analyze.sweep.threads import torch_threads
from dst_analyze.sweep.trial import Task, run_trial


class Engine(Protocol):
    """Runs trials: here, in local processes, or on a cluster. Results must not depend on which, nor on the order."""

    @property
    def jobs(self) -> int:
        """How many trials run at once."""

    def run(self, task: Task, keys: Iterable[TrialKey], emit: Emit) -> Generator[TrialOutput, None, None]:
        """One output per key, failures too; closing the iterator ends all that is still running."""


class Inline:
    """One trial after the other in this process: for notebooks, and for what cannot travel to another process."""

    jobs = 1

    def run(self, task: Task, keys: Iterable[TrialKey], emit: Emit) -> Generator[TrialOutput, None, None]:
        for key in keys:
            yield attempt(task, key, emit)


def attempt(task: Task, key: TrialKey, emit: Emit) -> TrialOutput:
    """Run a trial; whatever it raises is its result."""
    started = time.perf_counter()
    emit(TrialStarted(key, task.steps))
    try:
        with torch_threads(task.threads):
            return run_trial(task, key, emit)
    except DstError as error:
        reason = f"{error.cause} (at {error.place})" if error.place else error.cause
    except Exception as error:
        reason = headline(error)
    return failed(key, reason, time.perf_counter() - started)


def failed(key: TrialKey, reason: str, seconds: float) -> TrialOutput:
    """The output of a trial that gave none."""
    result = TrialResult(alpha=key.alpha, seed=key.seed, control=key.control, status="failed", reason=reason, steps=0)
    layers, steps = (pd.DataFrame(columns=list(columns)) for columns in (READING_COLUMNS, STEP_COLUMNS))
    return TrialOutput(result, layers, steps, None, seconds)

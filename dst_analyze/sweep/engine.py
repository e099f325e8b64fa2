"""Where trials run. An engine takes a task and keys and yields outputs, in any order; this one runs them right here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterable
from typing import Any, Protocol

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


class Crew(Protocol):
    """Workers elsewhere: who waits, who runs, and what becomes of them."""

    waiting: deque[TrialKey]

    @property
    def running(self) -> Collection[Any]: ...

    @property
    def sendable(self) -> bool:
        """Whether the task can be sent to workers at all."""

    def start(self) -> None:
        """Send the next trial that waits."""

    def ready(self) -> Iterable[Any]:
        """Wait for workers that have something to say, or are lost."""

    def hear(self, worker: Any) -> TrialOutput | None:
        """Pass on what a worker says; its output once it is there, or if it never will be."""

    def disband(self) -> None:
        """End all that is still running."""


def run_crew(crew: Crew, most: int, task: Task, emit: Emit) -> Generator[TrialOutput, None, None]:
    """Keep at most so many workers busy until all trials are done; right here, if nothing can be sent."""
    try:
        while crew.waiting or crew.running:
            while crew.waiting and len(crew.running) < most and crew.sendable:
                crew.start()
            if not crew.sendable and not crew.running:
                yield from Inline().run(task, crew.waiting, emit)
                return
            for worker in crew.ready():
                output = crew.hear(worker)
                if output is not None:
                    yield output
    finally:
        crew.disband()


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

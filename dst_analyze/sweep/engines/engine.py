"""Where errands run. An engine takes a task and errands and yields outputs, in any order; this one runs them here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterable
from typing import Any, Protocol

from dst_analyze.errors import DstError
from dst_analyze.model.user_errors import headline
from dst_analyze.run.events import Emit
from dst_analyze.sweep.engines.jobs import Done, Errand, Output
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.engines.serialize import Anew
from dst_analyze.sweep.training.trial import Task


class Engine(Protocol):
    """Runs trials: here, in local processes, or on a cluster. Results must not depend on which, nor on the order."""

    @property
    def jobs(self) -> int:
        """How many errands run at once."""

    def run(self, task: Task, errands: Iterable[Errand[Output]], emit: Emit) -> Generator[Output, None, None]:
        """One output for each, failures too; closing the iterator ends all that is still running."""


class Inline:
    """One errand after the other in this process: for notebooks, and for what cannot travel to another process."""

    jobs = 1

    def run(self, task: Task, errands: Iterable[Errand[Output]], emit: Emit) -> Generator[Output, None, None]:
        for errand in errands:
            yield attempt(task, errand, emit)


class Crew(Protocol):
    """Workers elsewhere: who waits, who runs, and what becomes of them."""

    waiting: deque[Errand[Any]]

    @property
    def running(self) -> Collection[Any]: ...

    @property
    def sendable(self) -> bool:
        """Whether the task can be sent to workers at all."""

    def start(self) -> None:
        """Send the next errand that waits."""

    def ready(self) -> Iterable[Any]:
        """Wait for workers that have something to say, or are lost."""

    def hear(self, worker: Any) -> Done | None:
        """Pass on what a worker says; its output once it is there, or if it never will be."""

    def disband(self) -> None:
        """End all that is still running."""


def run_crew(crew: Crew, most: int, task: Task, emit: Emit) -> Generator[Any, None, None]:
    """Keep at most so many workers busy until all is done; right here, if nothing can be sent."""
    try:
        while crew.waiting or crew.running:
            while crew.waiting and len(crew.running) < most and crew.sendable:
                crew.start()
            if not crew.sendable and not crew.running:
                yield from Inline().run(task, crew.waiting, emit)
                return
            for worker in crew.ready():
                done = crew.hear(worker)
                if done is not None:
                    yield done.output
    finally:
        crew.disband()


def attempt(task: Task | Anew, errand: Errand[Output], emit: Emit) -> Output:
    """Run an errand; whatever it raises is its result."""
    started = time.perf_counter()
    try:
        with torch_threads(task.threads):
            return errand.run(task.task() if isinstance(task, Anew) else task, emit)
    except DstError as error:
        reason = f"{error.cause} (at {error.place})" if error.place else error.cause
    except Exception as error:
        reason = headline(error)
    return errand.failed(reason, time.perf_counter() - started)

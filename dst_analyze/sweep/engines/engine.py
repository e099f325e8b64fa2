"""Where jobs run. An engine takes a task and jobs and yields outputs, in any order; this one runs them here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Generator, Iterable
from typing import Any, Protocol

from dst_analyze.errors import DstError
from dst_analyze.model.user_errors import headline
from dst_analyze.run.events import Emit
from dst_analyze.sweep.engines.jobs import Job, JobResult, Output
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.engines.serialize import ReplannedTask
from dst_analyze.sweep.training.trial import Task


class Engine(Protocol):
    """Runs trials: here, in local processes, or on a cluster. Results must not depend on which, nor on the order."""

    @property
    def jobs(self) -> int:
        """How many jobs run at once."""

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        """One output for each, failures too; closing the iterator ends all that is still running."""


class InProcessEngine:
    """One job after the other in this process: for notebooks, and for what cannot travel to another process."""

    jobs = 1

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        for job in jobs:
            yield attempt(task, job, emit)


class WorkerPool(Protocol):
    """Workers elsewhere: who waits, who runs, and what becomes of them."""

    waiting: deque[Job[Any]]

    @property
    def running(self) -> Collection[Any]: ...

    @property
    def sendable(self) -> bool:
        """Whether the task can be sent to workers at all."""

    def start(self) -> None:
        """Send the next job that waits."""

    def ready(self) -> Iterable[Any]:
        """Wait for workers that have something to say, or are lost."""

    def receive(self, worker: Any) -> JobResult | None:
        """Pass on what a worker says; its output once it is there, or if it never will be."""

    def shutdown(self) -> None:
        """End all that is still running."""


def run_pool(pool: WorkerPool, most: int, task: Task, emit: Emit) -> Generator[Any, None, None]:
    """Keep at most so many workers busy until all is done; right here, if nothing can be sent."""
    try:
        while pool.waiting or pool.running:
            while pool.waiting and len(pool.running) < most and pool.sendable:
                pool.start()
            if not pool.sendable and not pool.running:
                yield from InProcessEngine().run(task, pool.waiting, emit)
                return
            for worker in pool.ready():
                done = pool.receive(worker)
                if done is not None:
                    yield done.output
    finally:
        pool.shutdown()


def attempt(task: Task | ReplannedTask, job: Job[Output], emit: Emit) -> Output:
    """Run a job; whatever it raises is its result."""
    started = time.perf_counter()
    try:
        with torch_threads(task.threads):
            return job.run(task.task() if isinstance(task, ReplannedTask) else task, emit)
    except DstError as error:
        reason = f"{error.cause} (at {error.place})" if error.place else error.cause
    except Exception as error:
        reason = headline(error)
    return job.failed(reason, time.perf_counter() - started)

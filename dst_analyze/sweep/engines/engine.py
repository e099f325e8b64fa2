"""The interface of engines, which run the jobs of a task and yield their outputs, and the in-process engine."""

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
from dst_analyze.sweep.engines.sending.serialize import ReplannedTask
from dst_analyze.sweep.training.trial import Task


class Engine(Protocol):
    """A runner of jobs: in this process, in local workers or on a cluster. Results must not depend on which one."""

    @property
    def jobs(self) -> int:
        """The number of jobs that run at once."""

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        """Yield one output per job, failed ones too, in any order; closing the generator ends running jobs."""


class InProcessEngine:
    """An engine that runs one job after the other in this process: for notebooks and for models that cannot be sent."""

    jobs = 1

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        for job in jobs:
            yield attempt(task, job, emit)


class WorkerPool(Protocol):
    """A pool of worker processes or tasks, with the jobs that wait and those that run."""

    waiting: deque[Job[Any]]

    @property
    def running(self) -> Collection[Any]: ...

    @property
    def sendable(self) -> bool:
        """True if the task can be sent to workers."""

    def start(self) -> None:
        """Start the next waiting job."""

    def ready(self) -> Iterable[Any]:
        """Wait for messages; return the workers that have sent one or are lost."""

    def receive(self, worker: Any) -> JobResult | None:
        """Emit a worker's events; return its result if it has ended or is lost for good, else None."""

    def shutdown(self) -> None:
        """End all running jobs."""


def run_pool(pool: WorkerPool, most: int, task: Task, emit: Emit) -> Generator[Any, None, None]:
    """Run all jobs of a pool, at most ``most`` at once; in this process if the task cannot be sent."""
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
    """Return a job's output; an exception becomes the output of a failed job."""
    started = time.perf_counter()
    try:
        with torch_threads(task.threads):
            return job.run(task.task() if isinstance(task, ReplannedTask) else task, emit)
    except DstError as error:
        reason = f"{error.cause} (at {error.place})" if error.place else error.cause
    except Exception as error:
        reason = headline(error)
    return job.failed(reason, time.perf_counter() - started)

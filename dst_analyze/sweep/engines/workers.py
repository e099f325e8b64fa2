"""The choice of an engine: this process, worker processes, or Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from dst_analyze.errors import OptionError
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.gpus import default_gpu_jobs, refuse_jobs
from dst_analyze.sweep.engines.process_engine import ProcessEngine
from dst_analyze.sweep.engines.resources import cores, default_jobs
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.trial import Task

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class Workers:
    """The requested engine and number of jobs; without ``jobs``, as many as cores and memory allow.

    With ``here``, for calls from Python, the calling process trains unless several jobs or Ray are requested.
    """

    jobs: int | None = None
    engine: EngineName = "local"
    ray_address: str | None = None
    here: bool = False

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise OptionError(f"{self.jobs} trials at once are too few", place="--jobs", hint="give a number from 1")
        if self.engine == "local" and self.ray_address is not None:
            raise OptionError("local workers have no address", place="--ray-address", hint="add --engine ray")

    @property
    def in_this_process(self) -> bool:
        """True if the calling process trains."""
        return self.here and self.engine == "local" and self.jobs in (None, 1)

    @contextmanager
    def started(self, task: Task, request: Request | None, job_count: int | None = None) -> Iterator[Engine]:
        """Yield the engine that runs a task's jobs.

        Args:
            task: The task whose jobs will run.
            request: Lets workers plan the task again if it cannot be sent.
            job_count: The number of jobs; None if there are more than cores.
        """
        if self.in_this_process:
            yield InProcessEngine()
            return
        count = self.count(task, job_count)
        if self.engine == "local":
            yield ProcessEngine(count, request)
            return
        try:
            from dst_analyze.sweep.engines import ray_engine
        except ModuleNotFoundError as error:
            if error.name != "ray":
                raise
            raise OptionError(
                "Ray is not installed", place="--engine ray", hint="pip install 'dst-analyze[ray]'"
            ) from None
        with ray_engine.connected(self.ray_address, count * task.threads):
            yield ray_engine.RayEngine(task, self.jobs, request)

    def count(self, task: Task, job_count: int | None) -> int:
        """Return how many jobs run at once: as many as requested, else as cores, GPUs and memory allow."""
        gpu = task.device.name == "cuda" and self.engine == "local"
        if self.in_this_process:
            return 1
        if self.jobs is not None:
            if gpu and self.jobs > 1:
                refuse_jobs(self.jobs, task.gpu_memory)
            return self.jobs
        count = default_jobs(task.threads, cores() if job_count is None else job_count, task.traced.params)
        return min(count, default_gpu_jobs(task.gpu_memory)) if gpu else count

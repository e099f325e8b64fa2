"""The engine that runs each job in a new process of this machine, several at once."""

from __future__ import annotations

import pickle
import signal
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from dst_analyze.run.events import Emit, Notice
from dst_analyze.sweep.engines.engine import run_pool
from dst_analyze.sweep.engines.forkserver import context, defer_sigint, start_forkserver, users_method
from dst_analyze.sweep.engines.gpus import next_gpu, trials_per_gpu
from dst_analyze.sweep.engines.jobs import Job, JobResult, Output
from dst_analyze.sweep.engines.sending.serialize import UNSENDABLE, TaskTransport, copy_for_sending
from dst_analyze.sweep.engines.sending.shared_memory import keep_storages_alive
from dst_analyze.sweep.engines.worker import work
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.trial import Task

UNREAD = "a worker could not read them"
ATTEMPTS = 2  # a job is repeated once if its worker was killed, as memory may have run short for a moment


class ProcessEngine:
    """An engine of up to ``jobs`` worker processes, which plan the task from ``request`` if it cannot be sent."""

    def __init__(self, jobs: int, request: Request | None = None) -> None:
        self.jobs, self.request = jobs, request
        self._light = False  # True once data could not be sent, so that the notice is not repeated
        self._said: set[str] = set()  # warnings of workers

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        # A model and data that were loaded by name are not shared with the caller.
        sent = copy_for_sending(task) if self.request is None else task
        pool = _ProcessPool(TaskTransport(sent, self.request, emit, light=self._light), deque(jobs), emit, self._said)
        if pool.waiting:
            start_forkserver()
        yield from run_pool(pool, self.jobs, task, emit)
        self._light = pool.transport.light


@dataclass
class _Worker:
    """A running worker process with its job."""

    job: Job[Any]
    process: BaseProcess
    pipe: Connection
    started: float
    gpu: int | None = None
    heard: bool = False

    def exit_reason(self) -> str:
        """Return why the process ended, for a message."""
        code = self.process.exitcode or 0
        if code < 0:
            return f"its worker process was killed by {signal.Signals(-code).name}"
        return f"its worker process exited with code {code}, see its messages above"


class _ProcessPool:
    """The worker processes of one task; jobs of killed workers are repeated."""

    def __init__(self, transport: TaskTransport, waiting: deque[Job[Any]], emit: Emit, said: set[str]) -> None:
        self.transport, self.waiting, self.emit, self.said = transport, waiting, emit, said
        self.running: list[_Worker] = []
        self.killed: Counter[str] = Counter()
        on_gpu = transport.task.device.name == "cuda"
        self.fitting = trials_per_gpu(transport.task.gpu_memory) if on_gpu else []

    @property
    def sendable(self) -> bool:
        return self.transport.payload is not None

    def start(self) -> None:
        """Send the next job to a new worker."""
        job = self.waiting[0]
        ours, theirs = context().Pipe(duplex=False)
        taken = [worker.gpu for worker in self.running if worker.gpu is not None]
        gpu = next_gpu(self.fitting, taken) if self.fitting else None
        sent = self.transport.payload, job, theirs, users_method(), gpu
        # Not a daemon: a user's DataLoader may start worker processes.
        process = context().Process(target=work, args=sent, daemon=False)  # type: ignore[attr-defined]
        try:
            with defer_sigint(), keep_storages_alive():
                process.start()
                self.running.append(_Worker(job, process, ours, time.perf_counter(), gpu))
        except (*UNSENDABLE, BrokenPipeError) as error:
            ours.close()
            # A broken pipe: the worker died while it was unpickling.
            died = isinstance(error, BrokenPipeError)
            self.transport.fall_back(UNREAD if died else f"{type(error).__name__}: {error}")
            return
        finally:
            theirs.close()
        self.waiting.popleft()

    def ready(self) -> list[_Worker]:
        """Wait for messages; return the workers that have sent one or have died."""
        ready = set(wait([source for w in self.running for source in (w.pipe, w.process.sentinel)]))
        return [worker for worker in self.running if ready & {worker.pipe, worker.process.sentinel}]

    def receive(self, worker: _Worker) -> JobResult | None:
        """Emit a worker's events; return its result if it has ended or is lost for good, else None."""
        try:
            while worker.pipe.poll():
                message: Any = worker.pipe.recv()
                worker.heard = True
                if isinstance(message, JobResult):
                    self._leave(worker)
                    return message
                if not (isinstance(message, Notice) and message.text in self.said):  # each worker warns anew
                    self.emit(message)
                if isinstance(message, Notice):
                    self.said.add(message.text)
            if worker.process.is_alive():
                return None
        except (EOFError, OSError, pickle.UnpicklingError):  # the worker died, perhaps while sending a message
            pass
        self._leave(worker)
        return self._died(worker)

    def shutdown(self) -> None:
        """Kill all running workers."""
        for worker in self.running:
            worker.process.kill()
        while self.running:
            self._leave(self.running[0])

    def _leave(self, worker: _Worker) -> None:
        self.running.remove(worker)
        worker.process.join()
        worker.pipe.close()

    def _died(self, worker: _Worker) -> JobResult | None:
        job, reason = worker.job, worker.exit_reason()
        if (worker.process.exitcode or 0) < 0:
            self.killed[job.name] += 1
            if self.killed[job.name] < ATTEMPTS:
                self.emit(job.retry_event(reason))
                self.waiting.appendleft(job)
                return None
            reason += f", {ATTEMPTS} times"
        elif not worker.heard and self.transport.can_fall_back:
            self.transport.fall_back(UNREAD)
            self.waiting.appendleft(job)
            return None
        return JobResult(job.failed(reason, time.perf_counter() - worker.started))

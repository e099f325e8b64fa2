"""The engine that runs jobs as Ray tasks, on a cluster or on this machine; jobs of lost nodes are repeated."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from dst_analyze.errors import DstError, InputError, OptionError
from dst_analyze.model.user_errors import headline
from dst_analyze.run.events import Emit, Notice
from dst_analyze.sweep.engines.engine import run_pool
from dst_analyze.sweep.engines.gpus import share_of_gpu
from dst_analyze.sweep.engines.jobs import Job, JobResult, Output
from dst_analyze.sweep.engines.process_engine import ATTEMPTS, UNREAD
from dst_analyze.sweep.engines.ray_worker import VERSIONS, UnpickleFailed, pack, work
from dst_analyze.sweep.engines.sending.code_bundle import CodeBundle
from dst_analyze.sweep.engines.sending.serialize import UNSENDABLE, TaskTransport
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.trial import Task

NODES = 4  # attempts of a job whose node is lost, which is common on preemptible machines
PATIENCE = 60.0  # seconds to wait for a node that can run a job
_CONNECTING = 5.0  # seconds
_LEAVING = 2.0  # seconds that Ray's processes have to end by themselves
_POLL = 0.5  # seconds between two checks for living nodes
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray's future default; without it Ray warns
}

# Messages by Ray's error. A job that was lost with its node did not cause that, so it gets more attempts.
_LOST: dict[type[RayError], str] = {
    NodeDiedError: "its node was lost",
    ObjectLostError: "its result was lost with its node",
    OutOfMemoryError: "Ray killed its worker process, as its node's memory ran short",
    WorkerCrashedError: "its worker process was killed or crashed",
}
_BLAMELESS = (NodeDiedError, ObjectLostError)


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Connect to Ray: the existing connection, else the cluster at an address, else a new Ray on this machine.

    A connection or cluster that was made here is closed at the end.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    with _quiet(), _on_loopback() if address == "local" else nullcontext():
        before = psutil.Process().children()
        try:
            with _in_own_groups():
                _connect(address, cpus)
            with _sigterm_as_exit():
                yield
        finally:
            started = _descendants(before)
            ray.shutdown()
            _end(started)


def _descendants(but: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes of a Ray that was started here, its workers' own among them."""
    new = [process for process in psutil.Process().children() if process not in but]
    below: list[psutil.Process] = []
    for process in new:
        with suppress(psutil.NoSuchProcess):
            below += process.children(recursive=True)
    return [*new, *below]


def _end(processes: Sequence[psutil.Process]) -> None:
    """Kill what has not ended by itself: a worker in the middle of a step hears of the end only after it."""
    _, alive = psutil.wait_procs(processes, timeout=_LEAVING)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let a Ray of this machine listen on 127.0.0.1 alone, as it does by itself on a Mac.

    Ray takes a loopback address that it is given for a mistake, and puts the machine's own in its place.
    """
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    known = os.environ.get(name)
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if known is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = known


@contextmanager
def _in_own_groups() -> Iterator[None]:
    """Start the processes of a Ray of this machine in process groups of their own.

    A signal to this process's group would end them, too, and Ray aborts a program that it sees itself dying under. On
    Linux the kernel ends them with this process; elsewhere Ray needs them in its group for that.
    """
    if sys.platform != "linux":
        yield
        return
    before = services.ConsolePopen
    services.ConsolePopen = partial(before, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM end this process as Ctrl-C does: Ray's own handler, which it sets when it starts, aborts it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _connect(address: str, cpus: int) -> None:
    alone = {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        if address not in ("local", "auto"):
            _probe_port(address)
        ray.init(address, log_to_driver=False, configure_logging=False, **(alone if address == "local" else {}))
    except Exception as error:  # a daemon that is too slow to start is a bare one
        if address == "local":
            raise OptionError(
                f"Ray did not start on this machine: {headline(error)}",
                place="--engine ray",
                hint="on an overloaded machine Ray's daemon needs more than its 30 seconds: start it before with "
                "`ray start --head`, and pass --ray-address auto",
            ) from error
        raise OptionError(
            f"no Ray cluster answers there: {headline(error)}",
            place=f"--ray-address {address}",
            hint="give HOST:PORT of a cluster's head as `ray start --head` prints it (and set RAY_AUTH_MODE=token if "
            "it asks for a token), `auto` on a node of the cluster, or no address for a new Ray on this machine",
        ) from error


def _probe_port(address: str) -> None:
    """Raise within seconds if nothing listens at the address; Ray itself would retry for minutes."""
    if "://" in address:
        raise ValueError("Ray Client addresses are not supported; run the command on a node of the cluster")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("this is no HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECTING).close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Disable Ray's usage statistics and its messages below errors, unless the environment sets them."""
    log, before = logging.getLogger("ray"), os.environ.copy()
    level = log.level
    log.setLevel(logging.ERROR)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        log.setLevel(level)
        for name in _QUIET.keys() - before.keys():
            os.environ.pop(name, None)


@dataclass(frozen=True)
class ResourceRequest:
    """The CPUs and GPUs that a job reserves on a node."""

    cpus: int
    gpus: float

    @classmethod
    def of(cls, task: Task, jobs: int | None = None) -> ResourceRequest:
        """Return one CPU per thread of a trial, but no more than the largest node has, and its share of a GPU.

        Ray would let a job wait forever for a node that is large enough; with fewer CPUs it is only slower. A trial has
        a GPU for itself unless more ``jobs`` are asked for than the cluster has GPUs.
        """
        gpus: float = int(task.device.name == "cuda")
        largest = max((int(node.get("CPU", 0)) for node in _nodes() if node.get("GPU", 0) >= gpus), default=0)
        if not largest:
            raise OptionError(
                f"no node of the Ray cluster has {'a GPU and a CPU' if gpus else 'a CPU'} to train on",
                place="--engine ray",
                hint="start such nodes and try again" + (", or give --device cpu" if gpus else ""),
            )
        if gpus and jobs is not None:
            gpus = share_of_gpu(jobs, sum(int(node.get("GPU", 0)) for node in _nodes()), task.gpu_memory)
        return cls(min(task.threads, largest), gpus)

    def fitting(self) -> int:
        """Return how many such jobs fit on the present nodes at once."""
        return sum(
            min(int(node.get("CPU", 0)) // self.cpus, int(node.get("GPU", 0) // self.gpus) if self.gpus else 1 << 30)
            for node in _nodes()
        )


def _nodes() -> list[dict[str, float]]:
    """Return the resources of each living node."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class RayEngine:
    """An engine of Ray tasks, for a process that is `connected`; at most ``jobs`` run at once, if given."""

    def __init__(self, task: Task, jobs: int | None, request: Request | None) -> None:
        self.resources, self.limit, self.request = ResourceRequest.of(task, jobs), jobs, request
        self._light = False  # True once data could not be sent, so that the notice is not repeated

    @property
    def jobs(self) -> int:
        fitting = self.resources.fitting()
        return min(fitting, self.limit or fitting)

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        pool = _RayPool(TaskTransport(task, self.request, emit, light=self._light), self.resources, deque(jobs), emit)
        # Without a limit all jobs are submitted at once, so that nodes that join later get work.
        yield from run_pool(pool, self.limit or 1 << 30, task, emit)
        self._light = pool.transport.light


@dataclass
class _Worker:
    """A job submitted to Ray."""

    job: Job[Any]
    messages: Any  # a ray.ObjectRefGenerator: events, then the output
    payload: object  # the task as it was sent
    started: float


class _RayPool:
    """The Ray tasks of one task; jobs of lost workers are repeated."""

    def __init__(
        self, transport: TaskTransport, resources: ResourceRequest, waiting: deque[Job[Any]], emit: Emit
    ) -> None:
        self.transport, self.resources, self.waiting, self.emit = transport, resources, waiting, emit
        self.running: dict[Any, _Worker] = {}
        self.lost: Counter[tuple[str, bool]] = Counter()
        self.without_nodes_since: float | None = None
        self.bundle = ray.put(CodeBundle.packed())
        # A new process for each job, as with local workers; no retries by Ray, as it emits no events for them.
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_calls": 1, "max_retries": 0}
        self.remote = ray.remote(num_returns="streaming", **options)(work)
        self.load = self._loaded()

    def _loaded(self) -> Any:
        """Return the task in Ray's object store; None if it cannot be sent."""
        while self.transport.payload is not None:
            try:
                return ray.put(pack(self.transport.payload))
            except UNSENDABLE as error:
                self.transport.fall_back(headline(error))
        return None

    @property
    def sendable(self) -> bool:
        return self.load is not None

    def start(self) -> None:
        job = self.waiting.popleft()
        messages = self.remote.remote(self.load, self.bundle, job, VERSIONS)
        self.running[messages] = _Worker(job, messages, self.transport.payload, time.perf_counter())

    def ready(self) -> list[_Worker]:
        """Wait a moment for messages; return the workers that have sent one or are lost."""
        if not self.running:
            return []
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=_POLL)
        if not ready:
            self._check_nodes()
        return [self.running[messages] for messages in ready]

    def receive(self, worker: _Worker) -> JobResult | None:
        """Emit a worker's next event; return its result if it has ended or is lost for good, else None."""
        try:
            message = ray.get(next(worker.messages))
        except tuple(_LOST) as error:
            del self.running[worker.messages]
            return self._lost(worker, error)
        except RayTaskError as error:
            del self.running[worker.messages]
            raise _start_error(error) from error
        if isinstance(message, JobResult):
            del self.running[worker.messages]
            return message
        if isinstance(message, UnpickleFailed):
            del self.running[worker.messages]
            return self._unread(worker, message.why)
        self.emit(message)
        return None

    def shutdown(self) -> None:
        for messages in self.running:
            ray.cancel(messages, force=True)
        self.running.clear()

    def _lost(self, worker: _Worker, error: RayError) -> JobResult | None:
        job, blameless = worker.job, isinstance(error, _BLAMELESS)
        reason = next(words for kind, words in _LOST.items() if isinstance(error, kind))
        self.lost[job.name, blameless] += 1
        times = self.lost[job.name, blameless]
        if times < (NODES if blameless else ATTEMPTS):
            self.emit(job.retry_event(reason))
            self.waiting.appendleft(job)
            return None
        return JobResult(job.failed(f"{reason}, {times} times", time.perf_counter() - worker.started))

    def _unread(self, worker: _Worker, why: str) -> JobResult | None:
        """Repeat the job with a lighter payload; return a failure if the lightest one could not be read."""
        if worker.payload is self.transport.payload and not self.transport.can_fall_back:
            taken = time.perf_counter() - worker.started
            return JobResult(worker.job.failed(f"a worker could not read the task: {why}", taken))
        if worker.payload is self.transport.payload:
            self.transport.fall_back(f"{UNREAD}: {why}")
            self.load = self._loaded()
        self.waiting.appendleft(worker.job)
        return None

    def _check_nodes(self) -> None:
        """Raise if there has been no node to run on for too long."""
        if self.resources.fitting():
            self.without_nodes_since = None
        elif self.without_nodes_since is None:
            self.without_nodes_since = time.monotonic()
            self.emit(Notice(f"the Ray cluster has no node left to train on: waiting {PATIENCE:.0f} s for another"))
        elif time.monotonic() - self.without_nodes_since > PATIENCE:
            raise DstError(
                "the Ray cluster has no node left to train on",
                hint="start nodes, then --resume: finished trials are kept",
            )


def _start_error(error: RayTaskError) -> DstError:
    """Return the error of a worker that could not start its job."""
    if isinstance(error.cause, DstError):
        return error.cause
    return InputError(
        f"a worker of the Ray cluster could not start a trial: {headline(error.cause or error)}",
        place="--engine ray",
        hint="install the versions of Python, torch and dst-analyze of this machine on every node",
    )

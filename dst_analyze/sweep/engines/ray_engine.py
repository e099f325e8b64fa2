"""Trials as Ray tasks, on a cluster or on a Ray of this machine alone; a trial whose node is lost runs elsewhere."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray._private import ray_constants
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
from dst_analyze.sweep.engines.code_bundle import CodeBundle
from dst_analyze.sweep.engines.engine import run_pool
from dst_analyze.sweep.engines.jobs import Job, JobResult, Output
from dst_analyze.sweep.engines.process_engine import ATTEMPTS, UNREAD
from dst_analyze.sweep.engines.ray_worker import VERSIONS, UnpickleFailed, pack, work
from dst_analyze.sweep.engines.serialize import UNSENDABLE, TaskTransport
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.trial import Task

NODES = 4  # a trial is tried on so many nodes that are lost: on machines that are cheap because they vanish, it happens
PATIENCE = 60.0  # seconds without any node that could run a trial
_CONNECTING = 5.0  # seconds
_LEAVING = 2.0  # seconds that Ray's processes have to end by themselves
_POLL = 0.5  # seconds between two looks at whether there are nodes left
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray warns that its default will become this
}

# What was lost, in a user's words. Whoever is lost with a node is not to blame for it.
_LOST: dict[type[RayError], str] = {
    NodeDiedError: "its node was lost",
    ObjectLostError: "its result was lost with its node",
    OutOfMemoryError: "Ray killed its worker process, as its node's memory ran short",
    WorkerCrashedError: "its worker process was killed or crashed",
}
_BLAMELESS = (NodeDiedError, ObjectLostError)


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Ray as this process has it already, else the cluster at an address, else one of this machine with these CPUs.

    What was connected or started here is disconnected or ended afterwards.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    with _quiet(), _on_loopback() if address == "local" else nullcontext():
        before = psutil.Process().children()
        try:
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
    except (OSError, ValueError, RuntimeError, RayError) as error:
        what = "Ray did not start on this machine" if address == "local" else "no Ray cluster answers there"
        raise OptionError(
            f"{what}: {headline(error)}",
            place=f"--ray-address {address}",
            hint="give HOST:PORT of a cluster's head as `ray start --head` tells it (and set RAY_AUTH_MODE=token if it "
            "asks for a token), `auto` on a node of the cluster, or no address for a Ray of this machine alone",
        ) from error


def _probe_port(address: str) -> None:
    """Raise within seconds if nothing listens at the address, where Ray would try again for minutes."""
    if "://" in address:
        raise ValueError("Ray Client addresses are not supported, run this on a node of the cluster")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("this is no HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECTING).close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray tells nobody of its use, and a user of errors only, unless the user's environment says otherwise."""
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
    """What a trial takes of a node."""

    cpus: int
    gpus: int

    @classmethod
    def of(cls, task: Task) -> ResourceRequest:
        """As many CPUs as the trial has threads, or as the largest node has: a trial for which no node is large enough
        would wait forever, one with more threads than CPUs is only slower."""
        gpus = int(task.device.name == "cuda")
        largest = max((int(node.get("CPU", 0)) for node in _nodes() if node.get("GPU", 0) >= gpus), default=0)
        if not largest:
            raise OptionError(
                f"no node of the Ray cluster has {'a GPU and a CPU' if gpus else 'a CPU'} to train on",
                place="--engine ray",
                hint="start nodes that have, then again" + (", or --device cpu" if gpus else ""),
            )
        return cls(min(task.threads, largest), gpus)

    def fitting(self) -> int:
        """How many such trials fit on the nodes there are now."""
        return sum(
            min(int(node.get("CPU", 0)) // self.cpus, int(node.get("GPU", 0)) if self.gpus else 1 << 30)
            for node in _nodes()
        )


def _nodes() -> list[dict[str, float]]:
    """What each living node has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class RayEngine:
    """A Ray task for each job, for a process that is `connected`; with ``jobs``, so many at once."""

    def __init__(self, task: Task, jobs: int | None, request: Request | None) -> None:
        self.resources, self.limit, self.request = ResourceRequest.of(task), jobs, request
        self._light = False  # as with local workers

    @property
    def jobs(self) -> int:
        fitting = self.resources.fitting()
        return min(fitting, self.limit or fitting)

    def run(self, task: Task, jobs: Iterable[Job[Output]], emit: Emit) -> Generator[Output, None, None]:
        pool = _RayPool(TaskTransport(task, self.request, emit, light=self._light), self.resources, deque(jobs), emit)
        # Without a limit all are handed to Ray at once: nodes that join later find work.
        yield from run_pool(pool, self.limit or 1 << 30, task, emit)
        self._light = pool.transport.light


@dataclass
class _Worker:
    """A job handed to Ray."""

    job: Job[Any]
    messages: Any  # a ray.ObjectRefGenerator: events, then the output
    payload: object  # what it was sent
    started: float


class _RayPool:
    """The Ray tasks of one task of ours: who waits, who runs, and what to do about those that are lost."""

    def __init__(
        self, transport: TaskTransport, resources: ResourceRequest, waiting: deque[Job[Any]], emit: Emit
    ) -> None:
        self.transport, self.resources, self.waiting, self.emit = transport, resources, waiting, emit
        self.running: dict[Any, _Worker] = {}
        self.lost: Counter[tuple[str, bool]] = Counter()
        self.alone_since: float | None = None
        self.bundle = ray.put(CodeBundle.packed())
        # A fresh process for each trial, as with local workers; and no retries but ours, which are told.
        options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_calls": 1, "max_retries": 0}
        self.remote = ray.remote(num_returns="streaming", **options)(work)
        self.load = self._loaded()

    def _loaded(self) -> Any:
        """The task, put where all nodes can fetch it; None if it cannot be."""
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
        """Wait a moment for workers that have something to say, or are lost."""
        if not self.running:
            return []
        ready, _ = ray.wait(list(self.running), num_returns=1, timeout=_POLL)
        if not ready:
            self._check_nodes()
        return [self.running[messages] for messages in ready]

    def receive(self, worker: _Worker) -> JobResult | None:
        """Pass on a worker's next event; its output once it is there, or if it never will be."""
        try:
            said = ray.get(next(worker.messages))
        except tuple(_LOST) as error:
            del self.running[worker.messages]
            return self._lost(worker, error)
        except RayTaskError as error:
            del self.running[worker.messages]
            raise _unable(error) from error
        if isinstance(said, JobResult):
            del self.running[worker.messages]
            return said
        if isinstance(said, UnpickleFailed):
            del self.running[worker.messages]
            return self._unread(worker, said.why)
        self.emit(said)
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
        """Send less, unless that has happened since."""
        if worker.payload is self.transport.payload and not self.transport.can_fall_back:
            taken = time.perf_counter() - worker.started
            return JobResult(worker.job.failed(f"a worker could not read the task: {why}", taken))
        if worker.payload is self.transport.payload:
            self.transport.fall_back(f"{UNREAD}: {why}")
            self.load = self._loaded()
        self.waiting.appendleft(worker.job)
        return None

    def _check_nodes(self) -> None:
        """Nobody waits forever for nodes that are gone."""
        if self.resources.fitting():
            self.alone_since = None
        elif self.alone_since is None:
            self.alone_since = time.monotonic()
            self.emit(Notice(f"the Ray cluster has no node left to train on: waiting {PATIENCE:.0f} s for another"))
        elif time.monotonic() - self.alone_since > PATIENCE:
            raise DstError(
                "the Ray cluster has no node left to train on", hint="start nodes, then --resume: what is done is kept"
            )


def _unable(error: RayTaskError) -> DstError:
    """A worker that could not even begin."""
    if isinstance(error.cause, DstError):
        return error.cause
    return InputError(
        f"a worker of the Ray cluster could not start a trial: {headline(error.cause or error)}",
        place="--engine ray",
        hint="every node needs Python, torch and dst-analyze in the versions of this machine",
    )

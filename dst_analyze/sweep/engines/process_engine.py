"""Trials in processes of this machine, several at once: each in a fresh one, so that none can touch another."""

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

from dst_analyze.run.events import Emit
from dst_analyze.sweep.engines.engine import run_crew
from dst_analyze.sweep.engines.forkserver import context, ctrl_c_later, users_method, warm_up
from dst_analyze.sweep.engines.jobs import Done, Errand, Output
from dst_analyze.sweep.engines.serialize import UNSENDABLE, Shipment, own
from dst_analyze.sweep.engines.shared_memory import held
from dst_analyze.sweep.engines.worker import work
from dst_analyze.sweep.planning.plan import Request
from dst_analyze.sweep.training.trial import Task

UNREAD = "a worker could not read them"
ATTEMPTS = 2  # a worker that was killed may have been unlucky once: memory ran short, somebody cleaned up


class LocalWorkers:
    """Up to ``jobs`` worker processes; ``again`` is how a worker plans the task itself if it cannot be sent."""

    def __init__(self, jobs: int, again: Request | None = None) -> None:
        self.jobs, self.again = jobs, again
        self._light = False  # whether an earlier run found that data cannot be sent: nobody is told twice

    def run(self, task: Task, errands: Iterable[Errand[Output]], emit: Emit) -> Generator[Output, None, None]:
        # A model and data that were asked for by name are nobody else's.
        sent = own(task) if self.again is None else task
        crew = _Crew(Shipment(sent, self.again, emit, light=self._light), deque(errands), emit)
        if crew.waiting:
            warm_up()
        yield from run_crew(crew, self.jobs, task, emit)
        self._light = crew.shipment.light


@dataclass
class _Worker:
    """A process at work."""

    errand: Errand[Any]
    process: BaseProcess
    pipe: Connection
    started: float
    heard: bool = False

    def epitaph(self) -> str:
        code = self.process.exitcode or 0
        if code < 0:
            return f"its worker process was killed by {signal.Signals(-code).name}"
        return f"its worker process ended by itself with exit code {code}, see its messages above"


class _Crew:
    """The workers of one task: who waits, who runs, and what to do about those that die."""

    def __init__(self, shipment: Shipment, waiting: deque[Errand[Any]], emit: Emit) -> None:
        self.shipment, self.waiting, self.emit = shipment, waiting, emit
        self.running: list[_Worker] = []
        self.killed: Counter[str] = Counter()

    @property
    def sendable(self) -> bool:
        return self.shipment.parcel is not None

    def start(self) -> None:
        """Send the next errand to a new worker."""
        errand = self.waiting[0]
        ours, theirs = context().Pipe(duplex=False)
        sent = self.shipment.parcel, errand, theirs, users_method()
        # No daemon: a user's DataLoader may have workers of its own.
        process = context().Process(target=work, args=sent, daemon=False)  # type: ignore[attr-defined]
        try:
            with ctrl_c_later(), held():
                process.start()
                self.running.append(_Worker(errand, process, ours, time.perf_counter()))
        except (*UNSENDABLE, BrokenPipeError) as error:
            ours.close()
            # Who could not read on has died in the middle of it.
            died = isinstance(error, BrokenPipeError)
            self.shipment.lighten(UNREAD if died else f"{type(error).__name__}: {error}")
            return
        finally:
            theirs.close()
        self.waiting.popleft()

    def ready(self) -> list[_Worker]:
        """Wait until workers have something to say, or have died."""
        said = set(wait([source for w in self.running for source in (w.pipe, w.process.sentinel)]))
        return [worker for worker in self.running if said & {worker.pipe, worker.process.sentinel}]

    def hear(self, worker: _Worker) -> Done | None:
        """Pass on a worker's events; its output once it is there, or if it never will be."""
        try:
            while worker.pipe.poll():
                said: Any = worker.pipe.recv()
                worker.heard = True
                if isinstance(said, Done):
                    self._leave(worker)
                    return said
                self.emit(said)
            if worker.process.is_alive():
                return None
        except (EOFError, OSError, pickle.UnpicklingError):  # it died, perhaps in the middle of a message
            pass
        self._leave(worker)
        return self._died(worker)

    def disband(self) -> None:
        for worker in self.running:
            worker.process.kill()
        while self.running:
            self._leave(self.running[0])

    def _leave(self, worker: _Worker) -> None:
        self.running.remove(worker)
        worker.process.join()
        worker.pipe.close()

    def _died(self, worker: _Worker) -> Done | None:
        errand, reason = worker.errand, worker.epitaph()
        if (worker.process.exitcode or 0) < 0:
            self.killed[errand.name] += 1
            if self.killed[errand.name] < ATTEMPTS:
                self.emit(errand.again(reason))
                self.waiting.appendleft(errand)
                return None
            reason += f", {ATTEMPTS} times"
        elif not worker.heard and self.shipment.can_be_lighter:
            self.shipment.lighten(UNREAD)
            self.waiting.appendleft(errand)
            return None
        return Done(errand.failed(reason, time.perf_counter() - worker.started))

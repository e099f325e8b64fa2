"""Processes for workers, without importing torch: the command line starts them before it imports torch itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

# A server process imports torch once and forks a worker per trial. It starts fresh, has trained nothing and holds no
# lock, so that forking it is safe, as forking a process in which torch has used its threads is not.
_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()


def context() -> BaseContext:
    return multiprocessing.get_context("forkserver" if _FORKSERVER else "spawn")


def users_method() -> str:
    """How processes are started that a user's code asks for, such as a DataLoader's: as if there were no workers."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def start_forkserver() -> None:
    """Let the server import what workers need while this process is still busy planning."""
    if _FORKSERVER:
        from multiprocessing import forkserver

        # torch's optimizers import torch._dynamo at their first use: 1.5 s that each worker would pay again.
        forkserver.set_forkserver_preload(
            ["dst_analyze.sweep.engines.worker", "dst_analyze.sweep.engines.serialize", "torch._dynamo"]
        )
        with _sigint_handled_by(signal.SIG_IGN):  # by the server for good: a child is born with what its parent ignores
            forkserver.ensure_running()


@contextmanager
def _sigint_handled_by(handler: Any) -> Iterator[None]:
    """Ctrl-C means something else for a while, where this thread has a say in it."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Ctrl-C waits until this is over: a server that is left in the middle of a request complains with a traceback.

    Blocking the signal would not do: it is blocked in one thread, another takes it, and Python still raises here.
    """
    came: list[int] = []
    try:
        with _sigint_handled_by(lambda number, frame: came.append(number)):
            yield
    finally:
        if came:
            signal.raise_signal(signal.SIGINT)


def stop_forkserver() -> None:
    """End the server at once; by itself it would notice only after it has imported everything."""
    if _FORKSERVER:
        from multiprocessing import forkserver

        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

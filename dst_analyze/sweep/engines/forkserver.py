"""The fork server of worker processes. Imports no torch: the command line starts it before it imports torch itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from typing import Any

# A server process imports torch once and forks a worker per trial. It runs no torch code and holds no locks, so forking
# it is safe; forking a process in which torch has used its threads is not.
_FORKSERVER = "forkserver" in multiprocessing.get_all_start_methods()
WAITING_THREADS = {"GOMP_SPINCOUNT": "5000"}
"""Lets threads that wait for each other sleep soon: by default they spin for long, and on a busy machine take the
core from the one that they wait for (docs/experiments/cost.md, Threads). Read as torch is imported."""
_SERVER_SETTINGS = {"PYTHONSAFEPATH": "1", **WAITING_THREADS}
_SET = "DST_ANALYZE_SET"  # names the settings that the user's environment did not have


def context() -> BaseContext:
    """Return the multiprocessing context that workers are started with."""
    return multiprocessing.get_context("forkserver" if _FORKSERVER else "spawn")


def users_method() -> str:
    """Return the start method for the user's own processes, such as a DataLoader's: the one this process would use."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def start_forkserver() -> None:
    """Start the server, which imports what workers need while this process is planning."""
    if _FORKSERVER:
        from multiprocessing import forkserver

        # torch's optimizers import torch._dynamo at their first use, which would cost each worker 1.5 s.
        forkserver.set_forkserver_preload(
            ["dst_analyze.sweep.engines.worker", "dst_analyze.sweep.engines.sending.serialize", "torch._dynamo"]
        )
        # The server inherits both, and ignores Ctrl-C for good.
        with _sigint_handled_by(signal.SIG_IGN), _server_environment():
            forkserver.ensure_running()


@contextmanager
def _server_environment() -> Iterator[None]:
    """Temporarily set what the server is to inherit; the user's own settings stay.

    It imports from where this process does, and not from the current folder, as ``python -c`` would.
    """
    new = {name: value for name, value in _SERVER_SETTINGS.items() if name not in os.environ}
    os.environ |= {**new, _SET: ",".join(new)}
    try:
        yield
    finally:
        restore_environment()


def restore_environment() -> None:
    """Remove from the environment what the server was started with, for programs that the user's code starts."""
    for name in os.environ.pop(_SET, "").split(","):
        os.environ.pop(name, None)


@contextmanager
def _sigint_handled_by(handler: Any) -> Iterator[None]:
    """Temporarily replace the SIGINT handler (main thread only)."""
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
    """Defer Ctrl-C until the end of the block, as a server interrupted in a request prints a traceback.

    Blocking the signal is not enough: it is blocked per thread, so another one takes it and Python still raises here.
    """
    received: list[int] = []
    try:
        with _sigint_handled_by(lambda number, frame: received.append(number)):
            yield
    finally:
        if received:
            signal.raise_signal(signal.SIGINT)


def stop_forkserver() -> None:
    """Kill the server; by itself it would end only after all of its imports."""
    if _FORKSERVER:
        from multiprocessing import forkserver

        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

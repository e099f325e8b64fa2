"""The code of a worker process, which runs one job and sends its events and its result through a pipe."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from dst_analyze.run.events import Notice
from dst_analyze.sweep.engines.engine import attempt
from dst_analyze.sweep.engines.forkserver import restore_environment
from dst_analyze.sweep.engines.jobs import Job, JobResult
from dst_analyze.sweep.engines.sending.serialize import ReplannedTask
from dst_analyze.sweep.training.trial import Task


def work(
    task: Task | ReplannedTask, job: Job[Any], pipe: Connection, users_method: str, gpu: int | None = None
) -> None:
    """Run one job and return, on one of several GPUs if given; ``task`` was sent as a `PickledTask`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    restore_environment()
    os.dup2(2, 1)  # stdout is for results, not for what a user's model prints
    # A child of the fork server would start processes by it: a DataLoader's worker would import the user's file by a
    # name that only this process knows.
    multiprocessing.set_start_method(users_method, force=True)
    if gpu is not None:
        torch.cuda.set_device(gpu)  # what "cuda" means from here on
    threading.Thread(target=_follow_parent, daemon=True).start()
    _hand_over_warnings(lambda text: pipe.send(Notice(text)))
    pipe.send(JobResult(attempt(task, job, pipe.send)))
    pipe.close()


def _hand_over_warnings(say: Callable[[str], None]) -> None:
    """Let the parent print warnings, also those that packages log: it knows what other workers have said."""
    handled = logging.Logger.callHandlers

    def logged(logger: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            say(f"{record.name}: {record.getMessage()}")
        else:
            handled(logger, record)

    logging.Logger.callHandlers = logged  # type: ignore[assignment, method-assign]
    warnings.showwarning = lambda *warning: say(_words(*warning))


def _words(message: Warning | str, category: type[Warning], file: str, line: int, *_: object) -> str:
    return f"{category.__name__}: {message} ({file}:{line})"


def _follow_parent() -> None:
    """Exit when the parent process has ended, for whatever reason."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

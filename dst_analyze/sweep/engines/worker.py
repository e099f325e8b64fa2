"""What runs in a worker process: one job, its events and its output sent back through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from dst_analyze.sweep.engines.engine import attempt
from dst_analyze.sweep.engines.jobs import Job, JobResult
from dst_analyze.sweep.engines.serialize import ReplannedTask
from dst_analyze.sweep.training.trial import Task


def work(task: Task | ReplannedTask, job: Job[Any], pipe: Connection, users_method: str) -> None:
    """Run one job and end; the task was sent as a `PickledTask` and has unpacked itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    os.dup2(2, 1)  # what a user's model prints is no result
    # A process of the server's has the server for default: a DataLoader's would import the user's file by a name
    # that only this process knows.
    multiprocessing.set_start_method(users_method, force=True)
    threading.Thread(target=_follow_parent, daemon=True).start()
    pipe.send(JobResult(attempt(task, job, pipe.send)))
    pipe.close()


def _follow_parent() -> None:
    """A worker whose parent is gone, however it went, has nobody left to work for."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

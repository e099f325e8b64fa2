"""One process at a time writes a run folder, and the others are told which one."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from dst_analyze.errors import FolderError
from dst_analyze.run.config import Json
from dst_analyze.run.files.atomic_io import write_text, writing
from dst_analyze.run.files.safe_read import MB, read_bytes

LOCK, OWNER = ".lock", ".owner.json"


class Owner(Json):
    """Who is writing: enough to find the process, or to see that it is on another machine."""

    pid: int
    host: str
    since: str

    def describe(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. The system frees it when its holder dies, however it dies: no lock is ever stale."""
    # The owner stands in a file of its own: whoever tries the lock opens it and may empty it.
    lock, owner = FileLock(folder / LOCK, timeout=0), folder / OWNER
    _refuse_link(folder / LOCK)
    with writing(folder / LOCK):
        try:
            lock.acquire()
        except Timeout:
            raise in_use(folder) from None
    job = _job(folder)
    try:
        _held.add(job)
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        write_text(owner, Owner(pid=os.getpid(), host=socket.gethostname(), since=now).model_dump_json() + "\n")
        yield
    finally:
        _held.discard(job)
        with suppress(OSError):
            owner.unlink(missing_ok=True)
        lock.release()


_held: set[tuple[str, int, int]] = set()


def is_held(folder: Path) -> bool:
    """Return whether this thread of this process holds the folder's lock."""
    return _job(folder) in _held


def _job(folder: Path) -> tuple[str, int, int]:
    return os.path.realpath(folder), os.getpid(), threading.get_ident()


def check_unlocked(folder: Path) -> None:
    """Refuse a folder that another live process is writing."""
    if is_held(folder) or not (folder / LOCK).exists():
        return
    _refuse_link(folder / LOCK)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
        lock.release()
    except Timeout:
        raise in_use(folder) from None
    except OSError:
        pass  # a folder that cannot be written to is refused where that is said


def _refuse_link(lock: Path) -> None:
    """Whoever takes a lock may empty the file."""
    if lock.is_symlink():
        raise FolderError(
            "the lock is a link to another file", place=str(lock), hint="remove it, if you know what it is"
        )


def in_use(folder: Path) -> FolderError:
    try:
        owner = Owner.model_validate_json(read_bytes(folder / OWNER, MB)).describe()
    except (OSError, ValidationError, UnicodeDecodeError):  # the owner is just coming or going
        owner = "another process"
    return FolderError(
        f"this run folder is being written by {owner}",
        place=str(folder),
        hint="wait for it, stop it, or choose another --out",
    )

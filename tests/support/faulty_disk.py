"""A disk that fails: in a child process, one operation in a folder raises an error, or is the last that happens."""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

OPERATIONS = ("open", "write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir")
FAULTS = ("ENOSPC", "EIO", "kill")
KILLED = -signal.SIGKILL


@dataclass
class FaultyDisk:
    """Counts the operations that change what is beneath a folder; the one numbered ``at`` goes wrong.

    An error is raised in its place, and a kill comes after it; of a write, half of the bytes are written in both cases.
    """

    root: str
    fault: str = ""
    at: int = -1
    done: list[str] = field(default_factory=list)

    def install(self) -> None:
        for name in OPERATIONS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args, **options):
            path = self._path(name, args, options)
            if path is None:
                return real(*args, **options)
            self.done.append(f"{name} {os.path.relpath(path, self.root)}")
            if len(self.done) - 1 != self.at:
                return real(*args, **options)
            if name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            elif self.fault == "kill":
                with suppress(OSError):
                    real(*args, **options)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            number = getattr(errno, self.fault)
            raise OSError(number, os.strerror(number), path)

        return call

    def _path(self, name: str, args: tuple, options: dict) -> str | None:
        """Return what an operation is on; None if that is elsewhere, or only read."""
        if name == "open" and not args[1] & (os.O_CREAT | os.O_WRONLY):
            return None
        if name in ("write", "fsync"):
            path = _of_descriptor(args[0])
        else:
            path = os.fspath(args[0])
            folder = options.get("dir_fd")
            path = os.path.join(_of_descriptor(folder), path) if folder is not None else os.path.abspath(path)
        return path if path == self.root or path.startswith(self.root + os.sep) else None


def _of_descriptor(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def run_apart(work: Callable[[], int], disk: FaultyDisk, log: Path) -> int:
    """Run something in a forked process on a disk, and return its exit code; -9 if it was killed.

    What it prints goes to ``log``, and what the disk was asked to do, if nothing went wrong, to ``log``.ops.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(out, 1)
            os.dup2(out, 2)
            sys.stdout, sys.stderr = (open(out, "w", closefd=False) for _ in range(2))  # noqa: SIM115
            disk.install()
            code = work()
            log.with_suffix(".ops").write_text("\n".join(disk.done))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)

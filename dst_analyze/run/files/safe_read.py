"""Reading files that anybody may have written: no link is followed, nothing but a file is opened, nothing without end.

A run folder from a stranger may hold a link to a file of the reader's, a pipe that never ends, or a file of terabytes
that takes no room on its disk. All of these are errors of the file, as if it could not be read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

MB = 1 << 20
JSON_MOST, CSV_MOST, MASKS_MOST, WEIGHTS_MOST = 64 * MB, 64 * MB, 1024 * MB, 4096 * MB
"""Bytes beyond which a file is no such file: a thousand layers and trials need a tenth of it."""
SUMMED_MOST, FOLDER_MOST = 2 * 1024 * MB, 16 * 1024 * MB
"""Bytes of the files of one folder, and of all trials together: nearly all are masks. Summing them takes seconds."""

_MOST_NESTED, _MOST_VALUES = 200_000, 4_000_000  # objects and lists of a JSON file, and values in them

COMMIT, REMOVED = ".commit", "removed"
"""A set of files on its way into its folder (`atomic_io.replace_files`), and the names of those that it takes away."""

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def open_regular_file(path: Path, most: int) -> Iterator[BufferedReader]:
    """A plain file of bearable size, for reading; an OSError that says so for anything else."""
    descriptor = _open_current(path)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file")
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most // MB} MB")
        yield file


def is_there(path: Path) -> bool:
    """Return whether a folder has a file of this name, whatever it is."""
    pending = path.parent / COMMIT
    if _is_folder(pending):
        if os.path.lexists(pending / path.name):
            return True
        if path.name in names_removed(pending):
            return False
    return os.path.lexists(path)


def names_removed(pending: Path) -> list[str]:
    """Return the names that a committed set takes away."""
    try:
        with os.fdopen(_open(pending / REMOVED), "rb") as file:
            return file.read(MB).decode("utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return []


def _open_current(path: Path) -> int:
    """Open a file where it is: a set that is committed counts, though it may not have been moved into place yet."""
    pending = path.parent / COMMIT
    if _is_folder(pending):
        with suppress(FileNotFoundError):
            return _open(pending / path.name)
        if path.name in names_removed(pending):
            raise FileNotFoundError(errno.ENOENT, "it has been removed")
    return _open(path)


def _open(path: Path) -> int:
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a link, and links are not followed")
    return os.open(path, _FLAGS)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def read_bytes(path: Path, most: int) -> bytes:
    with open_regular_file(path, most) as file:
        return file.read(most)


def read_text(path: Path, most: int) -> str:
    return read_bytes(path, most).decode("utf-8")


def read_json_text(path: Path) -> str:
    """Return the text of a JSON file that is cheap to parse: an empty list has two bytes there, hundreds here."""
    data = read_bytes(path, JSON_MOST)
    if data.count(b"{") + data.count(b"[") > _MOST_NESTED or data.count(b",") > _MOST_VALUES:
        raise OSError(errno.EFBIG, "it holds more values than any run has")
    return data.decode("utf-8")


def folder_size(folder: Path) -> int:
    """Return the bytes of the files in a folder that are small enough to be summed; 0 if there is no folder."""
    try:
        with os.scandir(folder) as entries:
            sizes = [entry.stat(follow_symlinks=False).st_size for entry in entries]
            return sum(size for size in sizes if size <= MASKS_MOST)
    except OSError:
        return 0


def sha256_of(path: Path, most: int) -> str:
    with open_regular_file(path, most) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""Writing that survives a crash: a file or a folder appears whole under its name, with its checksums, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pandas as pd

from dst_analyze.errors import FolderError
from dst_analyze.run.safe_read import MASKS_MOST, MB, SUMMED_MOST, read_text, sha256_of
from dst_analyze.text import from_spreadsheet, spreadsheet_name

SUMS = "SHA256SUMS"
"""The checksums of the files beside it, as `sha256sum -c` reads them."""

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)  # of a file in the same folder
_LEFTOVER = re.compile(r"\..+\.\d+\.dst-(partial|old)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_text(path: Path, text: str) -> None:
    """Write a file whole: readers see the old text or the new, never half of one."""
    write_bytes(path, text.encode("utf-8"))


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    write_bytes(path, csv_bytes(frame))


def spreadsheet_safe(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The frame with columns of names that no spreadsheet takes for formulas; `as_named` gives them back."""
    return _renamed(frame, names, spreadsheet_name)


def as_named(frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    return _renamed(frame, names, from_spreadsheet)


def _renamed(frame: pd.DataFrame, names: Sequence[str], change: Callable[[str], str]) -> pd.DataFrame:
    new = {name: frame[name].map({old: change(old) for old in frame[name].unique()}) for name in names}
    return frame.assign(**new)


def csv_bytes(frame: pd.DataFrame) -> bytes:
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text.encode("utf-8")


def write_bytes(path: Path, data: bytes) -> None:
    partial = leftover(path, "partial")
    with writing(path):
        try:
            _write_durably(partial, data)
            partial.replace(path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_folder(final: Path, files: Mapping[str, bytes], unsummed: Mapping[str, bytes] | None = None) -> None:
    """Write a folder of files and their checksums whole, in place of one that may be there.

    ``unsummed`` files, such as timings, are written too but stand in no checksum.
    """
    partial, old = leftover(final, "partial"), leftover(final, "old")
    with writing(final):
        try:
            partial.mkdir()
            for name, data in {**files, SUMS: sums_of(files), **(unsummed or {})}.items():
                _write_durably(partial / name, data)
            sync_folder(partial)
            if final.exists():
                final.rename(old)
            partial.rename(final)
            sync_folder(final.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def sums_of(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())).encode()


def broken(folder: Path, needed: Iterable[str]) -> str:
    """What is wrong with a folder, measured against its checksums and the files it needs; empty if nothing is."""
    try:
        text = read_text(folder / SUMS, MB)
        wanted = {name: digest for digest, _, name in (line.partition("  ") for line in text.splitlines())}
    except FileNotFoundError:
        return f"{SUMS} is missing"
    except (OSError, UnicodeDecodeError):
        return f"{SUMS} cannot be read"
    if not text.endswith("\n") or not {*needed} <= {*wanted} or not all(map(_NAME.fullmatch, wanted)):
        return f"{SUMS} is damaged"
    size = 0
    for name, digest in wanted.items():
        try:
            length = (folder / name).lstat().st_size
            size += length if length <= MASKS_MOST else 0  # it is refused
            if size > SUMMED_MOST:
                return f"the files that {SUMS} names are larger than {SUMMED_MOST // MB:,} MB"
            found = sha256_of(folder / name, MASKS_MOST)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError from error
            return f"{name} cannot be read: {error.strerror}"
        if found != digest:
            return f"{name} differs from its checksum"
    return ""


def leftover(path: Path, kind: Literal["partial", "old"]) -> Path:
    """A hidden name beside a path, for what is being written or about to go."""
    return path.with_name(f".{path.name}.{os.getpid()}.dst-{kind}")


def is_leftover(name: str) -> bool:
    """Whether a name is one that only a process that was killed can have left."""
    return _LEFTOVER.fullmatch(name) is not None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Failures of the disk as errors that name the file and the way out."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        raise FolderError(
            f"cannot write {path.name}: {error.strerror}",
            place=str(path.parent),
            hint="make room, then --resume: what was finished is kept" if full else "may this folder be written to?",
        ) from error


def sync_folder(path: Path) -> None:
    """A rename is on disk only once its folder is."""
    with suppress(PermissionError):  # Windows opens no folders; there is nothing to do there
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_durably(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    with path.open("xb") as file:  # a new file: not one that a link there leads to
        file.write(data)
        file.flush()
        os.fsync(file.fileno())

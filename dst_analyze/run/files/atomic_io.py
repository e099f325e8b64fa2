"""Writing that survives a crash: a file or a folder appears whole under its name, with its checksums, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pandas as pd

from dst_analyze.errors import FolderError
from dst_analyze.run.files.safe_read import (
    COMMIT,
    MASKS_MOST,
    MB,
    REMOVED,
    SUMMED_MOST,
    WEIGHTS_MOST,
    names_removed,
    read_text,
    sha256_of,
)
from dst_analyze.text import from_spreadsheet, spreadsheet_name

SUMS = "SHA256SUMS"
"""The checksums of the files beside it, as `sha256sum -c` reads them."""

_NAME = re.compile(r"\w[\w.,=-]*", re.ASCII)  # of a file in the same folder
_LEFTOVER = re.compile(r"\..+\.\d+\.dst-(partial|old)")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_text(path: Path, text: str) -> None:
    """Write a file whole: readers see the old text or the new, never half of one."""
    write_bytes(path, text.encode("utf-8"))


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
            partial.unlink(missing_ok=True)
            _write_durably(partial, data)
            os.replace(partial, path)
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
            _stage(partial, {**files, SUMS: sums_of(files), **(unsummed or {})})
            if final.exists():
                os.rename(final, old)
            os.rename(partial, final)
            sync_folder(final.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)


def changed_since(path: Path) -> str:
    """Return what is another than `write_folder` has left it; empty if nothing is, or if nothing is there."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return f"{path.name} is no folder"
    if not path.exists():
        return ""
    strange = sorted({entry.name for entry in path.iterdir()} - {SUMS, *listed_sums(path)})
    return broken(path, most=WEIGHTS_MOST) or (f"{strange[0]} is not of it" if strange else "")


def remove_folder(path: Path) -> None:
    """Remove a folder of files whole: a process that is killed leaves all of it, or a leftover."""
    if not path.is_dir() or path.is_symlink():
        return
    old = leftover(path, "old")
    with writing(path):
        os.rename(path, old)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)


def replace_files(
    folder: Path,
    files: Mapping[str, bytes],
    removed: Iterable[str] = (),
    unsummed: Mapping[str, bytes] | None = None,
) -> None:
    """Write some files of a folder, and remove others, as one set; the folder's checksums follow.

    Whenever the process is killed, a reader of this package sees all of the old files or all of the new ones: the set
    is complete in a hidden folder before one rename commits it. `finish_commit` moves it into place.
    """
    with replacing(folder, files, removed, unsummed):
        pass


@contextmanager
def replacing(
    folder: Path,
    files: Mapping[str, bytes],
    removed: Iterable[str] = (),
    unsummed: Mapping[str, bytes] | None = None,
) -> Iterator[None]:
    """`replace_files` with a block that runs when the new files are safe on disk, before they are committed."""
    staged, unsummed = leftover(folder / "set", "partial"), unsummed or {}
    gone = sorted({*removed} - {*files, *unsummed})
    with writing(folder / next(iter((*files, *unsummed, *gone)), SUMS)):
        finish_commit(folder)
        before = listed_sums(folder)
        kept = {name: digest for name, digest in before.items() if name not in (*gone, *unsummed)}
        sums = {**kept, **{name: hashlib.sha256(data).hexdigest() for name, data in files.items()}}
        leaving = {REMOVED: "\n".join(gone).encode()} if gone else {}
        try:
            summed = {SUMS: _sums_text(sums)} if files or sums != before else {}
            _stage(staged, {**files, **unsummed, **leaving, **summed})
            yield
            os.rename(staged, folder / COMMIT)
            sync_folder(folder)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        finish_commit(folder)


def finish_commit(folder: Path) -> None:
    """Move a committed set into place; nothing is done where there is none. Needs the folder's lock."""
    pending = folder / COMMIT
    if pending.is_symlink() or not pending.is_dir():
        return
    with writing(folder / COMMIT):
        for name in filter(_NAME.fullmatch, sorted({*os.listdir(pending)} - {REMOVED, SUMS})):
            os.replace(pending / name, folder / name)
        for name in filter(_NAME.fullmatch, names_removed(pending)):
            (folder / name).unlink(missing_ok=True)
        if (pending / SUMS).exists():
            os.replace(pending / SUMS, folder / SUMS)
        sync_folder(folder)
        shutil.rmtree(pending)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing into a folder. Needs the lock: no process writes there now."""
    for entry in list(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        if is_leftover(entry.name) and entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif is_leftover(entry.name):
            with suppress(OSError):
                entry.unlink(missing_ok=True)


def _stage(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for name, data in files.items():
        _write_durably(folder / name, data)
    sync_folder(folder)


def sums_of(files: Mapping[str, bytes]) -> bytes:
    return _sums_text({name: hashlib.sha256(data).hexdigest() for name, data in files.items()})


def _sums_text(sums: Mapping[str, str]) -> bytes:
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())).encode()


def listed_sums(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder by name, as far as they can be read."""
    try:
        lines = read_text(folder / SUMS, MB).splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.partition("  ") for line in lines)
    return {name: digest for digest, _, name in pairs if _NAME.fullmatch(name) and _DIGEST.fullmatch(digest)}


def broken(
    folder: Path, needed: Iterable[str] = (), but: Collection[str] = (), only: str = "", most: int = MASKS_MOST
) -> str:
    """Return what is wrong with a folder, measured against its checksums and the files it needs; empty if nothing is.

    Of the files that are listed, those of ``but`` are not looked at; or ``only`` that one is.
    """
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
        if name in but or (only and name != only):
            continue
        try:
            length = (folder / name).lstat().st_size
            size += length if length <= most else 0  # it is refused
            if size > SUMMED_MOST:
                return f"the files that {SUMS} names are larger than {SUMMED_MOST // MB:,} MB"
            found = sha256_of(folder / name, most)
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
    descriptor = os.open(path, _NEW, 0o666)  # a new file: not one that a link there leads to
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files made of a sweep, such as plans and proofs: whether what a run folder holds of them can be believed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from dst_analyze.errors import FolderError
from dst_analyze.run.files.atomic_io import SUMS, broken, listed_sums
from dst_analyze.run.files.paths import LATENCY, WEIGHTS
from dst_analyze.run.files.safe_read import MASKS_MOST, MB, WEIGHTS_MOST, is_there, read_bytes
from dst_analyze.run.record import SweepRecord

T = TypeVar("T")

MAKE_AGAIN = "the command that made this folder, with --resume, makes it again from the trials"
_TRIES = 20


def was_made(record: SweepRecord, name: str) -> bool:
    """Return whether a run has such a file, be it damaged or lost."""
    return name in listed_sums(record.folder) or is_there(record.folder / name)


def damage_of(record: SweepRecord, name: str) -> str:
    """Return why a file cannot be believed; empty if it can, or if it was never made.

    In a run folder of a version that did not sum derived files, one without a checksum is taken as it is.
    """
    if name == LATENCY:
        return _latency_damage(record.folder / name)
    if name in listed_sums(record.folder):
        return broken(record.folder, only=name, most=WEIGHTS_MOST if name in WEIGHTS else MASKS_MOST)
    unsummed = record.manifest.sums == "all" and is_there(record.folder / name)
    return f"{name} has no checksum" if unsummed else ""


def _latency_damage(path: Path) -> str:
    """Return why a file of latencies cannot be believed. Its checksum is within: it is never the same twice."""
    if not is_there(path):
        return ""
    try:
        kept = json.loads(read_bytes(path, MB))
        whole = kept["sha256"] == values_sha256(kept["milliseconds"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        whole = False
    return "" if whole else f"{path.name} differs from its checksum"


def values_sha256(values: Mapping[str, float]) -> str:
    """Return the checksum that a file of latencies has of its values."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()


def is_whole(record: SweepRecord, name: str) -> bool:
    """Return whether a run has such a file and it can be believed."""
    return was_made(record, name) and not damage_of(record, name)


def check_derived(record: SweepRecord, name: str) -> None:
    """Raise a FolderError for a file that is damaged."""
    if why := damage_of(record, name):
        raise FolderError(f"{name} cannot be used: {why}", place=str(record.folder), hint=MAKE_AGAIN)


def read_together(folder: Path, read: Callable[[], T]) -> T:
    """Return what is read of a folder's files, all of one set: read again where another process replaced them."""
    for _ in range(_TRIES):
        before = _sums(folder)
        try:
            value = read()
        except FolderError:
            if _sums(folder) == before:
                raise
            continue
        if _sums(folder) == before:
            return value
    raise FolderError("the folder is being written all the time", place=str(folder), hint="wait for its writer")


def _sums(folder: Path) -> bytes:
    try:
        return read_bytes(folder / SUMS, MB)
    except OSError:
        return b""

"""Opening a run folder for writing: locked, never over something else, and with each trial whole or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from dst_analyze.errors import FolderError
from dst_analyze.run.atomic_io import (
    SUMS,
    broken,
    csv_bytes,
    is_leftover,
    leftover,
    spreadsheet_safe,
    sums_of,
    sync_folder,
    write_bytes,
    write_folder,
    writing,
)
from dst_analyze.run.config import Json, SweepConfig
from dst_analyze.run.events import Emit, Notice
from dst_analyze.run.lock import check_unlocked, locked
from dst_analyze.run.paths import (
    BASELINES,
    CONFIG,
    DERIVED,
    GRAPH,
    GROUP_COLUMNS,
    GROUPS,
    HEADER,
    INPUTS,
    LAYER_COLUMNS,
    LAYERS,
    MANIFEST,
    MASKS,
    NAME_COLUMNS,
    OPTIONS,
    READINGS,
    RESULT,
    SCALARS,
    STEPS,
    TIMING,
    TRIALS,
    VERIFIED,
    foreign,
    foreign_in_trial,
    is_blank,
    is_run_folder,
    trial_folder,
)
from dst_analyze.run.reader import FolderStatus, folder_status, read_header, read_json
from dst_analyze.run.record import (
    READING_COLUMNS,
    STEP_COLUMNS,
    ExampleInputs,
    Manifest,
    ModelGraph,
    Timing,
    TrialKey,
    TrialOutput,
)

Existing = Literal["refuse", "resume", "retry", "force"]
"""What to do with a run that is there: leave it unless it is complete, finish it, also retry failures, replace it."""


_ELSEWHERE = "choose another --out"
_CHANGES_SHOWN = 3


@dataclass(frozen=True)
class RunHeader:
    """What a run folder says of the whole sweep, known before the first trial."""

    config: SweepConfig
    manifest: Manifest
    layers: pd.DataFrame
    graph: ModelGraph | None = None
    groups: pd.DataFrame | None = None  # which layers must shrink together
    inputs: ExampleInputs | None = None

    def files(self) -> dict[str, bytes]:
        """The manifest first: it is what makes a folder ours."""
        files = {
            MANIFEST: _json_bytes(self.manifest),
            CONFIG: _json_bytes(self.config),
            LAYERS: csv_bytes(spreadsheet_safe(self.layers[list(LAYER_COLUMNS)], NAME_COLUMNS)),
        }
        if self.graph is not None:
            files[GRAPH] = f"{self.graph.model_dump_json(exclude_defaults=True)}\n".encode()
        if self.groups is not None:
            files[GROUPS] = csv_bytes(spreadsheet_safe(self.groups, list(GROUP_COLUMNS)))
        if self.inputs is not None:
            files[INPUTS] = f"{self.inputs.model_dump_json()}\n".encode()
        return {MANIFEST: files[MANIFEST], SUMS: sums_of(files), **files}


@dataclass(frozen=True)
class RunFolder:
    """A run folder that this process alone may write."""

    path: Path
    config: SweepConfig
    manifest: Manifest
    again: set[TrialKey]  # trials that are there but do not count: damaged, or to be tried once more

    def look(self) -> FolderStatus:
        """What is there by now, and what is missing."""
        return folder_status(self.path, self.config, self.manifest.first_alphas, but=self.again)

    def write_trial(self, output: TrialOutput) -> None:
        files = {
            RESULT: _json_bytes(output.result),
            READINGS: csv_bytes(spreadsheet_safe(output.readings[list(READING_COLUMNS)], ("layer",))),
            STEPS: csv_bytes(output.steps[list(STEP_COLUMNS)]),
        }
        if output.masks is not None:
            files[MASKS] = output.masks
        timing = {TIMING: _json_bytes(Timing(seconds=round(output.seconds, 3)))}
        write_folder(trial_folder(self.path, output.result.key), files, unsummed=timing)
        self.again.discard(output.result.key)


@contextmanager
def open_run(path: Path, header: RunHeader, existing: Existing, emit: Emit) -> Iterator[RunFolder]:
    """Lock the folder and bring it into a state in which the missing trials can be added."""
    check_free(path, header.config, existing)
    path = Path(os.path.realpath(path))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(
            f"cannot create a run folder here: {error.strerror}", place=str(path.parent), hint=_ELSEWHERE
        ) from error
    with locked(path):
        check_free(path, header.config, existing, locked=True)  # another process may have come first
        _remove_leftovers(path)
        if is_blank(path) or existing == "force":
            _start(path, header)
        else:
            header = _continue(path, header, emit)
        seen = folder_status(path, header.config, header.manifest.first_alphas)
        for why in seen.damaged.values():
            emit(Notice(f"{why}: it is run again"))
        again = {*seen.damaged, *(seen.failed if existing == "retry" else ())}
        _check_replaceable(path, again)
        if not seen.complete or again:
            for derived in DERIVED:
                (path / derived).unlink(missing_ok=True)  # of fewer trials than there will be
        yield RunFolder(path, header.config, header.manifest, again)


def check_free(path: Path, config: SweepConfig, existing: Existing, *, locked: bool = False) -> None:
    """Refuse a name that is taken or out of reach, before any work is done for it."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if there != path.absolute() and not there.is_dir():
        raise FolderError(f"cannot create a run folder: {there} is not a folder", place=str(path), hint=_ELSEWHERE)
    if there.is_dir():
        try:
            with tempfile.TemporaryFile(dir=there):  # permissions do not say it all: a disk may be read-only
                pass
        except OSError as error:
            raise FolderError(
                f"{there} cannot be written to: {error.strerror}", place=str(path), hint=_ELSEWHERE
            ) from error
    if is_blank(path):
        if path.exists() and not locked:
            check_unlocked(path)
        return
    if not is_run_folder(path):
        raise FolderError(
            "this exists and is not a run folder of dst-analyze, so it is left alone",
            place=str(path),
            hint=_ELSEWHERE,
        )
    if not locked:
        check_unlocked(path)
    if existing == "force":
        strange = foreign(path)
        if strange:
            raise FolderError(
                f"--force would delete files that are not the run's: {', '.join(strange[:5])}",
                place=str(path),
                hint="move them away, or choose another --out",
            )
        return
    manifest = read_json(path / MANIFEST, Manifest)  # a folder of another version says so here
    seen = folder_status(path, config, manifest.first_alphas)
    if broken(path, HEADER) and (existing != "refuse" or not seen.started):
        return  # whether the head can be written again is known when the new one is
    refuse_difference(path, read_header(path)[0].as_asked, config.as_asked, "configuration")
    if existing == "refuse" and seen.started and not seen.complete:
        raise _incomplete(path, seen)


def _incomplete(path: Path, seen: FolderStatus) -> FolderError:
    more = "" if seen.schedule.settled else " or more"
    parts = [f"{len(seen.missing)} of {len(seen.schedule.keys)}{more} trials are missing"] if seen.missing else []
    parts += list(seen.damaged.values())
    return FolderError(
        f"this configuration has been run in part: {'; '.join(parts)}",
        place=str(path),
        hint="--resume finishes it, --force starts over",
    )


def _start(path: Path, header: RunHeader) -> None:
    """Put a new header into the folder; what was there goes once the new one is safely on disk beside it."""
    staged, old = leftover(path / "head", "partial"), leftover(path / "run", "old")
    with writing(path / MANIFEST):
        try:
            staged.mkdir()
            for name, data in header.files().items():
                write_bytes(staged / name, data)
            old.mkdir()
            # The manifest goes last and comes first: at no moment is a folder of ours taken for somebody else's.
            beside = (OPTIONS, SCALARS, BASELINES, VERIFIED)
            for name in (*DERIVED, *beside, TRIALS, GRAPH, GROUPS, INPUTS, LAYERS, CONFIG, SUMS, MANIFEST):
                if (path / name).exists():
                    (path / name).rename(old / name)
            for name in header.files():
                (staged / name).rename(path / name)
            (path / TRIALS).mkdir()
            sync_folder(path)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _continue(path: Path, header: RunHeader, emit: Emit) -> RunHeader:
    """Check that the folder holds this very sweep; returns its header, written again where it was damaged."""
    why, new = broken(path, HEADER), header.files()
    (path / TRIALS).mkdir(exist_ok=True)
    if why:
        sums = path / SUMS
        same = sums.exists() and sums.read_bytes() == new[SUMS]
        if folder_status(path, header.config, header.manifest.first_alphas).started and not same:
            raise FolderError(
                f"the run folder cannot be continued: {why}", place=str(path), hint="--force starts the sweep over"
            )
        emit(Notice(f"{why}: written again"))
        for name, data in new.items():
            write_bytes(path / name, data)
        return header
    config, manifest = read_header(path)
    refuse_difference(path, config.as_asked, header.config.as_asked, "configuration")
    if config.alpha_factor is None and header.config.alpha_factor is not None:
        raise FolderError(
            "this folder was written before alphas had a scale: its alphas are literal",
            place=str(path),
            hint="choose another --out, or --force to replace it",
        )
    # Threads are the machine's, not the user's: a sweep goes on with as many as it began with.
    same_threads = header.manifest.model_copy(update={"threads": manifest.threads})
    if not manifest.model.files:  # a folder from before they were kept
        same_threads = same_threads.model_copy(update={"model": header.manifest.model.model_copy(update={"files": {}})})
    refuse_difference(path, manifest, same_threads, "model, data or versions")
    if header.groups is not None and not (path / GROUPS).exists():  # a folder from before they stood in the header
        write_bytes(path / GROUPS, new[GROUPS])
    return replace(header, config=config, manifest=manifest)


def _check_replaceable(path: Path, keys: Iterable[TrialKey]) -> None:
    """A trial that is run again replaces its folder: nothing of anybody else's may lie in there."""
    for key in keys:
        folder = trial_folder(path, key)
        strange = foreign_in_trial(folder) if folder.is_dir() else []
        if strange:
            raise FolderError(
                f"running {key.label} again would delete files that are not the run's: {', '.join(strange[:5])}",
                place=str(folder),
                hint="move them away",
            )


def _remove_leftovers(path: Path) -> None:
    """What a killed process was writing; the lock says that it is not writing any more."""
    for folder in (path, path / TRIALS):
        for entry in list(folder.iterdir()) if folder.is_dir() else ():
            if is_leftover(entry.name) and entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif is_leftover(entry.name):
                entry.unlink(missing_ok=True)


def refuse_difference(path: Path, old: Json, new: Json, what: str) -> None:
    """Raise if a run folder was made with other values than it would be now; both are named."""
    then, now = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    changes = [
        f"{name}: {then.get(name)!r} -> {now.get(name)!r}"
        for name in dict.fromkeys((*then, *now))
        if then.get(name) != now.get(name)
    ]
    if changes:
        left_out = len(changes) - _CHANGES_SHOWN
        if left_out > 0:
            changes = [*changes[: _CHANGES_SHOWN - 1], f"and {left_out + 1} more"]
        raise FolderError(
            f"this folder holds another run; {what}, there -> now:\n    " + "\n    ".join(changes),
            place=str(path),
            hint="choose another --out, or --force to replace it",
        )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by dotted name, so that a difference is no longer than it must be."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= _flat(item, f"{prefix}{name}.") if isinstance(item, dict) else {f"{prefix}{name}": item}
    return flat


def _json_bytes(value: Json) -> bytes:
    return f"{value.model_dump_json(indent=2, by_alias=True)}\n".encode()

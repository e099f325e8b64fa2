"""Opening a run folder for writing: locked, never over something else, and with each trial whole or not there."""

from __future__ import annotations

import hashlib
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
from dst_analyze.run.config import Json, SweepConfig
from dst_analyze.run.events import Emit, Notice
from dst_analyze.run.files.atomic_io import (
    SUMS,
    broken,
    csv_bytes,
    finish_commit,
    leftover,
    listed_sums,
    remove_leftovers,
    replace_files,
    replacing,
    spreadsheet_safe,
    write_folder,
    writing,
)
from dst_analyze.run.files.lock import check_unlocked, is_held, locked
from dst_analyze.run.files.paths import (
    CONFIG,
    DERIVED,
    GRAPH,
    GROUP_COLUMNS,
    GROUPS,
    HEADER,
    INPUTS,
    LAYER_COLUMNS,
    LAYERS,
    MADE,
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
    was_run_folder,
)
from dst_analyze.run.files.safe_read import JSON_MOST, is_there, read_bytes
from dst_analyze.run.reader import FolderStatus, FormatError, folder_status, read_header, read_json
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
        """Return the contents of its files by name."""
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
        return files


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
        tidy(path)
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
            replace_files(path, {}, removed=DERIVED)  # of fewer trials than there will be
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
    if not was_run_folder(path):
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
    why = _head_damage(path)
    if why and existing == "refuse" and _has_trials(path):
        raise FolderError(
            f"the run folder cannot be used: {why}",
            place=str(path),
            hint="--resume writes it again; whole trials are kept",
        )
    if why:
        return  # whether the head can be written again is known when the new one is
    then, manifest = read_header(path)
    refuse_difference(path, then.as_asked, config.as_asked, "configuration")
    seen = folder_status(path, config, manifest.first_alphas)
    if existing == "refuse" and seen.started and not seen.complete:
        raise _incomplete(path, seen)


@contextmanager
def editing(path: Path) -> Iterator[None]:
    """Hold the lock of a run folder while something is made of it, unless this job holds it already.

    What a killed process has left there is put right first. A folder that is no run has no lock.
    """
    if is_held(path) or not is_run_folder(path):
        yield
        return
    path = Path(os.path.realpath(path))
    with locked(path):
        tidy(path)
        yield


def tidy(path: Path) -> None:
    """Finish what a killed process had committed, and remove what it had not. Needs the lock."""
    for folder in (path, path / VERIFIED):
        if not folder.is_symlink():
            finish_commit(folder)
    for folder in (path, path / TRIALS, path / VERIFIED):
        remove_leftovers(folder)


def _head_damage(path: Path) -> str:
    """Return why the head of a run folder cannot be used, empty if it can; one of another format is refused."""
    try:
        read_header(path)
    except FormatError:
        raise
    except FolderError as error:
        return error.cause
    return broken(path, HEADER, but=MADE)


def _has_trials(path: Path) -> bool:
    trials = path / TRIALS
    return trials.is_dir() and any(not entry.name.startswith(".") for entry in trials.iterdir())


def _incomplete(path: Path, seen: FolderStatus) -> FolderError:
    more = "" if seen.schedule.settled else " or more"
    parts = [f"{len(seen.missing)} of {len(seen.schedule.keys)}{more} trials are missing"] if seen.missing else []
    parts += list(seen.damaged.values())
    return FolderError(
        f"this configuration has been run in part: {'; '.join(parts)}",
        place=str(path),
        hint="--resume finishes it",
    )


def _start(path: Path, header: RunHeader) -> None:
    """Put a new header into the folder; what was there goes once the new one is safely on disk beside it."""
    old = leftover(path / "run", "old")
    with replacing(path, header.files(), removed=(*MADE, OPTIONS, GRAPH, GROUPS, INPUTS)):
        old.mkdir()
        for name in (TRIALS, VERIFIED, SCALARS):  # trials first: they are never those of another head
            if (path / name).exists():
                os.rename(path / name, old / name)
    with writing(path / TRIALS):
        (path / TRIALS).mkdir()
    shutil.rmtree(old, ignore_errors=True)


def _continue(path: Path, header: RunHeader, emit: Emit) -> RunHeader:
    """Check that the folder holds this very sweep; returns its header, written again where it was damaged."""
    with writing(path / TRIALS):
        (path / TRIALS).mkdir(exist_ok=True)
    if why := _head_damage(path):
        _heal(path, header, why, emit)
    config, manifest = read_header(path)
    refuse_difference(path, config.as_asked, header.config.as_asked, "configuration")
    if config.alpha_factor is None and header.config.alpha_factor is not None:
        raise FolderError(
            "this folder was written before alphas had a scale: its alphas are literal",
            place=str(path),
            hint="choose another --out; --force would replace it",
        )
    refuse_difference(path, manifest, _as_begun(header.manifest, manifest), "model, data or versions")
    if header.groups is not None and GROUPS not in listed_sums(path):  # of before they stood in the header
        replace_files(path, {GROUPS: header.files()[GROUPS]})
    return replace(header, config=config, manifest=manifest)


def _as_begun(now: Manifest, then: Manifest) -> Manifest:
    """Return a manifest with what is the machine's, not the user's: a sweep goes on as it began."""
    model = now.model if then.model.files else now.model.model_copy(update={"files": {}})  # of before they were kept
    kept = {name: getattr(then, name) for name in ("threads", "warm_up_threads", "sums")}
    return now.model_copy(update={**kept, "model": model})


def _heal(path: Path, header: RunHeader, why: str, emit: Emit) -> None:
    """Write the damaged files of a head again. The trials, which have sums of their own, are left alone.

    A file is kept if it is as its checksum or this command says. One of the files that decide the numbers is written
    again only if its checksum says that it was the same.
    """
    listed, files, again = listed_sums(path), {}, []
    for name, data in header.files().items():
        there = _bytes_of(path / name)
        if there is not None and (there == data or _digest(there) == listed.get(name)):
            _refuse_other(path, name, header, why)
            files[name] = there
        elif name not in (CONFIG, MANIFEST) or listed.get(name) == _digest(data) or not _has_trials(path):
            files[name] = data
            again.append(name)
        elif there is not None and _fits(path / name, header):
            files[name] = there  # it is its checksum that is damaged
        else:
            raise FolderError(
                f"the run folder cannot be continued: {why}, and this command would not write it as it was",
                place=str(path),
                hint="give the options, model, data and versions of then, or another --out; whole trials are kept",
            )
    strange = [name for name in listed if name not in (*files, *MADE) and not is_there(path / name)]
    replace_files(path, files, removed=strange)
    emit(Notice(f"{why}: {', '.join(again) or SUMS} written again; whole trials are kept"))


def _refuse_other(path: Path, name: str, header: RunHeader, why: str) -> None:
    """Raise if a whole file of a damaged head is of another sweep than a header."""
    try:
        if name == CONFIG:
            there = read_json(path / name, SweepConfig)
            refuse_difference(path, there.as_asked, header.config.as_asked, "configuration")
        elif name == MANIFEST:
            manifest = read_json(path / name, Manifest)
            refuse_difference(path, manifest, _as_begun(header.manifest, manifest), "model, data or versions")
    except FolderError as error:
        raise FolderError(
            f"the run folder cannot be continued: {why}; {error.cause}", place=str(path), hint=_ELSEWHERE
        ) from error


def _fits(file: Path, header: RunHeader) -> bool:
    """Return whether a configuration or a manifest says what this command would write."""
    try:
        if file.name == CONFIG:
            return read_json(file, SweepConfig) == header.config
        there = read_json(file, Manifest)
        return there == _as_begun(header.manifest, there)
    except FolderError:
        return False


def _bytes_of(path: Path) -> bytes | None:
    try:
        return read_bytes(path, JSON_MOST)
    except OSError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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
            hint="choose another --out; --force would replace it",
        )


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by dotted name, so that a difference is no longer than it must be."""
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat |= _flat(item, f"{prefix}{name}.") if isinstance(item, dict) else {f"{prefix}{name}": item}
    return flat


def _json_bytes(value: Json) -> bytes:
    return f"{value.model_dump_json(indent=2, by_alias=True)}\n".encode()

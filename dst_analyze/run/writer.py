"""Opening a run folder for writing: locked, never over something else, and with each trial whole or not there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dst_analyze.errors import FolderError
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import Emit, Notice
from dst_analyze.run.files.atomic_io import (
    changed_since,
    csv_bytes,
    finish_commit,
    leftover,
    listed_sums,
    remove_folder,
    remove_leftovers,
    replace_files,
    replacing,
    spreadsheet_safe,
    write_folder,
    writing,
)
from dst_analyze.run.files.lock import check_unlocked, is_held, locked
from dst_analyze.run.files.paths import (
    DERIVED,
    EXPLORER,
    GRAPH,
    GROUPS,
    HUB,
    INPUTS,
    LADDER,
    MADE,
    MASKS,
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
from dst_analyze.run.header import (
    ELSEWHERE,
    RunHeader,
    as_begun,
    has_trials,
    header_damage,
    json_bytes,
    refuse_difference,
    repair_header,
)
from dst_analyze.run.reader import FolderStatus, folder_status, read_header
from dst_analyze.run.record import (
    READING_COLUMNS,
    STEP_COLUMNS,
    Manifest,
    Timing,
    TrialKey,
    TrialOutput,
)

Existing = Literal["refuse", "resume", "retry", "force"]
"""What to do with a run that is there: leave it unless it is complete, finish it, also retry failures, replace it."""


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
            RESULT: json_bytes(output.result),
            READINGS: csv_bytes(spreadsheet_safe(output.readings[list(READING_COLUMNS)], ("layer",))),
            STEPS: csv_bytes(output.steps[list(STEP_COLUMNS)]),
        }
        if output.masks is not None:
            files[MASKS] = output.masks
        timing = {TIMING: json_bytes(Timing(seconds=round(output.seconds, 3)))}
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
            f"cannot create a run folder here: {error.strerror}", place=str(path.parent), hint=ELSEWHERE
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
            replace_files(path, {}, removed=(*DERIVED, LADDER))  # of fewer trials than there will be
            for name in (HUB, EXPLORER):
                if not changed_since(path / name):
                    remove_folder(path / name)
        yield RunFolder(path, header.config, header.manifest, again)


def check_free(path: Path, config: SweepConfig, existing: Existing, *, locked: bool = False) -> None:
    """Refuse a name that is taken or out of reach, before any work is done for it."""
    there = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if there != path.absolute() and not there.is_dir():
        raise FolderError(f"cannot create a run folder: {there} is not a folder", place=str(path), hint=ELSEWHERE)
    if there.is_dir():
        try:
            with tempfile.TemporaryFile(dir=there):  # permissions do not say it all: a disk may be read-only
                pass
        except OSError as error:
            raise FolderError(
                f"{there} cannot be written to: {error.strerror}", place=str(path), hint=ELSEWHERE
            ) from error
    if is_blank(path):
        if path.exists() and not locked:
            check_unlocked(path)
        return
    if not was_run_folder(path):
        raise FolderError(
            "this exists and is not a run folder of dst-analyze, so it is left alone",
            place=str(path),
            hint=ELSEWHERE,
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
    why = header_damage(path)
    if why and existing == "refuse" and has_trials(path):
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
        for name in (TRIALS, VERIFIED, SCALARS, HUB, EXPLORER):  # trials first: they are never those of another head
            if (path / name).exists():
                os.rename(path / name, old / name)
    with writing(path / TRIALS):
        (path / TRIALS).mkdir()
    shutil.rmtree(old, ignore_errors=True)


def _continue(path: Path, header: RunHeader, emit: Emit) -> RunHeader:
    """Check that the folder holds this very sweep; returns its header, written again where it was damaged."""
    with writing(path / TRIALS):
        (path / TRIALS).mkdir(exist_ok=True)
    if why := header_damage(path):
        repair_header(path, header, why, emit)
    config, manifest = read_header(path)
    refuse_difference(path, config.as_asked, header.config.as_asked, "configuration")
    if config.alpha_factor is None and header.config.alpha_factor is not None:
        raise FolderError(
            "this folder was written before alphas had a scale: its alphas are literal",
            place=str(path),
            hint="choose another --out; --force would replace it",
        )
    refuse_difference(path, manifest, as_begun(header.manifest, manifest), "model, data or versions")
    if header.groups is not None and GROUPS not in listed_sums(path):  # of before they stood in the header
        replace_files(path, {GROUPS: header.files()[GROUPS]})
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

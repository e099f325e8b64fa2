"""Reading a run folder: every file checked against its checksum and its schema before it is believed."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from pydantic import ValidationError

from dst_analyze.errors import FolderError
from dst_analyze.run.alpha_search import TrialSchedule, schedule_of
from dst_analyze.run.config import MOST_TRIALS, Json, SweepConfig
from dst_analyze.run.files.atomic_io import as_named, broken, listed_sums
from dst_analyze.run.files.paths import (
    CONFIG,
    HEADER,
    LAYER_COLUMNS,
    LAYERS,
    MADE,
    MANIFEST,
    MASKS,
    NAME_COLUMNS,
    READINGS,
    RESULT,
    STEPS,
    TIMING,
    TRIAL_FILES,
    TRIALS,
    is_run_folder,
    trial_folder,
    was_run_folder,
)
from dst_analyze.run.files.safe_read import CSV_MOST, FOLDER_MOST, MB, folder_size, read_bytes, read_json_text
from dst_analyze.run.files.tables import MOST_LAYERS, MOST_READINGS, parse_numbers, parse_text, to_numbers
from dst_analyze.run.record import (
    READING_COLUMNS,
    SCHEMA,
    STEP_COLUMNS,
    Manifest,
    SweepRecord,
    Timing,
    TrialKey,
    TrialResult,
)

J = TypeVar("J", bound=Json)

_WRITE_AGAIN = "the command that made this folder, with --resume, writes it again; whole trials are kept"
_NO_RUN = "no run of this version is that large: was the folder made by dst-analyze?"
_RUN_AGAIN = "the command that made this folder, with --resume, runs the trial again"


class FormatError(FolderError):
    """A run folder is of another version."""


@dataclass(frozen=True)
class FolderStatus:
    """Which trials a run folder holds, and in what state; ``schedule`` is what they lead to."""

    schedule: TrialSchedule
    results: Mapping[TrialKey, TrialResult]
    damaged: Mapping[TrialKey, str]

    @property
    def failed(self) -> list[TrialKey]:
        """The trials that diverged or failed."""
        return [key for key in self.schedule.keys if key in self.results and self.results[key].status != "done"]

    @property
    def missing(self) -> list[TrialKey]:
        """The trials that have not been run yet."""
        return [key for key in self.schedule.keys if key not in self.results and key not in self.damaged]

    @property
    def started(self) -> bool:
        """True if some trial has been run."""
        return bool(self.results or self.damaged)

    @property
    def complete(self) -> bool:
        """True if all trials that are needed are there."""
        return self.schedule.settled and not self.missing and not self.damaged


def folder_status(
    run: Path, config: SweepConfig, first: tuple[float, ...], but: Container[TrialKey] = ()
) -> FolderStatus:
    """Look at every trial that a configuration is known to need; ``first`` is where a search for alphas starts."""
    results: dict[TrialKey, TrialResult] = {}
    damaged: dict[TrialKey, str] = {}
    while True:
        schedule = schedule_of(config, first, results)
        unread = [key for key in schedule.keys if key not in results and key not in damaged and key not in but]
        new = [key for key in unread if trial_folder(run, key).exists()]
        for key in new:
            try:
                results[key] = _read_result(run, key)
            except FolderError as error:
                damaged[key] = error.cause
        if not any(key in results for key in new):  # what was found has not led any further
            return FolderStatus(schedule, results, {key: damaged[key] for key in schedule.keys if key in damaged})


def read_header(run: Path) -> tuple[SweepConfig, Manifest]:
    """The configuration and the manifest; a folder of a newer version says so before anything else is tried."""
    manifest = read_json(run / MANIFEST, Manifest)
    return read_json(run / CONFIG, SweepConfig), manifest


def read_layers(run: Path) -> pd.DataFrame:
    """Return the table of layers in a run folder's header."""
    return as_named(read_csv(run / LAYERS, LAYER_COLUMNS, numbers=("params", "macs", "rung")), NAME_COLUMNS)


def read_run(path: Path | str) -> SweepRecord:
    """Return a run folder as a value, after checking every file of it.

    Args:
        path: The folder, as `run_sweep`, `Study` or the command line has left it.

    Returns:
        Its configuration, trials and readings.

    Raises:
        FolderError: It is no run folder, is not complete, or a file of it is damaged.

    Example:
        >>> import torch, dst_analyze
        >>> model, x, y = torch.nn.Linear(8, 4), torch.randn(64, 8), torch.arange(64) % 4
        >>> _ = dst_analyze.run_sweep(model, (x, y), alphas=[1e-6, 1e-5], steps=4, out="run")
        >>> dst_analyze.read_run("run").complete
        True
    """
    path = Path(path)
    if not is_run_folder(path):
        was = was_run_folder(path)
        raise FolderError(
            f"this is not a run folder of dst-analyze{f', or its {MANIFEST} is damaged' if was else ''}"
            if path.exists()
            else "there is no such folder",
            place=str(path),
            hint=_WRITE_AGAIN
            if was
            else "a run folder is what `dst-analyze MODEL` leaves under reports/; it holds a manifest.json",
        )
    config, manifest = read_header(path)
    _refuse_huge(path)
    why = broken(path, HEADER, but=MADE)
    if why:
        raise FolderError(f"the run folder cannot be used: {why}", place=str(path), hint=_WRITE_AGAIN)
    layers = read_layers(path)
    seen = folder_status(path, config, manifest.first_alphas)
    if seen.damaged:
        key = next(iter(seen.damaged))
        raise FolderError(seen.damaged[key], place=str(trial_folder(path, key)), hint=_RUN_AGAIN)
    if seen.missing:
        more = "" if seen.schedule.settled else " or more"
        raise FolderError(
            f"the run is not complete: {len(seen.missing)} of {len(seen.schedule.keys)}{more} trials are missing "
            f"({seen.missing[0].label}, ...)",
            place=str(path),
            hint="the command that made this folder, with --resume, finishes it",
        )
    alphas, targets = seen.schedule.alphas, seen.schedule.targets
    trials = [seen.results[key] for key in seen.schedule.keys]
    done = [t.key for t in trials if t.alpha in alphas and t.status == "done"]
    frame = as_named(_read_of_trials(path, done, READINGS, READING_COLUMNS), ("layer",)) if done else _no_readings()
    steps = _read_of_trials(path, [t.key for t in trials], STEPS, STEP_COLUMNS)
    _refuse_strange_layers(path, layers, frame)
    seconds = sum(_seconds(trial_folder(path, trial.key) / TIMING) for trial in trials)
    sha256 = _sweep_sha256(path, [trial.key for trial in trials])
    return SweepRecord(path, config, manifest, layers, tuple(trials), frame, steps, seconds, alphas, targets, sha256)


def _sweep_sha256(path: Path, keys: Sequence[TrialKey]) -> str:
    """Return what a sweep is known by: the checksum of the checksums of its head and of its trials."""
    head = {name: digest for name, digest in listed_sums(path).items() if name in HEADER}
    found = [head, *(listed_sums(trial_folder(path, key)) for key in keys)]
    text = "".join(f"{digest}  {name}\n" for sums in found for name, digest in sorted(sums.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def _refuse_huge(path: Path) -> None:
    """A file of terabytes may take no room on a disk, but summing it takes hours."""
    trials = path / TRIALS
    names = os.listdir(trials) if trials.is_dir() and not trials.is_symlink() else []
    if len(names) > 2 * MOST_TRIALS:
        raise FolderError(f"the run folder has {len(names):,} trials", place=str(trials), hint=_NO_RUN)
    size = sum(folder_size(trials / name) for name in names)
    if size > FOLDER_MOST:
        raise FolderError(f"the trials of the run folder have {size // MB:,} MB", place=str(trials), hint=_NO_RUN)


def _refuse_strange_layers(path: Path, layers: pd.DataFrame, frame: pd.DataFrame) -> None:
    """Layers go by their names from here on: each has one, with weights, and nothing was read of any other."""
    names = layers["layer"]
    if names.duplicated().any() or not (layers["params"] >= 1).all() or (layers["macs"] < 0).any():
        raise _damaged(path / LAYERS, "a layer is there twice, or has no weights")
    unknown = frame.loc[~frame["layer"].isin(names), "layer"]
    if len(unknown):
        raise _damaged(path / LAYERS, f"trials have read a layer {unknown.iloc[0]!r} that is not in it")


def _read_result(run: Path, key: TrialKey) -> TrialResult:
    folder = trial_folder(run, key)

    def unusable(why: str) -> FolderError:
        return FolderError(f"the trial {key.label} cannot be used: {why}", place=str(folder), hint=_RUN_AGAIN)

    if folder.is_symlink() or folder.parent.is_symlink():
        raise unusable("its folder is a link, and links are not followed")
    if why := broken(folder, TRIAL_FILES):
        raise unusable(why)
    result = read_json(folder / RESULT, TrialResult)
    if result.key != key:
        raise unusable(f"{RESULT} is of {result.key.label}")
    if key.alpha is not None and result.status == "done" and (why := broken(folder, (MASKS,))):
        raise unusable(why)
    return result


def _seconds(path: Path) -> float:
    """A trial's time is told where it is known; a run is not less good without it."""
    try:
        return Timing.model_validate_json(read_bytes(path, MB)).seconds
    except (OSError, ValidationError):
        return 0.0


def _no_readings() -> pd.DataFrame:
    kinds = {
        "alpha": float,
        "seed": int,
        "control": bool,
        **dict.fromkeys(READING_COLUMNS, float),
        "step": int,
        "layer": str,
    }
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def read_json(path: Path, kind: type[J]) -> J:
    """Return the checked value of a JSON file, or raise a FolderError."""
    try:
        return kind.model_validate_json(read_json_text(path))
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, getattr(error, "strerror", None) or str(error)) from error
    except ValidationError as error:
        version = next((e["input"] for e in error.errors(include_url=False) if e["loc"] == ("schema_version",)), None)
        if version is not None:
            newer = isinstance(version, int) and version > SCHEMA
            raise FormatError(
                f"this folder was written in format {version!r}, this version reads format {SCHEMA}",
                place=str(path),
                hint=f"use {'a newer' if newer else 'the'} version of dst-analyze (manifest.json names it)",
            ) from error
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _damaged(path, f"{where}: {first['msg']}" if where else first["msg"]) from error


def read_csv(path: Path, columns: Sequence[str], *, numbers: Sequence[str], most: int = MOST_LAYERS) -> pd.DataFrame:
    """Return the checked table of a CSV file of at most so many rows, or raise a FolderError."""
    with _readable(path):
        frame = parse_text(read_bytes(path, CSV_MOST), columns, most=most)
        for name in numbers:
            frame[name] = to_numbers(frame[name])
    return frame


def _read_of_trials(run: Path, keys: Sequence[TrialKey], name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return one table of all trials, with the columns alpha, seed and control; or raise a FolderError."""
    files = [trial_folder(run, key) / name for key in keys]
    with _readable(run / TRIALS / name):
        try:
            frame, counts = parse_numbers((_read_table(file) for file in files), columns, most=MOST_READINGS)
        except ValueError:
            for file in files:  # one by one, to find out which it is
                with _readable(file):
                    parse_numbers([_read_table(file)], columns, most=MOST_READINGS)
            raise
    frame.insert(0, "alpha", np.repeat([math.nan if key.alpha is None else key.alpha for key in keys], counts))
    frame.insert(1, "seed", np.repeat([key.seed for key in keys], counts))
    frame.insert(2, "control", np.repeat([key.control for key in keys], counts))
    return frame


def _read_table(path: Path) -> bytes:
    with _readable(path):
        return read_bytes(path, CSV_MOST)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise a FolderError that names the file for one that cannot be read or parsed."""
    try:
        yield
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise _damaged(path, " ".join(why.split())) from error


def _damaged(path: Path, why: str) -> FolderError:
    return FolderError(f"{path.name} cannot be used: {why}", place=str(path.parent), hint=_WRITE_AGAIN)

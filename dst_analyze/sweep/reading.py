"""Reading a run folder: every file checked against its checksum and its schema before it is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pandas as pd
from pydantic import ValidationError

from dst_analyze.errors import FolderError
from dst_analyze.sweep.files import broken
from dst_analyze.sweep.layout import (
    CONFIG,
    HEAD,
    LAYER_COLUMNS,
    LAYERS,
    MANIFEST,
    MASKS,
    READINGS,
    RESULT,
    STEPS,
    TIMING,
    is_run_folder,
    trial_folder,
)
from dst_analyze.sweep.record import (
    READING_COLUMNS,
    SCHEMA,
    Json,
    Manifest,
    SweepConfig,
    SweepRecord,
    Timing,
    TrialKey,
    TrialResult,
)

J = TypeVar("J", bound=Json)

_NUMBERS = tuple(column for column in READING_COLUMNS if column != "layer")
_START_OVER = "the run folder is damaged: --force starts the sweep over"
_RUN_AGAIN = "the command that made this folder, with --resume, runs the trial again"


@dataclass
class Survey:
    """Which trials a run folder holds, and in what state."""

    done: list[TrialKey] = field(default_factory=list)
    failed: list[TrialKey] = field(default_factory=list)
    missing: list[TrialKey] = field(default_factory=list)
    damaged: dict[TrialKey, str] = field(default_factory=dict)

    @property
    def started(self) -> bool:
        return bool(self.done or self.failed or self.damaged)

    @property
    def complete(self) -> bool:
        return not self.missing and not self.damaged


def survey(run: Path, config: SweepConfig) -> Survey:
    """Look at every trial of a configuration."""
    seen = Survey()
    for key in config.trials():
        if not trial_folder(run, key).exists():
            seen.missing.append(key)
            continue
        try:
            (seen.done if _read_result(run, key).status == "done" else seen.failed).append(key)
        except FolderError as error:
            seen.damaged[key] = error.cause
    return seen


def read_head(run: Path) -> tuple[SweepConfig, Manifest]:
    """The configuration and the manifest; a folder of a newer version says so before anything else is tried."""
    manifest = read_json(run / MANIFEST, Manifest)
    return read_json(run / CONFIG, SweepConfig), manifest


def read_run(path: Path | str) -> SweepRecord:
    """A run folder as a value, every file of it checked."""
    path = Path(path)
    if not is_run_folder(path):
        raise FolderError(
            "this is not a run folder of dst-analyze" if path.exists() else "there is no such folder",
            place=str(path),
            hint="a run folder is what `dst-analyze MODEL` leaves under reports/; it holds a manifest.json",
        )
    config, manifest = read_head(path)
    why = broken(path, HEAD)
    if why:
        raise FolderError(f"the run folder cannot be used: {why}", place=str(path), hint=_START_OVER)
    layers = read_csv(path / LAYERS, LAYER_COLUMNS, numbers=("params", "macs", "rung"))
    missing = [key for key in config.trials() if not trial_folder(path, key).exists()]
    if missing:
        total = len(list(config.trials()))
        raise FolderError(
            f"the run is not complete: {len(missing)} of {total} trials are missing ({missing[0].label}, ...)",
            place=str(path),
            hint="the command that made this folder, with --resume, finishes it",
        )
    trials, frames, seconds = [], [], 0.0
    for key in config.trials():
        result = _read_result(path, key)
        trials.append(result)
        seconds += _seconds(trial_folder(path, key) / TIMING)
        if key.alpha is not None and result.status == "done":
            file = trial_folder(path, key) / READINGS
            frames.append(_of_trial(read_csv(file, READING_COLUMNS, numbers=_NUMBERS), key))
    frame = pd.concat(frames, ignore_index=True) if frames else _no_readings()
    return SweepRecord(path, config, manifest, layers, tuple(trials), frame, seconds)


def _read_result(run: Path, key: TrialKey) -> TrialResult:
    folder = trial_folder(run, key)

    def unusable(why: str) -> FolderError:
        return FolderError(f"the trial {key.label} cannot be used: {why}", place=str(folder), hint=_RUN_AGAIN)

    if why := broken(folder, (RESULT, READINGS, STEPS)):
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
        return Timing.model_validate_json(path.read_bytes()).seconds
    except (OSError, ValidationError):
        return 0.0


def _no_readings() -> pd.DataFrame:
    kinds = {"alpha": float, "seed": int, **dict.fromkeys(READING_COLUMNS, float), "step": int, "layer": str}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def _of_trial(readings: pd.DataFrame, key: TrialKey) -> pd.DataFrame:
    readings.insert(0, "alpha", key.alpha)
    readings.insert(1, "seed", key.seed)
    return readings


def read_json(path: Path, kind: type[J]) -> J:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    except ValidationError as error:
        version = next((e["input"] for e in error.errors(include_url=False) if e["loc"] == ("schema_version",)), None)
        if version is not None:
            newer = isinstance(version, int) and version > SCHEMA
            raise FolderError(
                f"this folder was written in format {version!r}, this version reads format {SCHEMA}",
                place=str(path),
                hint=f"use {'a newer' if newer else 'the'} version of dst-analyze (manifest.json names it)",
            ) from error
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _damaged(path, f"{where}: {first['msg']}" if where else first["msg"]) from error


def read_csv(path: Path, columns: Sequence[str], *, numbers: Sequence[str]) -> pd.DataFrame:
    try:
        # Layer names are text whatever they look like: "0" is no number and "NA" not missing.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
        if list(frame.columns) != list(columns):
            raise _damaged(path, f"its columns are {list(frame.columns)}, not {list(columns)}")
        for name in numbers:
            frame[name] = pd.to_numeric(frame[name].where(frame[name] != ""))
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    return frame


def _damaged(path: Path, why: str) -> FolderError:
    return FolderError(f"{path.name} cannot be used: {why}", place=str(path.parent), hint=_START_OVER)

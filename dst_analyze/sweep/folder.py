"""The run folder: the only place that knows its file names, and how to write it whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pandas as pd
from pydantic import ValidationError

from dst_analyze.errors import FolderError
from dst_analyze.sweep.record import (
    READING_COLUMNS,
    SCHEMA,
    STEP_COLUMNS,
    Json,
    Manifest,
    SweepConfig,
    SweepRecord,
    TrialKey,
    TrialResult,
)

J = TypeVar("J", bound=Json)

CONFIG, MANIFEST, LAYERS, TRIALS = "config.json", "manifest.json", "layers.csv", "trials"
TABLE, REPORT = "table.csv", "report.html"
OURS = {CONFIG, MANIFEST, LAYERS, TRIALS, TABLE, REPORT}

LAYER_COLUMNS = ("layer", "kind", "parameter", "shape", "params", "macs", "macs_note", "output_shape", "rung", "op")
_NUMBERS = tuple(column for column in READING_COLUMNS if column != "layer")


def default_path(name: str, config: SweepConfig) -> Path:
    """``reports/<name>-<8 hex digits of the configuration>``; the name may come from anywhere, so it is tamed."""
    tame = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name).strip("-.")[:60]
    return Path("reports") / f"{tame or 'model'}-{config.digest[:8]}"


def write_text(path: Path, text: str) -> None:
    """Write a file whole: readers see the old text or the new, never half of one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8", newline="")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise FolderError(f"cannot write {path.name}: {error.strerror}", place=str(path.parent)) from error


def write_csv(path: Path, frame: pd.DataFrame) -> None:
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


class DraftFolder:
    """A run folder in the making, under a hidden name beside the final one."""

    def __init__(self, path: Path, final: Path, *, replace: bool) -> None:
        self.path, self.final, self.replace = path, final, replace
        self.committed = False

    def write_head(self, config: SweepConfig, manifest: Manifest, layers: pd.DataFrame) -> None:
        write_text(self.path / CONFIG, config.model_dump_json(indent=2) + "\n")
        write_text(self.path / MANIFEST, manifest.model_dump_json(indent=2) + "\n")
        write_csv(self.path / LAYERS, layers[list(LAYER_COLUMNS)])

    def write_trial(self, result: TrialResult, readings: pd.DataFrame, steps: pd.DataFrame, masks: bytes) -> None:
        folder = self.path / TRIALS / result.key.name
        folder.mkdir(parents=True)
        write_csv(folder / "record.csv", readings[list(READING_COLUMNS)])
        write_csv(folder / "steps.csv", steps[list(STEP_COLUMNS)])
        if masks:
            (folder / "masks.safetensors").write_bytes(masks)
        write_text(folder / "trial.json", result.model_dump_json(indent=2) + "\n")

    def commit(self) -> None:
        """Give the folder its name; a finished run is kept even if that name was taken meanwhile."""
        old = self.final.with_name(f".{self.final.name}.{os.getpid()}.old")
        try:
            if self.replace and self.final.exists():
                self.final.rename(old)
            self.path.rename(self.final)
        except OSError as error:
            self.committed = True
            raise FolderError(
                f"cannot give the finished run its name {self.final.name}: {error.strerror}",
                place=str(self.final.parent),
                hint=f"the run itself is complete in {self.path}: move it where you want it",
            ) from error
        self.committed = True
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def draft_folder(final: Path, config: SweepConfig, *, force: bool = False) -> Iterator[DraftFolder]:
    """A folder to write a run into, checked before the work starts; left without a commit, nothing remains of it."""
    final = final.absolute()
    check_free(final, config, force=force)
    final = Path(os.path.realpath(final))
    path = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
    except OSError as error:
        raise FolderError(
            f"cannot create a run folder here: {error.strerror}", place=str(final.parent), hint="choose another --out"
        ) from error
    draft = DraftFolder(path, final, replace=force)
    try:
        yield draft
    finally:
        if not draft.committed:
            shutil.rmtree(path, ignore_errors=True)


def check_free(path: Path, config: SweepConfig, *, force: bool = False) -> None:
    """Refuse a name that is taken or out of reach; `force` frees a run folder of ours that holds nothing else."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        why = "not writable" if above.is_dir() else "not a folder"
        raise FolderError(f"cannot create a run folder: {above} is {why}", place=str(path), hint="choose another --out")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not is_run_folder(path):
        raise FolderError(
            "this exists and is not a run folder of dst-analyze, so it is left alone",
            place=str(path),
            hint="choose another --out",
        )
    if force:
        foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in OURS)
        if foreign:
            raise FolderError(
                f"--force would delete files that are not the run's: {', '.join(foreign[:5])}",
                place=str(path),
                hint="move them away, or choose another --out",
            )
        return
    _read_json(path / MANIFEST, Manifest)  # a folder of another version says so here
    old = _read_json(path / CONFIG, SweepConfig)
    if old.digest == config.digest:
        report = f"its report is {path / REPORT}" if (path / REPORT).exists() else f"see `dst-analyze report {path}`"
        raise FolderError(
            "this very configuration has been run already", place=str(path), hint=f"{report}; --force runs it again"
        )
    then, now = old.model_dump(mode="json"), config.model_dump(mode="json")
    changes = [f"{key} {then[key]!r} -> {now[key]!r}" for key in now if then[key] != now[key]]
    raise FolderError(
        f"this folder holds another run ({'; '.join(changes)})",
        place=str(path),
        hint="choose another --out, or --force to replace it",
    )


def is_run_folder(path: Path) -> bool:
    """Whether a folder carries our manifest; what else it says may be damaged or newer."""
    try:
        return '"tool": "dst-analyze"' in (path / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def read_run(path: Path | str) -> SweepRecord:
    """A run folder as a value, every file of it checked."""
    path = Path(path)
    if not is_run_folder(path):
        raise FolderError(
            "this is not a run folder of dst-analyze" if path.exists() else "there is no such folder",
            place=str(path),
            hint="a run folder is what `dst-analyze MODEL` leaves under reports/; it holds a manifest.json",
        )
    config = _read_json(path / CONFIG, SweepConfig)
    manifest = _read_json(path / MANIFEST, Manifest)
    layers = _read_csv(path / LAYERS, LAYER_COLUMNS, numbers=("params", "macs", "rung"))
    trials, frames = [], []
    for key in config.trials():
        folder = path / TRIALS / key.name
        result = _read_json(folder / "trial.json", TrialResult)
        trials.append(result)
        if key.alpha is not None and result.status == "done":
            readings = _read_csv(folder / "record.csv", READING_COLUMNS, numbers=_NUMBERS)
            frames.append(_of_trial(readings, key))
    frame = pd.concat(frames, ignore_index=True) if frames else _no_readings()
    return SweepRecord(path, config, manifest, layers, tuple(trials), frame)


def _no_readings() -> pd.DataFrame:
    kinds = {"alpha": float, "seed": int, **dict.fromkeys(READING_COLUMNS, float), "step": int, "layer": str}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def _of_trial(readings: pd.DataFrame, key: TrialKey) -> pd.DataFrame:
    readings.insert(0, "alpha", key.alpha)
    readings.insert(1, "seed", key.seed)
    return readings


def _read_json(path: Path, kind: type[J]) -> J:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        if where == "schema_version":
            raise FolderError(
                f"this folder was written in format {first['input']!r}, this version reads format {SCHEMA}",
                place=str(path),
                hint="use the version of dst-analyze that wrote it (manifest.json names it)",
            ) from error
        raise _damaged(path, f"{where}: {first['msg']}" if where else first["msg"]) from error


def _read_csv(path: Path, columns: Sequence[str], *, numbers: Sequence[str]) -> pd.DataFrame:
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
    return FolderError(
        f"{path.name} cannot be used: {why}",
        place=str(path.parent),
        hint="the run folder is damaged: run the sweep again with --force",
    )

"""The header of a run folder: what it holds, whether a folder has this very one, and its repair."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dst_analyze.errors import FolderError
from dst_analyze.run.config import Json, SweepConfig
from dst_analyze.run.events import Emit, Notice
from dst_analyze.run.files.atomic_io import SUMS, broken, csv_bytes, listed_sums, replace_files, spreadsheet_safe
from dst_analyze.run.files.paths import (
    CONFIG,
    GRAPH,
    GROUP_COLUMNS,
    GROUPS,
    HEADER,
    INPUTS,
    LAYER_COLUMNS,
    LAYERS,
    MADE,
    MANIFEST,
    NAME_COLUMNS,
    TRIALS,
)
from dst_analyze.run.files.safe_read import JSON_MOST, is_there, read_bytes
from dst_analyze.run.reader import FormatError, read_header, read_json
from dst_analyze.run.record import ExampleInputs, Manifest, ModelGraph

ELSEWHERE = "choose another --out"
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
            MANIFEST: json_bytes(self.manifest),
            CONFIG: json_bytes(self.config),
            LAYERS: csv_bytes(spreadsheet_safe(self.layers[list(LAYER_COLUMNS)], NAME_COLUMNS)),
        }
        if self.graph is not None:
            files[GRAPH] = f"{self.graph.model_dump_json(exclude_defaults=True)}\n".encode()
        if self.groups is not None:
            files[GROUPS] = csv_bytes(spreadsheet_safe(self.groups, list(GROUP_COLUMNS)))
        if self.inputs is not None:
            files[INPUTS] = f"{self.inputs.model_dump_json()}\n".encode()
        return files


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


def json_bytes(value: Json) -> bytes:
    return f"{value.model_dump_json(indent=2, by_alias=True)}\n".encode()


def header_damage(path: Path) -> str:
    """Return why the head of a run folder cannot be used, empty if it can; one of another format is refused."""
    try:
        read_header(path)
    except FormatError:
        raise
    except FolderError as error:
        return error.cause
    return broken(path, HEADER, but=MADE)


def has_trials(path: Path) -> bool:
    trials = path / TRIALS
    return trials.is_dir() and any(not entry.name.startswith(".") for entry in trials.iterdir())


def as_begun(now: Manifest, then: Manifest) -> Manifest:
    """Return a manifest with what is the machine's, not the user's: a sweep goes on as it began."""
    model = now.model if then.model.files else now.model.model_copy(update={"files": {}})  # of before they were kept
    kept = {name: getattr(then, name) for name in ("threads", "warm_up_threads", "sums")}
    return now.model_copy(update={**kept, "model": model})


def repair_header(path: Path, header: RunHeader, why: str, emit: Emit) -> None:
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
        elif name not in (CONFIG, MANIFEST) or listed.get(name) == _digest(data) or not has_trials(path):
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
            refuse_difference(path, manifest, as_begun(header.manifest, manifest), "model, data or versions")
    except FolderError as error:
        raise FolderError(
            f"the run folder cannot be continued: {why}; {error.cause}", place=str(path), hint=ELSEWHERE
        ) from error


def _fits(file: Path, header: RunHeader) -> bool:
    """Return whether a configuration or a manifest says what this command would write."""
    try:
        if file.name == CONFIG:
            return read_json(file, SweepConfig) == header.config
        there = read_json(file, Manifest)
        return there == as_begun(header.manifest, there)
    except FolderError:
        return False


def _bytes_of(path: Path) -> bytes | None:
    try:
        return read_bytes(path, JSON_MOST)
    except OSError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

"""Frames and CSV files of ratios, checked and reduced to one row per trial and layer."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dst_analyze.errors import DataError
from dst_analyze.run.config import MOST_TRIALS
from dst_analyze.run.files.safe_read import CSV_MOST, open_regular_file
from dst_analyze.run.files.tables import MOST_LAYERS
from dst_analyze.run.record import last_quarter
from dst_analyze.text import from_spreadsheet

NEEDED = ("layer", "alpha", "remaining")
TRIAL = ["control", "alpha", "seed"]
COLUMNS = (*TRIAL, "layer", "remaining", "null", "resets", "params", "macs", "group")
"""Columns of a checked frame, which has one row per trial and layer."""

_HINT = (
    "a frame has the columns layer, alpha, remaining (a share from 0 to 1), and optionally seed, step, params, macs, "
    "group, null, control, resets"
)
_MOST_ROWS, _MOST_COLUMNS = 500_000, 100  # of a CSV file
_WORDS = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False, "": False}


def checked_frame(frame: pd.DataFrame, *, row: str = "row") -> pd.DataFrame:
    """Return one row per trial and layer, with the columns of `COLUMNS`.

    With a column ``step``, each trial is reduced to the median of its last quarter. ``row`` is the word for a row in
    error messages.

    Raises:
        DataError: A column is missing, or a value is wrong; the message names the first wrong row.
    """
    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"a ranking is made from a record or a pandas frame, not from {type(frame).__name__}")
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise DataError(f"the column {twice[0]!r} occurs twice", hint=_HINT)
    missing = [name for name in NEEDED if name not in frame]
    if missing:
        found = ", ".join(map(str, frame.columns)) or "none"
        raise DataError(f"the frame has no column {' and no '.join(missing)}; it has {found}", hint=_HINT)
    if frame.empty:
        raise DataError("the frame has no rows", hint=_HINT)
    check = _Check(frame, row)
    clean = pd.DataFrame(
        {
            "control": check.flags("control"),
            "alpha": check.numbers("alpha", lambda v: v > 0, "not a positive number"),
            "seed": check.numbers("seed", lambda v: v == np.floor(v), "not a whole number", default=0.0).astype(int),
            "layer": check.names(),
            "remaining": check.numbers("remaining", lambda v: (v >= 0) & (v <= 1), "not a share from 0 to 1"),
            "null": check.numbers("null", lambda v: (v >= 0) & (v <= 1), "not a share from 0 to 1", gaps=True),
            "resets": check.numbers("resets", lambda v: v >= 0, "negative", gaps=True).fillna(0).astype(int),
            "params": check.numbers("params", lambda v: v >= 1, "not a count from 1", gaps="params" not in frame),
            "macs": check.numbers("macs", lambda v: v >= 0, "negative", gaps=True),
            "group": check.groups(),
        }
    )
    steps = ["step"] if "step" in frame else []
    if steps:
        clean["step"] = check.numbers("step", lambda v: v >= 0, "negative")
    check.unique(clean, [*TRIAL, "layer", *steps])
    for fact in ("params", "macs", "group"):
        check.one_per_layer(clean, fact)
    if steps:
        return settled(clean)
    return clean[list(COLUMNS)].reset_index(drop=True)


def settled(course: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial and layer: the median over the last quarter of each trial's steps."""
    read, keys = last_quarter(course), [*TRIAL, "layer"]
    figures = {"remaining": "median", "null": "median", "params": "first", "macs": "first", "group": "first"}
    made = read.groupby(keys, sort=False).agg(figures)
    made["resets"] = course.groupby(keys, sort=False)["resets"].max().reindex(made.index)  # it counts up
    return made.reset_index()[list(COLUMNS)]


def read_frame(path: Path) -> pd.DataFrame:
    """Read a CSV file of ratios as a checked frame; errors name the line."""
    try:
        with open_regular_file(path.resolve(), CSV_MOST) as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""))
            head = [name.strip() for name in next(reader, [])]
            if len(head) > _MOST_COLUMNS:
                raise DataError(f"the first line has {len(head):,} names", place=str(path), hint=_HINT)
            lines: list[int] = []
            rows: list[list[str]] = []
            for row in reader if {*NEEDED} <= {*head} else ():
                if not row:
                    continue
                if len(row) != len(head):
                    raise DataError(
                        f"line {reader.line_num} has {len(row)} values, the first line {len(head)} names",
                        place=str(path),
                        hint=_HINT,
                    )
                if len(rows) == _MOST_ROWS:
                    raise DataError(f"the file has more than {_MOST_ROWS:,} rows", place=str(path), hint=_HINT)
                lines.append(reader.line_num)
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise DataError(f"the file cannot be read as CSV: {why}", place=str(path), hint=_HINT) from error
    frame = pd.DataFrame(rows, columns=head, index=lines, dtype=object)
    for name in ("layer", "group"):
        if name in head and head.count(name) == 1:
            frame[name] = [from_spreadsheet(cell) for cell in frame[name]]
    try:
        checked = checked_frame(frame, row="line")
        for what, names, most in (("layers", ["layer"], MOST_LAYERS), ("trials", TRIAL, MOST_TRIALS)):
            count = len(checked[names].drop_duplicates())
            if count > most:
                raise DataError(f"{count:,} {what} are more than {most:,}", hint=_HINT)
        return checked
    except DataError as error:
        error.place = error.place or str(path)
        raise


class _Check:
    """Checks and converts a frame's columns; errors name the first wrong row."""

    def __init__(self, frame: pd.DataFrame, row: str) -> None:
        self.frame, self.row = frame, row

    def bad(self, at: int, what: str) -> DataError:
        layer, alpha = (self.frame[name].iloc[at] for name in ("layer", "alpha"))
        return DataError(f"{self.row} {self.frame.index[at]} (layer {layer!s}, alpha {alpha!s}): {what}", hint=_HINT)

    def first(self, wrong: Any) -> int | None:
        places = np.flatnonzero(np.asarray(wrong))
        return int(places[0]) if len(places) else None

    def numbers(
        self, name: str, sound: Callable[[Any], Any], what: str, *, gaps: bool = False, default: float = np.nan
    ) -> pd.Series:
        if name not in self.frame or (name not in NEEDED and self.frame[name].isna().all()):
            return pd.Series(default, index=self.frame.index, dtype=float)
        given = self.frame[name]
        values = pd.to_numeric(given, errors="coerce").astype(float)
        for at in np.flatnonzero(values.isna() & given.notna() if gaps else values.isna()):
            empty = pd.isna(given.iloc[at]) or not str(given.iloc[at]).strip()
            if not (empty and gaps):
                raise self.bad(int(at), f"{name} is {'missing' if empty else f'{given.iloc[at]!r}, not a number'}")
        wrong = self.first(values.notna() & ~(np.isfinite(values) & sound(values)))
        if wrong is not None:
            raise self.bad(wrong, f"{name} is {given.iloc[wrong]}, {what}")
        return values

    def names(self) -> list[str]:
        given = self.frame["layer"]
        at = self.first(given.isna())
        if at is not None:
            raise self.bad(at, "the layer has no name")
        return list(given) if given.dtype == "str" else [str(name) for name in given]

    def groups(self) -> list[str]:
        if "group" not in self.frame:
            return [""] * len(self.frame)
        return [str(name) for name in self.frame["group"].astype(object).where(self.frame["group"].notna(), "")]

    def flags(self, name: str) -> list[bool]:
        if name not in self.frame:
            return [False] * len(self.frame)
        if self.frame[name].dtype == bool:
            return list(self.frame[name])
        given = ["" if value is None else str(value).strip().lower() for value in self.frame[name]]
        at = self.first([text not in _WORDS for text in given])
        if at is not None:
            raise self.bad(at, f"{name} is {self.frame[name].iloc[at]!r}, neither true nor false")
        return [_WORDS[text] for text in given]

    def unique(self, clean: pd.DataFrame, keys: Sequence[str]) -> None:
        at = self.first(clean.duplicated(list(keys)))
        if at is not None:
            same = (clean[list(keys)] == clean[list(keys)].iloc[at]).all(axis=1)
            earlier = self.frame.index[self.first(same) or 0]
            raise self.bad(at, f"seed {clean['seed'].iloc[at]} is already given, in {self.row} {earlier}")

    def one_per_layer(self, clean: pd.DataFrame, fact: str) -> None:
        first = clean.groupby("layer", sort=False)[fact].transform("first")
        at = self.first((clean[fact] != first) & ~(clean[fact].isna() & first.isna()))
        if at is not None:
            raise self.bad(at, f"{fact} is {clean[fact].iloc[at]}, but {first.iloc[at]} in another row of the layer")

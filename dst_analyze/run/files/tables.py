"""Parsing CSV tables that anybody may have written: columns, rows and cells are counted before they are parsed."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd

MOST_LAYERS = 5_000
"""Layers of a model: the ranking compares every two of them."""
MOST_READINGS = 2_000_000
"""Rows that all trials of a run may have: 40 readings of 50 layers in a thousand trials."""
LARGEST = 1e39
"""Beyond every number that a training in single precision can leave."""

_HEAD = 4096  # bytes of the line that names the columns
_MOST_COMMAS = 10_000  # in one line, which may hold a name
_CHUNK = 32 << 20  # bytes that are parsed at once
_WHOLE = ("step", "resets")


def parse_text(data: bytes, columns: Sequence[str], *, most: int) -> pd.DataFrame:
    """Return a table of text with exactly these columns; a ValueError says what is wrong with it."""
    body = _below_head(data, columns)
    rows: list[list[str]] = []
    try:
        reader = csv.reader(io.StringIO(body.decode("utf-8"), newline=""))
        for row in reader:
            if row and len(row) != len(columns):
                raise ValueError(f"line {reader.line_num + 1} has {len(row)} values, not {len(columns)}")
            if len(rows) == most:
                raise ValueError(f"it has more than {most:,} rows")
            rows += [row] if row else []
    except csv.Error as error:
        raise ValueError(str(error)) from error
    return pd.DataFrame(rows, columns=list(columns), dtype=str)


def to_numbers(values: pd.Series) -> pd.Series:
    """Return a column of text as numbers, NaN for empty cells; infinity and NaN themselves are no numbers."""
    empty = values == ""
    numbers = pd.to_numeric(values.where(~empty))
    # A number of hundreds of digits stays an object.
    if not empty.all() and (numbers.dtype == object or not ((numbers.abs() <= LARGEST) | empty).all()):
        raise ValueError(f"{values.name} has values that are no numbers")
    return numbers


def parse_numbers(parts: Iterable[bytes], columns: Sequence[str], *, most: int) -> tuple[pd.DataFrame, list[int]]:
    """Return tables of numbers (and names, in a column "layer") as one, and how many rows each of them has.

    All cells but names are numbers or empty. A ValueError says what is wrong, not in which of the tables.
    """
    frames: list[pd.DataFrame] = []
    counts: list[int] = []
    rows = 0
    for chunk in _chunks(_below_head(part, columns) for part in parts):
        plain = not any(b'"' in body or b"\r" in body for body in chunk)
        lines = [body.count(b"\n") for body in chunk]
        rows += sum(lines) + sum(body.count(b"\r") for body in chunk)
        if rows > most:
            raise ValueError(f"it has more than {most:,} rows")
        if plain:
            commas = sum(body.count(b",") for body in chunk)
            found = [_parse(b"".join(chunk), columns)] if commas == sum(lines) * (len(columns) - 1) else []
            if not found or len(found[0]) != sum(lines):
                raise ValueError(f"it has lines without {len(columns)} values")
        else:  # names may hold line breaks: each table has to be parsed to know its rows
            if any(line.count(b",") > _MOST_COMMAS for body in chunk for line in body.split(b"\n")):
                raise ValueError(f"it has a line of more than {_MOST_COMMAS:,} values")
            found = [_parse(body, columns) for body in chunk]
            lines = [len(frame) for frame in found]
        frames += found
        counts += lines
    frame = pd.concat(frames, ignore_index=True) if frames else _parse(b"", columns)
    for name in set(_WHOLE) & set(columns):
        if (frame[name] == np.floor(frame[name])).all():  # not where a cell is empty
            frame[name] = frame[name].astype("int64")
    return frame, counts


def _below_head(data: bytes, columns: Sequence[str]) -> bytes:
    """Return a table without its first line, which has to name these columns."""
    head, _, body = data[:_HEAD].partition(b"\n")
    if head.rstrip(b"\r") != ",".join(columns).encode():
        found = head[:200].decode("utf-8", "replace")
        raise ValueError(f"its columns are {found!r}, not {','.join(columns)!r}")
    body = data[len(head) + 1 :]
    return body if not body or body.endswith(b"\n") else body + b"\n"


def _chunks(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield neighbours together, as many as are parsed at once."""
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if chunk and size + len(body) > _CHUNK:
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk


def _parse(body: bytes, columns: Sequence[str]) -> pd.DataFrame:
    # Layer names are text whatever they look like: "0" is no number and "NA" not missing.
    numbers = [name for name in columns if name != "layer"]
    kinds = {name: str if name == "layer" else float for name in columns}
    if not body.strip(b"\n"):
        return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # values beyond the columns would be left out
        try:
            frame = pd.read_csv(
                io.BytesIO(body), names=list(columns), header=None, index_col=False, dtype=kinds, encoding="utf-8",
                keep_default_na=False, na_values={name: [""] for name in numbers},
            )  # fmt: skip
        except pd.errors.ParserWarning as error:
            raise ValueError(str(error)) from error
        except pd.errors.ParserError as error:
            if "out of memory" in str(error):
                raise MemoryError from error
            raise
    values = frame[numbers].to_numpy()
    if (np.abs(values) > LARGEST).any():
        raise ValueError("it has values that are no numbers")
    return frame

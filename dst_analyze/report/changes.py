"""The lines of a user's source that a plan changes, from changes.csv."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

from dst_analyze.errors import FolderError
from dst_analyze.report.rows import shown_name
from dst_analyze.run.files.atomic_io import as_named
from dst_analyze.run.reader import read_csv

_LONGEST = 2_000  # letters of a line that is looked at
_SHAPE = "shape ("  # of a parameter of the user's own: no call


def read_changes(path: Path | None) -> dict[str, str]:
    """Return the text of each changed line by layer, in the order of the source, with the old code as a comment."""
    if path is None:
        return {}
    try:
        table = as_named(read_csv(path, ("layer", "before", "after", "line", "place", "remark"), numbers=()), ["layer"])
    except FolderError:  # of an older version
        table = as_named(read_csv(path, ("layer", "before", "after"), numbers=()), ["layer"])
        found = table.itertuples(index=False)
        return {str(row.layer): _statement(shown_name(row.layer), row.after, row.before) for row in found}
    texts = {}
    for row in sorted(table.itertuples(index=False), key=lambda row: _file_and_line(row.place)):
        where = f"{row.place}, for {shown_name(row.layer)}" if row.place else shown_name(row.layer)
        said = f"{where}: {row.remark}" if row.remark else where
        texts[str(row.layer)] = _statement(said, row.line or row.after, row.before)
    return texts


def _statement(said: str, line: str, before: str) -> str:
    """Return a changed line below a comment as valid Python: what is no statement, such as a shape, is a comment."""
    said, line, before = (" ".join(text.splitlines()) for text in (said, line, before))
    if not _is_python(line):
        line = f"# {line}"
    return f"# {said}\n{line}  # was {before}"


def _file_and_line(place: str) -> tuple[str, int]:
    """Return the order of a place such as ``Block.__init__, model.py:12`` among others; none comes last."""
    file, _, number = place.rpartition(", ")[2].rpartition(":")
    return (file, int(number)) if number.isdecimal() else ("\uffff", 0)


def _is_python(line: str) -> bool:
    if len(line) > _LONGEST or line.startswith(_SHAPE):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in strings: they are the user's own
        try:
            compile(line, "a changed line", "exec", ast.PyCF_ONLY_AST)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True

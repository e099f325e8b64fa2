"""The lines of a user's source that a plan changes, from changes.csv."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from dst_analyze.errors import FolderError
from dst_analyze.report.rows import shown_name
from dst_analyze.run.files.atomic_io import as_named
from dst_analyze.run.reader import read_csv
from dst_analyze.slimming.planning.plan_types import SAME_LINE
from dst_analyze.text import package_paths

_LONGEST = 2_000  # letters of a line that is looked at
_SHAPE = "shape ("  # of a parameter of the user's own: no call


@dataclass(frozen=True)
class Change:
    """What is written for a layer in place of what; ``place`` is the class and line where it belongs, if known."""

    layer: str
    line: str
    before: str
    place: str = ""
    remark: str = ""

    @property
    def text(self) -> str:
        """The changed line below a comment, as valid Python."""
        where = f"{self.place}, for {shown_name(self.layer)}" if self.place else shown_name(self.layer)
        return _statement(f"{where}: {self.remark}" if self.remark else where, self.line, self.before)


def read_changes(path: Path | None) -> dict[str, Change]:
    """Return the change of each layer, in the order of the source."""
    if path is None:
        return {}
    try:
        table = as_named(read_csv(path, ("layer", "before", "after", "line", "place", "remark"), numbers=()), ["layer"])
    except FolderError:  # of an older version
        table = as_named(read_csv(path, ("layer", "before", "after"), numbers=()), ["layer"])
        return {str(row.layer): Change(str(row.layer), row.after, row.before) for row in table.itertuples(index=False)}
    found = sorted(table.itertuples(index=False), key=lambda row: _file_and_line(row.place))
    return {
        str(row.layer): Change(
            str(row.layer), row.line or row.after, row.before, package_paths(row.place), package_paths(row.remark)
        )
        for row in found
    }


def change_lines(changes: Sequence[Change]) -> Iterator[str]:
    """Yield the changed lines as Python; layers that one line builds, as blocks that are alike, stand together."""
    for _, together in groupby(changes, lambda change: (change.place, _own_remark(change))):
        found = list(together)
        if len(found) == 1:
            yield found[0].text
            continue
        place, remark = found[0].place, _own_remark(found[0])
        head = f"{place}: {remark}" if place and remark else place or remark
        if head:
            yield f"# {_on_one_line(head)}"
        alike: dict[tuple[str, str], list[str]] = {}
        for change in found:
            alike.setdefault((change.line, change.before), []).append(change.layer)
        for (line, before), layers in alike.items():
            yield f"{_as_python(line)}  # was {_on_one_line(before)}, for {joined_names(layers)}"


def _own_remark(change: Change) -> str:
    """Return the remark without what layers that stand together show."""
    return "" if change.remark.startswith(SAME_LINE) else change.remark


def joined_names(names: Sequence[str]) -> str:
    """Return names as one text; those that differ in one part only stand in braces.

    Example:
        >>> joined_names(["h.0.fc", "h.1.fc", "h.2.fc", "h.5.fc"])
        'h.{0-2,5}.fc'
    """
    split = [name.split(".") for name in names]
    differing = [at for at, parts in enumerate(zip(*split, strict=False)) if len(set(parts)) > 1]
    if len(names) < 2 or len(differing) != 1 or len({len(parts) for parts in split}) > 1:
        return ", ".join(map(shown_name, names))
    at = differing[0]
    parts = [*split[0][:at], f"{{{','.join(_ranges([parts[at] for parts in split]))}}}", *split[0][at + 1 :]]
    return shown_name(".".join(parts))


def _ranges(parts: Sequence[str]) -> Iterator[str]:
    """Yield the parts; three or more consecutive numbers as a range."""
    if not all(part.isdecimal() for part in parts):
        yield from parts
        return
    numbers = sorted(map(int, parts))
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        if len(found) > 2:
            yield f"{found[0]}-{found[-1]}"
        else:
            yield from map(str, found)


def _on_one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _statement(said: str, line: str, before: str) -> str:
    """Return a changed line below a comment as valid Python: what is no statement, such as a shape, is a comment."""
    return f"# {_on_one_line(said)}\n{_as_python(line)}  # was {_on_one_line(before)}"


def _as_python(line: str) -> str:
    line = _on_one_line(line)
    return line if _is_python(line) else f"# {line}"


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

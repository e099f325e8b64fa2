"""The statements of the model's own source, for names of variables and for what stands on one line."""

from __future__ import annotations

import ast
import linecache
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import fx

from dst_analyze.model.graph.module_calls import CodeLine

Names = tuple[Any, ...]
"""Names of items; an empty one where an item has none, and a tuple for one that is unpacked itself."""


@dataclass(frozen=True)
class SourceStatement:
    """A statement of the model's source.

    Attributes:
        file: The file that it is in.
        line: Its first line.
        assigns: True if it gives its value a name.
        target: The name that it assigns to; empty if there is none, or several.
        targets: The names that it unpacks its value into.
        is_size: True if its value is the size of one axis of a tensor.
    """

    file: str
    line: int
    assigns: bool
    target: str = ""
    targets: Names = ()
    is_size: bool = False


def line_of(node: fx.Node) -> CodeLine | None:
    """Return the line of the model's source that a node was recorded at."""
    line = node.meta.get("line")
    return line if isinstance(line, CodeLine) else None


def statement_at(line: CodeLine | None) -> SourceStatement | None:
    """Return the statement at a place in the source; None if its source is not to be had."""
    if line is None:
        return None
    return _statements(line.file).get((line.function, line.function_line), {}).get(line.line)


def in_one_statement(first: CodeLine | None, second: CodeLine | None) -> bool:
    """Return True if both were computed by one execution of one statement, in this order."""
    return _in_same_statement(first, second) and first.offset < second.offset  # type: ignore[union-attr]


def in_one_call(first: CodeLine | None, second: CodeLine | None) -> bool:
    """Return True if both were computed at one place of the source, such as in one call of a helper function."""
    return _in_same_statement(first, second) and first.offset == second.offset  # type: ignore[union-attr]


def _in_same_statement(first: CodeLine | None, second: CodeLine | None) -> bool:
    if first is None or second is None:
        return False
    same = (first.file, first.function, first.function_line) == (second.file, second.function, second.function_line)
    statement = statement_at(first)
    return same and (first.line == second.line or (statement is not None and statement == statement_at(second)))


@cache
def _statements(file: str) -> dict[tuple[str, int], dict[int, SourceStatement]]:
    """Return the statements of a file: by a function's name and first line, then by each line of the statement."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    functions: dict[tuple[str, int], dict[int, SourceStatement]] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
            functions[function.name, first] = _by_line(function, file)
    return functions


def _by_line(function: ast.FunctionDef, file: str) -> dict[int, SourceStatement]:
    found: dict[int, SourceStatement] = {}
    for statement in ast.walk(function):
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Return | ast.Expr):
            known = _statement(statement, file)
            found |= dict.fromkeys(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1), known)
    return found


def _statement(statement: ast.stmt, file: str) -> SourceStatement:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target: ast.expr = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        target = statement.target
    else:
        return SourceStatement(file, statement.lineno, isinstance(statement, ast.Assign))
    if isinstance(target, ast.Name):
        return SourceStatement(file, statement.lineno, True, target.id, is_size=_is_size(statement.value))
    if isinstance(target, ast.Tuple | ast.List):
        return SourceStatement(file, statement.lineno, True, "", _names(target))
    return SourceStatement(file, statement.lineno, True)


def _names(target: ast.Tuple | ast.List) -> Names:
    if any(isinstance(item, ast.Starred) for item in target.elts):
        return ()
    return tuple(
        item.id if isinstance(item, ast.Name) else _names(item) if isinstance(item, ast.Tuple | ast.List) else ""
        for item in target.elts
    )


def _is_size(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Subscript):
        return isinstance(value.value, ast.Attribute) and value.value.attr == "shape"
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "size"

"""Where a model's code builds each module: the call in the user's files, and the calls that led there."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from dst_analyze.model.isolation import preserved
from dst_analyze.model.loading.load import load_model
from dst_analyze.model.user_errors import is_installed
from dst_analyze.package import EXAMPLES, PACKAGE

Span = tuple[int, int, int, int]
"""First line, last line, first column, column behind the last: columns in bytes, as in `ast`."""

_DEEPEST = 40  # calls that are followed


@dataclass(frozen=True)
class Site:
    """A call that was being evaluated in a user's file."""

    file: str
    span: Span
    direct: bool = True  # False if a library builds the module, which the call has called

    @property
    def line(self) -> int:
        """The line where the call begins."""
        return self.span[0]


Sites = dict[str, tuple[Site, ...]]
"""By a module's name, the calls that built it, the innermost first."""


@dataclass
class UserFile:
    """The text of a user's file with its syntax tree."""

    path: Path
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.path.read_bytes().decode("utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text)

    @cached_property
    def _calls(self) -> dict[Span, ast.Call]:
        return {span_of(node): node for node in ast.walk(self.tree) if isinstance(node, ast.Call)}

    @cached_property
    def _functions(self) -> list[ast.FunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]

    def call_at(self, span: Span) -> ast.Call | None:
        """Return the call that stands exactly there."""
        return self._calls.get(span)

    def function_around(self, node: ast.AST) -> ast.FunctionDef | None:
        """Return the innermost function whose body holds a node."""
        line = getattr(node, "lineno", 0)
        around = [f for f in self._functions if f.body[0].lineno <= line <= (f.end_lineno or 0)]
        return max(around, key=lambda f: f.lineno, default=None)


def span_of(node: ast.expr) -> Span:
    """Return where an expression stands."""
    return node.lineno, node.end_lineno or node.lineno, node.col_offset, node.end_col_offset or 0


def sites_of(spec: str, model_args: Mapping[str, Any]) -> Sites:
    """Build the model of a spec once more, without memory where it can be, and return where its modules are built."""
    with preserved(), _recording() as (found, _):
        model = load_model(spec, model_args=model_args, device="meta").model
        return {name: found[id(module)] for name, module in model.named_modules() if id(module) in found}


@contextmanager
def _recording() -> Iterator[tuple[dict[int, tuple[Site, ...]], list[nn.Module]]]:
    """Note the user's calls under which each module is initialised."""
    found: dict[int, tuple[Site, ...]] = {}
    alive: list[nn.Module] = []  # so that no id is used twice
    original = nn.Module.__init__

    def noted(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        found[id(self)] = tuple(_user_calls(sys._getframe(1), self))
        alive.append(self)

    nn.Module.__init__ = noted  # type: ignore[method-assign]
    try:
        yield found, alive
    finally:
        nn.Module.__init__ = original  # type: ignore[method-assign]


def _user_calls(frame: FrameType | None, module: nn.Module) -> Iterator[Site]:
    depth, direct = 0, True
    while frame is not None and depth < _DEEPEST:
        name = frame.f_code.co_filename
        example = Path(name).is_relative_to(EXAMPLES)
        if not example and Path(name).is_relative_to(PACKAGE):
            return  # this package, which has called the model's code
        if not name.startswith("<") and (example or not is_installed(name)):
            positions = list(frame.f_code.co_positions())[frame.f_lasti // 2]
            if None not in positions:
                line, end, column, end_column = positions
                yield Site(name, (line or 0, end or 0, column or 0, end_column or 0), direct)
                depth += 1
        elif not depth:
            direct = direct and frame.f_locals.get("self") is module
        frame = frame.f_back

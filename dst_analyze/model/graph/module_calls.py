"""Where in the model's code each node of a graph was recorded: the module calls around it, and the line.

The written source of a slim model (`slimming/source/`) is split as the model's own is. It reads ``"calls"``,
``"passed"`` and ``"line"`` of ``node.meta``; all three may be missing, as a node that surgery adds has none.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import fx, nn

_MACHINERY = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}", contextlib.__file__)
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True)
class CodeLine:
    """A place in running code: a line of a function, and how far its bytecode has come."""

    file: str
    function: str
    function_line: int
    line: int
    offset: int


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module that is not a leaf of the graph."""

    path: str
    kind: type[nn.Module]
    line: CodeLine | None  # of the caller
    parameters: list[str] = field(default_factory=list)  # of forward, those that were given values of the graph
    lists: dict[str, int] = field(default_factory=dict)  # parameters that were given a list of values, with its length


class CallRecorder:
    """The stack of module calls of a running trace."""

    def __init__(self, root: nn.Module) -> None:
        self._calls: list[ModuleCall] = []
        self._codes = [_forward_code(root)]

    @contextmanager
    def entered(
        self,
        path: str,
        module: nn.Module,
        arguments: tuple[Any, Mapping[str, Any]],
        nodes: Callable[[Any], list[fx.Node]],
    ) -> Iterator[None]:
        """Record nodes of this block as those of a module's call; ``nodes`` gives the nodes in an argument."""
        call = ModuleCall(path, type(module), _running_line(self._codes[-1]))
        for name, value in _by_parameter(module, *arguments):
            found = nodes(value)
            if isinstance(value, list) and len(found) == len(value) > 0:
                call.lists[name] = len(found)
            for index, node in enumerate(found):
                passed = node.meta.setdefault("passed", {})
                passed.setdefault(call, name if len(found) == 1 else f"{name}_{index}")
                call.parameters.append(passed[call])
        self._calls.append(call)
        self._codes.append(_forward_code(module))
        try:
            yield
        finally:
            self._calls.pop()
            self._codes.pop()

    def annotate(self, node: fx.Node) -> None:
        """Write down where a new node was recorded."""
        node.meta["calls"] = tuple(self._calls)
        if (line := _running_line(self._codes[-1])) is not None:
            node.meta["line"] = line


def _forward_code(module: nn.Module) -> CodeType | None:
    forward = inspect.getattr_static(type(module), "forward", None)
    return getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None


def _by_parameter(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return a call's arguments by the names that the module's forward has for them; none if it does not say."""
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return []
    return [pair for name, value in bound.items() for pair in _spread(name, value, module)]


def _spread(name: str, value: Any, module: nn.Module) -> list[tuple[str, Any]]:
    kind = inspect.signature(module.forward).parameters[name].kind
    return list(value.items()) if kind is inspect.Parameter.VAR_KEYWORD else [(name, value)]


def _running_line(forward: CodeType | None) -> CodeLine | None:
    """Return the line of the user's code that is running: of a module's forward, or of a function beside it."""
    frame: FrameType | None = sys._getframe(1)
    inner: FrameType | None = None
    while frame is not None:
        code = frame.f_code
        if code is forward:
            if inner is None or _is_foreign(inner.f_code.co_filename, code.co_filename):
                inner = frame
            break
        if inner is None and not code.co_name.startswith("<") and not code.co_filename.startswith(_MACHINERY):
            inner = frame
        frame = frame.f_back
    if inner is None:
        return None
    code = inner.f_code
    return CodeLine(code.co_filename, code.co_name, code.co_firstlineno, inner.f_lineno, inner.f_lasti)


def _is_foreign(file: str, own: str) -> bool:
    """True for a function of another installed package, whose variables mean nothing to a reader of the model."""
    return file != own and any(folder in file for folder in _INSTALLED)

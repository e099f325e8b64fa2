"""The output of a slim model in the types that the original returns: a ModelOutput, a named tuple, a dataclass."""

from __future__ import annotations

import dataclasses
import importlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import fx

from dst_analyze.model.loading.module_finder import MADE_FROM_FILE


@dataclass(frozen=True)
class Made:
    """A value that a class makes of its items, by keyword or from a dict."""

    make: Callable[..., Any]
    by_keyword: bool
    items: dict[Any, Any]


def typed_output(value: Any, plain: Any) -> Any:
    """Return the output of a graph with `Made` where the model's own output has another type than a plain one.

    Args:
        value: What the model returns.
        plain: What its graph returns, see `plain_output`.
    """
    if isinstance(plain, list | tuple) and isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(typed_output(a, b) for a, b in zip(value, plain, strict=True))
    if not isinstance(plain, dict):
        return plain
    named, by_keyword = _named(value)
    if named is None:
        return plain
    items = {key: typed_output(item, plain[str(key)]) for key, item in named.items() if str(key) in plain}
    if type(value) in (dict, OrderedDict) or not _importable(type(value)):
        return items if all(isinstance(key, str) for key in items) else plain
    if isinstance(value, tuple):  # each field of a named tuple has to be given
        items = {key: items.get(key) for key in named}
    return Made(type(value), by_keyword, items)


def _named(value: Any) -> tuple[dict[Any, Any] | None, bool]:
    """Return an output's parts by name, and whether its class takes them as keywords."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict(), True
    if isinstance(value, Mapping):
        return dict(value), dataclasses.is_dataclass(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, True
    return None, False


def _importable(kind: type) -> bool:
    """True if the written source can import a class."""
    if kind.__module__ == "__main__" or kind.__module__.startswith(MADE_FROM_FILE):
        return False
    try:
        return getattr(importlib.import_module(kind.__module__), kind.__qualname__, None) is kind
    except ImportError:
        return False


def set_output(graph: fx.Graph, output: Any) -> None:
    """Let a graph return a typed output."""
    end = next(iter(reversed(graph.nodes)))
    with graph.inserting_before(end):
        end.args = (expressed(graph, output),)


def expressed(graph: fx.Graph, value: Any) -> Any:
    """Return an output as a node's argument: the calls of its classes are new nodes."""
    if isinstance(value, Made):
        items = {key: expressed(graph, item) for key, item in value.items.items()}
        if value.by_keyword:
            return graph.call_function(value.make, (), items)
        return graph.call_function(value.make, (items,))
    if isinstance(value, dict):
        return {key: expressed(graph, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(expressed(graph, item) for item in value)
    return value

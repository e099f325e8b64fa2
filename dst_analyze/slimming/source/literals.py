"""Python source text: literals, names, attribute paths and line wrapping."""

from __future__ import annotations

import builtins
import itertools
import keyword
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dst_analyze.errors import ModelError

_WIDTH = 120
_RESERVED = {"torch", "nn", "F", "math", "operator", "self", "Path", "WEIGHTS", "load_file", *dir(builtins)}


class SourceError(ModelError):
    """A part of the model cannot be written as source."""


def is_plain(name: str) -> bool:
    """Return True if a name may be written as an attribute or a keyword."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("__")


def identifier(name: str, taken: set[str] | frozenset[str] = frozenset()) -> str:
    """Return a valid name for a variable or class that is not yet used in the file."""
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in name)
    if not is_plain(name):
        name = f"v_{name}".replace("__", "_")
    while name in _RESERVED or name in taken:
        name += "_"
    return name


def literal(value: Any) -> str:
    """Return the Python literal of a value; raise if it is not plain data."""
    if value is None or value is ... or isinstance(value, bool):
        return "..." if value is ... else repr(value)
    if isinstance(value, float):
        return repr(float(value)) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, int):
        return repr(int(value))
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple | list | dict | slice):  # torch.Size too
        return collection(value, literal)
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({_quoted(str(value))})"
    raise SourceError(f"a value of type {type(value).__name__} cannot be written as source")


def collection(value: tuple[Any, ...] | list[Any] | dict[Any, Any] | slice, of: Callable[[Any], str]) -> str:
    """Return the Python text of a tuple, list, dict or slice, with items written by ``of``."""
    if isinstance(value, tuple):
        return f"({', '.join(map(of, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(of, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {of(item)}' for key, item in value.items())}}}"
    return f"slice({of(value.start)}, {of(value.stop)}, {of(value.step)})"


def _quoted(text: str) -> str:
    shown = ascii(text)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in shown else shown


def attribute(start: str, path: str, root: nn.Module) -> str:
    """Return the expression for a module or tensor with this qualified name."""
    module: Any = root
    for name in path.split("."):
        listed = isinstance(module, nn.Module) and is_listed(module) and module is not root
        start = (
            f"{start}[{int(name)}]"
            if listed
            else (f"{start}.{name}" if is_plain(name) else f"getattr({start}, {literal(name)})")
        )
        module = getattr(module, name, None)
    return start


def is_listed(module: nn.Module) -> bool:
    """Return True if a container holds only numbered submodules, which are written as a list."""
    names = [*module._modules, *module._parameters, *module._buffers]
    return type(module) is nn.Module and bool(names) and names == [str(i) for i in range(len(module._modules))]


def wrapped(text: str, indent: str, after: int = 0) -> str:
    """Return a long line broken inside its last brackets: their content on one line, else on one line per item.

    ``after``: the length of the text that will follow on the last line.
    """
    if len(indent) + len(text) + after <= _WIDTH or text[-1:] not in (")", "]"):
        return text
    start, pieces = _last_brackets(text)
    inner = f"{indent}    "
    together = ", ".join(pieces)
    subscript = text[start] == "[" and start and (text[start - 1].isalnum() or text[start - 1] in "_)]")
    if len(inner) + len(together) <= _WIDTH or subscript:
        lines = [inner + together]
    else:
        lines = [f"{inner}{wrapped(piece, inner, 1)}," for piece in pieces]
    return "\n".join([text[: start + 1], *lines, indent + text[-1]])


def _last_brackets(text: str) -> tuple[int, list[str]]:
    """Return the position of the bracket that the last one closes, and the items between them."""
    opened: list[int] = []
    commas: dict[int, list[int]] = {}
    start, quote, escaped = 0, "", False
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not escaped else quote
            escaped = letter == "\\" and not escaped
        elif letter in "\"'":
            quote = letter
        elif letter in "([{":
            opened.append(i)
        elif letter in ")]}":
            start = opened.pop()
        elif letter == "," and opened:
            commas.setdefault(opened[-1], []).append(i)
    borders = [start, *commas.get(start, []), len(text) - 1]
    pieces = [text[a + 1 : b].strip() for a, b in itertools.pairwise(borders)]
    return start, [piece for piece in pieces if piece]

"""Which models of which public repositories `repository_survey.py` tries: files, arguments and inputs, no code.

The table is `repository_models.txt`. A line that begins with ``#`` is a comment; one that begins with ``@`` is a
repository: its name, the commit that was surveyed, and folders to import from. Every other line is a model: its file
(``models/net.py``, or several joined by ``+``: only imports, functions, classes and constants are executed) or module
(``models.net``: imported), how it is built, and what it is called with, separated by ``|``; a fourth part is executed
first. In the expressions, ``f`` makes normal floats, ``u`` uniform ones, ``i`` integers below its first argument,
``ns`` a namespace of options, and ``B`` is the size of the batch: an input that has it is made for two sizes.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading.torchvision_compat import make_importable

TABLE = Path(__file__).with_suffix(".txt")
SIZES = (2, 3)


@dataclass(frozen=True)
class Entry:
    """A line of the table."""

    repository: str
    commit: str
    paths: tuple[str, ...]
    file: str
    build: str
    inputs: str
    prelude: str

    @property
    def name(self) -> str:
        return f"{self.repository} {self.file} {self.build}"

    @property
    def set(self) -> str:
        """``held`` for a third of the repositories, by the hash of the name; else ``seen``."""
        return "held" if int(hashlib.sha256(self.repository.encode()).hexdigest(), 16) % 3 == 0 else "seen"


def entries() -> Iterator[Entry]:
    """Return all models of the table."""
    repository, commit, paths = "", "", ()
    for line in TABLE.read_text().splitlines():
        if line.startswith("@"):
            repository, commit, *paths = line[1:].split()
        elif line.strip() and not line.startswith("#"):
            file, build, inputs, *prelude = (part.strip() for part in line.split(" | "))
            yield Entry(repository, commit, tuple(paths), file, build, inputs, "".join(prelude))


def load(entry: Entry, folder: Path) -> tuple[nn.Module, Inputs, list[Inputs]]:
    """Return a model, its inputs, and inputs of other batch sizes."""
    make_importable()
    root = folder / entry.repository.replace("/", "+")
    sys.path[:0] = [str(root / path) for path in (*entry.paths, "")]
    scope: dict[str, Any] = {}
    if entry.file.endswith(".py"):
        files = [root / file for file in entry.file.split("+")]
        module = types.ModuleType(files[-1].stem)
        module.__file__ = str(files[-1])
        sys.path.insert(0, str(files[-1].parent))
        sys.modules[module.__name__] = module
        scope = module.__dict__
        exec(entry.prelude, scope | {"ns": types.SimpleNamespace, "torch": torch}, scope)
        for file in files:
            _execute_definitions(file, scope)
    else:
        scope = _imported(entry.file).__dict__
    around = {**scope, "torch": torch, "nn": nn, "np": np, "ns": types.SimpleNamespace}
    if not entry.file.endswith(".py"):
        exec(entry.prelude, around)
    model = eval(entry.build, around)
    sizes = SIZES if "B" in entry.inputs else SIZES[:1]
    first, *others = (_inputs(eval(entry.inputs, around | _makers(size))) for size in sizes)
    return model, first, others


def _imported(name: str) -> types.ModuleType:
    """Import a module; packages that are not there, which it wants for data or logs, are empty ones."""
    for _ in range(20):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not error.name or error.name in sys.modules:
                raise
            empty = types.ModuleType(error.name)
            empty.__path__, empty.__getattr__ = [], lambda wanted: type(wanted, (), {})  # type: ignore[method-assign]
            sys.modules[error.name] = empty
    raise ImportError(name)


def _execute_definitions(path: Path, scope: dict[str, Any]) -> None:
    """Execute a script without what it does: imports that work, functions, classes, constants."""
    for node in ast.parse(path.read_text()).body:
        literal = isinstance(node, ast.Assign) and _is_literal(node.value)
        if not literal and not isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            continue
        try:
            exec(compile(ast.Module([node], []), str(path), "exec"), scope)
        except Exception:  # of a package that is not there; the model says if it was needed
            continue


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


def _makers(size: int) -> dict[str, Any]:
    noise = torch.Generator().manual_seed(size)
    return {
        "B": size,
        "f": lambda *shape: torch.randn(*shape, generator=noise),
        "u": lambda *shape: torch.rand(*shape, generator=noise),
        "i": lambda most, *shape: torch.randint(0, most, shape, generator=noise),
    }


def _inputs(value: Any) -> Inputs:
    if isinstance(value, dict):
        return Inputs((), value)
    return Inputs(value if isinstance(value, tuple) else (value,))

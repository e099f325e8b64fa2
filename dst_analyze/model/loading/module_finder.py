"""An import finder that lets child processes import the modules made from a user's file.

On some systems a DataLoader's workers are new processes, which unpickle the data set by its class's module name. That
module was made from a file (`user_module.py`) and is on no path. Its name begins with this package's name, so importing
it imports this package first, which installs the finder; an environment variable names the file. Nothing here imports
torch, since `import dst_analyze` does not either.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from dst_analyze.package import PACKAGE

MADE_FROM_FILE = f"{PACKAGE.name}.user_"
"""The prefix of these modules' names."""


def package_of(file: Path | str) -> str:
    """Return the package that a file's relative imports start from; "" if it has none.

    Packages are folders with an __init__.py; without one, the folders that the dots name.
    """
    file = Path(file)
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    level = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    if not level:
        return ""
    folders = [file.parent]
    while len(folders) < level or (folders[-1] / "__init__.py").exists():
        if folders[-1] == folders[-1].parent:
            return ""
        folders.append(folders[-1].parent)
    if len(folders) > level and not (folders[-1] / "__init__.py").exists():
        folders.pop()
    names = [folder.name for folder in reversed(folders)]
    return ".".join(names) if all(name.isidentifier() for name in names) else ""


def package_root(file: Path) -> Path | None:
    """Return the folder above the package of a file with relative imports; None if it has none."""
    package = package_of(file)
    return file.parents[package.count(".") + 1] if package else None


class FileSpec(ModuleSpec):
    """The spec of a module made from a user's file, in the package that its relative imports start from."""

    loader: SourceFileLoader

    def __init__(self, name: str, file: Path | str) -> None:
        super().__init__(name, _Loader(name, str(file)), origin=str(file))
        self.has_location = True
        self._package = package_of(file)

    @property
    def parent(self) -> str:
        return self._package


class _Loader(SourceFileLoader):
    """A loader that writes no bytecode beside a user's file."""

    def set_data(self, path: Any, data: Any, *, _mode: int = 0o666) -> None:
        pass


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = os.environ.get(_variable(fullname)) if fullname.startswith(MADE_FROM_FILE) else None
        if file is None:
            return None
        from dst_analyze.model.loading import torchvision_compat

        torchvision_compat.make_importable()
        return FileSpec(fullname, file)


def publish_module_path(name: str, file: Path) -> None:
    """Let processes started from now on find the module in this file."""
    os.environ[_variable(name)] = str(file)


def make_findable() -> None:
    """Install the finder in this process, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def _variable(name: str) -> str:
    return name.replace(".", "_").upper()

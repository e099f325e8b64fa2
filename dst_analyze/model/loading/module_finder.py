"""An import finder that lets child processes import the modules made from a user's file.

On some systems a DataLoader's workers are new processes, which unpickle the data set by its class's module name. That
module was made from a file (`user_module.py`) and is on no path. Its name begins with this package's name, so importing
it imports this package first, which installs the finder; an environment variable names the file. Nothing here imports
torch, since `import dst_analyze` does not either.
"""

from __future__ import annotations

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


class FileSpec(ModuleSpec):
    """The spec of a module made from a user's file; it is in no package, so `from . import` fails."""

    loader: SourceFileLoader

    def __init__(self, name: str, file: Path | str) -> None:
        super().__init__(name, _Loader(name, str(file)), origin=str(file))
        self.has_location = True

    @property
    def parent(self) -> str:
        return ""


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

"""Modules made from a user's file, found by the same name in processes that this one starts.

A DataLoader's workers are new processes on some systems, and are sent a data set by the name of its class's module.
That module was made from a file (`user_module.py`) and stands on no path. So its name begins with this package's,
which makes whoever imports it import us, and a process tells the ones it starts, through their environment, which file
it was. No torch here: `import dst_analyze` is cheap.
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
"""How the names of such modules begin."""


class FileSpec(ModuleSpec):
    """Where such a module comes from. It is in no package, whatever its name says: `from . import` fails as ever."""

    loader: SourceFileLoader

    def __init__(self, name: str, file: Path | str) -> None:
        super().__init__(name, _Loader(name, str(file)), origin=str(file))
        self.has_location = True

    @property
    def parent(self) -> str:
        return ""


class _Loader(SourceFileLoader):
    """Leaves no bytecode beside a user's file."""

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
    """Processes started from here on find the module in this file."""
    os.environ[_variable(name)] = str(file)


def make_findable() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def _variable(name: str) -> str:
    return name.replace(".", "_").upper()

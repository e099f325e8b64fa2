"""The user's own Python files, sent along to machines that do not have them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dst_analyze.model.loading.user_module import imported_files

_moved: dict[str, str] = {}
"""Unpacked files: path on the packing machine → path on this one."""


@dataclass(frozen=True)
class CodeBundle:
    """The user's imported Python files (absolute path → content), and the working directory."""

    folder: str
    files: Mapping[str, bytes]

    @classmethod
    def packed(cls) -> CodeBundle:
        """Return a bundle of all of the user's files that are imported now."""
        return cls(str(Path.cwd()), {str(file): file.read_bytes() for file in imported_files()})

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Change to the packed working directory if it holds the same files, else to a temporary copy."""
        if Path(self.folder).is_dir() and all(_holds(Path(path), content) for path, content in self.files.items()):
            os.chdir(self.folder)
            yield
            return
        with tempfile.TemporaryDirectory(prefix="dst-analyze-") as root:
            places = {path: _below(root, path) for path in self.files}
            for path, content in self.files.items():
                places[path].parent.mkdir(parents=True, exist_ok=True)
                places[path].write_bytes(content)
            folder = _below(root, self.folder)
            folder.mkdir(parents=True, exist_ok=True)
            _moved.update({path: str(place) for path, place in places.items()})
            os.chdir(folder)
            try:
                yield
            finally:
                os.chdir("/")


def local_path(spec: Any) -> Any:
    """Return a file, or a spec that begins with one, with its path on this machine."""
    if isinstance(spec, str | os.PathLike):
        path, colon, target = os.fspath(spec).partition(".py:")
        path += ".py" if colon else ""
        if path in _moved:
            return _moved[path] + (f":{target}" if colon else "")
    return spec


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _below(root: str, path: str) -> Path:
    return Path(root).resolve() / Path(path).relative_to(Path(path).anchor)

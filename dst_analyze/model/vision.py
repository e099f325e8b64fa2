"""torchvision beside a CPU-only torch: the one place where it is imported, or made importable for a user's own file.

The wheel on PyPI is built for CUDA. Beside a CPU-only torch its compiled library does not load, and `import
torchvision` then dies in its own `_meta_registrations`, which describes two operators that only that library declares.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import torch

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[torch.library.Library] = []  # a declaration lives only as long as its Library object


def torchvision_module() -> ModuleType:
    """torchvision, imported so that it works with or without its compiled operators."""
    make_importable()
    return importlib.import_module("torchvision")


def make_importable() -> None:
    """From here on `import torchvision` works anywhere in this process; costs nothing until somebody says it."""
    if not any(isinstance(finder, _Doorman) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Doorman())


class _Doorman(MetaPathFinder):
    """Finds nothing itself: it is asked first, and so can act at two moments of torchvision's import."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if moment := _MOMENTS.get(fullname):
            moment()


def _has_operators() -> bool:
    return hasattr(torch.ops.torchvision, "nms")


def _forget_failed_import() -> None:
    """An import that died before we were asked leaves submodules behind which a second attempt would trip over."""
    if not _has_operators():
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]


def _declare_operators() -> None:
    """By now torchvision has tried to load its library: what is missing stays missing. Schemas alone let it import."""
    if not _has_operators():
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in SCHEMAS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)


_MOMENTS = {"torchvision": _forget_failed_import, "torchvision._meta_registrations": _declare_operators}

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

# Declared without an implementation: enough to import it, and calling them says that they are missing.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

declared: list[torch.library.Library] = []
"""Where torchvision's operators were declared in its place; a declaration lives as long as its Library object."""


def torchvision_module() -> ModuleType:
    """torchvision, imported so that it works with or without its compiled operators."""
    make_importable()
    return importlib.import_module("torchvision")


def make_importable() -> None:
    """From here on `import torchvision` works anywhere in this process; costs nothing until somebody says it."""
    if not any(isinstance(finder, _TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchvisionFinder())


class _TorchvisionFinder(MetaPathFinder):
    """Finds nothing itself: asked first, it acts after torchvision tried to load its library and before it needs it."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "torchvision._meta_registrations" and not hasattr(torch.ops.torchvision, "nms"):
            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in SCHEMAS:
                library.define(schema)
            declared.append(library)

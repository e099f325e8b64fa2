"""Import of torchvision beside a CPU-only torch, for this package and for users' files.

The wheel on PyPI is built for CUDA. Beside a CPU-only torch its compiled library does not load, and `import
torchvision` then fails in its `_meta_registrations`, which describes two operators that only that library declares.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import torch

# Declared without an implementation: enough for the import; calling them raises that they are missing.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

declared: list[torch.library.Library] = []
"""Keeps the declarations alive: each lives as long as its Library object."""


def torchvision_module() -> ModuleType:
    """Return torchvision, imported so that it works with or without its compiled operators."""
    make_importable()
    return importlib.import_module("torchvision")


def make_importable() -> None:
    """Make `import torchvision` work anywhere in this process, without importing it."""
    if not any(isinstance(finder, _TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchvisionFinder())


def lacks_operators(error: BaseException) -> bool:
    """True if an error says that torchvision's compiled operators, such as `nms`, are missing."""
    text = str(error)
    return isinstance(error, RuntimeError) and ("custom C++ ops" in text or "torchvision::" in text)


OPERATORS_HINT = (
    "install a torchvision that is built for this torch, from the same index: "
    "`pip install torchvision --index-url https://download.pytorch.org/whl/cpu` beside a CPU-only torch"
)


class _TorchvisionFinder(MetaPathFinder):
    """A finder that finds nothing but declares torchvision's operators in time.

    It is asked for `_meta_registrations` after torchvision tried to load its library and before it uses the operators.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "torchvision._meta_registrations" and not hasattr(torch.ops.torchvision, "nms"):
            library = torch.library.Library("torchvision", "FRAGMENT")
            for schema in SCHEMAS:
                library.define(schema)
            declared.append(library)

"""Where in a model's source something happened: the line outside torch and this package."""

from __future__ import annotations

import inspect
import sys
import traceback
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from dst_analyze.package import PACKAGE

_MACHINERY = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, PACKAGE / "model"))
_STANDARD_LIBRARY = f"{Path(traceback.__file__).parent}/"


def describe_error(error: BaseException) -> str:
    """Type and first words of an exception, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:200]}".rstrip(": ")


def place_of(error: BaseException) -> str:
    """The last line of model code, outside torch and this package, that an exception came through."""
    frames = [f"{f.f_code.co_filename}:{line}" for f, line in traceback.walk_tb(error.__traceback__) if _is_model(f)]
    return frames[-1] if frames else ""


def source_of(module: nn.Module) -> str:
    code = getattr(inspect.getattr_static(type(module), "forward", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def place_here() -> str:
    frame = next((f for f, _ in traceback.walk_stack(sys._getframe(1)) if _is_model(f)), None)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def _is_model(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    library = file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
    return not library and not file.startswith((*_MACHINERY, "<"))

"""What a batch looks like, in words, for messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from dst_analyze.model.user_errors import describe_value

BATCH_FORMS = (
    "(inputs, targets), (first, second, targets), a dict with the names of forward's arguments, "
    "or (list of images, list of dicts)"
)
_ENTRIES = 6  # of a dict or tuple, that are shown
_DEEPEST = 3


def describe_batch(batch: Any, depth: int = 0) -> str:
    """Return a batch's structure: ``a tuple of (float32[8, 3, 32, 32], int64[8])``."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return f"{str(batch.dtype).removeprefix('torch.')}{list(batch.shape)}"
    if isinstance(batch, Mapping) and depth < _DEEPEST:
        entries = [f"{key}: {describe_batch(value, depth + 1)}" for key, value in list(batch.items())[:_ENTRIES]]
        return f"a dict of {{{_joined(entries, len(batch))}}}"
    if isinstance(batch, tuple | list) and batch and depth < _DEEPEST:
        kind = "list" if isinstance(batch, list) else "tuple"
        parts = [describe_batch(value, depth + 1) for value in batch[:_ENTRIES]]
        alike = all(type(value) is type(batch[0]) for value in batch)
        if depth and alike and len(batch) > 1:
            return f"a {kind} of {len(batch)}, the first {parts[0]}"
        return f"a {kind} of ({_joined(parts, len(batch))})"
    return describe_value(batch)


def _joined(parts: list[str], count: int) -> str:
    return ", ".join(parts) + (f" and {count - len(parts)} more" if count > len(parts) else "")

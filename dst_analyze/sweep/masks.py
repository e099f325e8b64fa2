"""Masks as bytes: one bit per weight, in the safetensors format. No torch: whoever reads a run folder may read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
from safetensors.numpy import load, save

from dst_analyze.errors import FolderError

_SHAPES = "shapes"


def packed(masks: Mapping[str, np.ndarray]) -> bytes:
    """Masks by layer, eight weights to a byte; their shapes lie beside them, as JSON in bytes."""
    shapes = json.dumps({name: mask.shape for name, mask in masks.items()}).encode()
    bits = {f"mask.{name}": np.packbits(mask.ravel()) for name, mask in masks.items()}
    made: bytes = save({_SHAPES: np.frombuffer(shapes, np.uint8), **bits})
    return made


def unpacked(data: bytes, *, place: str = "") -> dict[str, np.ndarray]:
    """The masks as booleans in the shapes of their weights."""
    try:
        arrays = load(data)
        shapes = json.loads(arrays[_SHAPES].tobytes())
        return {
            name: np.unpackbits(arrays[f"mask.{name}"], count=math.prod(shape)).astype(bool).reshape(shape)
            for name, shape in shapes.items()
        }
    except Exception as error:  # safetensors raises errors of its own kind, the rest follows from damage
        raise FolderError(f"the masks cannot be read: {error}", place=place, hint="run the sweep again") from error

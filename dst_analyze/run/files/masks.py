"""Files of final masks: one bit per weight, in safetensors format, readable without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from dst_analyze.errors import FolderError
from dst_analyze.run.files.paths import MASKS
from dst_analyze.run.files.safe_read import MASKS_MOST, read_bytes

Mask = npt.NDArray[np.bool_]

_PACKING = "numpy.packbits of the mask in C order"


def pack_masks(masks: Mapping[str, Mask]) -> bytes:
    """Return masks by layer name as the bytes of a safetensors file."""
    about = {"packing": _PACKING, "shapes": {name: list(mask.shape) for name, mask in masks.items()}}
    # One entry only: the order of several would change from run to run.
    packed: bytes = save({name: np.packbits(mask) for name, mask in masks.items()}, {"masks": json.dumps(about)})
    return packed


def read_masks(path: Path | str) -> dict[str, Mask]:
    """Return the final masks of a trial by layer name, in network order.

    Args:
        path: A trial's folder in a run folder, or the ``masks.safetensors`` in it.

    Returns:
        A boolean array for each layer, in its weight's shape: True where a weight remains.

    Raises:
        FolderError: There are no masks, or they cannot be read.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from dst_analyze import read_masks, run_sweep
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> data = torch.randn(64, 8), torch.randint(0, 2, (64,))
        >>> record = run_sweep(model, data, alphas=(1e-3, 1e-2), steps=4, out="run")
        >>> masks = read_masks(record.folder / "trials" / "alpha=0.01,seed=0")
        >>> {name: mask.shape for name, mask in masks.items()}
        {'0': (16, 8), '2': (2, 16)}
    """
    path = Path(path)
    path = path / MASKS if path.is_dir() else path
    try:
        data = read_bytes(path, MASKS_MOST)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        about = json.loads(header["__metadata__"]["masks"])
        packed = load(data)
        return {name: _unpacked(packed[name], shape) for name, shape in about["shapes"].items()}
    except FileNotFoundError:
        raise FolderError(
            "there are no masks", place=str(path), hint="masks are kept for every alpha's trial that ended well"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # truncated or foreign bytes raise many kinds of errors
        raise FolderError(
            f"the masks cannot be read: {type(error).__name__}: {error}",
            place=str(path),
            hint="run the sweep again with --resume, which repeats the trial",
        ) from error


def _unpacked(packed: npt.NDArray[np.uint8], shape: list[int]) -> Mask:
    """Return a mask; refuse a shape that does not fit, which numpy would fill with zeros."""
    count = math.prod(shape)
    if any(size < 0 for size in shape) or packed.ndim != 1 or len(packed) != -(-count // 8):
        raise ValueError(f"{len(packed)} bytes are no mask of shape {shape}")
    return np.unpackbits(packed, count=count).astype(bool).reshape(shape)

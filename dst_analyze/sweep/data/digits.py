"""Stand-in data for models without data: scikit-learn's 1,797 handwritten digits, resized to the model's input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from dst_analyze.errors import DataError
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.run.config import DEFAULT_BATCH_SIZE
from dst_analyze.sweep.data.batches import TensorBatches

_HINT = "define train_data(), and loss(outputs, batch) if it is no classification, in the model file"


@dataclass(frozen=True)
class Digits:
    """Training and test batches of digits, with a description."""

    train: TensorBatches
    test: TensorBatches
    description: str


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images as float[1797, 1, 8, 8] in 0..1 and their labels, in a fixed random order."""
    from sklearn import datasets

    digits = datasets.load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.as_tensor(digits.images, dtype=torch.float32)[:, None] / 16
    return images[order], torch.as_tensor(digits.target, dtype=torch.int64)[order]


def fitted_digits(inputs: Inputs, outputs: Any, *, batch_size: int | None = None) -> Digits:
    """Return digits resized to a model's inputs, with as many classes as its outputs have."""
    shape = _sample_shape(inputs)
    classes = _classes(outputs)
    images, labels = load_digits()
    used = labels < classes
    images, labels = images[used], labels[used]
    resize = Resize(shape)
    size = batch_size or DEFAULT_BATCH_SIZE
    cut = len(labels) * 4 // 5
    which = "handwritten digits" if classes >= 10 else f"handwritten digits below {classes}"
    as_what = "as they are" if shape == (1, 8, 8) else f"resized from 1x8x8 to {'x'.join(map(str, shape))}"
    return Digits(
        TensorBatches((images[:cut], labels[:cut]), size, resize),
        TensorBatches((images[cut:], labels[cut:]), size, resize),
        f"{len(labels):,} {which} of scikit-learn, {as_what}",
    )


@dataclass(frozen=True)
class Resize:
    """A conversion of digits to another shape, per batch, as whole sets of large images would not fit into memory."""

    shape: tuple[int, ...]

    def __call__(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = batch
        return fit(images, self.shape), labels


def fit(images: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Return float[n, 1, 8, 8] as float[n, *shape]: flat vectors, sequences of rows, images or volumes."""
    if len(shape) == 1:
        return _flat(images, shape[0])
    resized = _resized(images, shape[-2], shape[-1])
    return resized.view(len(images), *(1,) * (len(shape) - 2), *shape[-2:]).expand(-1, *shape).contiguous()


def _resized(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if (height, width) == tuple(images.shape[-2:]):
        return images
    return F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)


def _flat(images: torch.Tensor, size: int) -> torch.Tensor:
    """Return the images as vectors: of a square image if the size is that of one, else of 64 interpolated pixels."""
    for channels in (1, 3):
        side = math.isqrt(size // channels)
        if channels * side * side == size:
            return _resized(images, side, side).flatten(1).repeat(1, channels)
    return F.interpolate(images.flatten(2), size, mode="linear", align_corners=False).flatten(1)


def _sample_shape(inputs: Inputs) -> tuple[int, ...]:
    tensors = inputs.tensors()
    if len(tensors) != 1 or not tensors[0].is_floating_point() or not 2 <= tensors[0].ndim <= 5:
        raise DataError(
            f"the model file gives no data, and the stand-in digits do not fit inputs of {inputs.describe()}",
            hint=_HINT,
        )
    return tuple(tensors[0].shape[1:])


def _classes(outputs: Any) -> int:
    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
        what = f"of shape {list(outputs.shape)}" if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__}"
        raise DataError(
            f"the model file gives no data, and the stand-in digits need class scores [batch, classes]: "
            f"the output is {what}",
            hint=_HINT,
        )
    return int(outputs.shape[1])

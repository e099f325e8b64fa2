"""Data sets by name: ``npz:PATH``, ``imagefolder:PATH``, and torchvision's data sets in a local folder."""

from __future__ import annotations

import math
import re
import zipfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Subset

from dst_analyze.errors import DataError, OptionError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.user_errors import did_you_mean, headline
from dst_analyze.sweep.engines.resources import cores

DIGITS = "digits"
DEFAULT_ROOT = Path("data")
_TESTED = 5  # one sample in five of a set without test data is for testing
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class NamedData:
    """A named data set: each part as tensors or a Dataset, with a description."""

    train: Any
    test: Any
    description: str


@dataclass(frozen=True)
class DataRequest:
    """The name of a data set, the folder of data sets, and the model's sample shape if known (``like``)."""

    name: str
    root: Path = DEFAULT_ROOT
    download: bool = False
    like: tuple[int, ...] | None = None


def load_named_data(asked: DataRequest) -> NamedData:
    """Return the data set of a name; raise with the known names if there is none."""
    kind, colon, path = asked.name.partition(":")
    if colon and kind in _BY_PATH:
        if asked.download:
            raise OptionError(f"--download has no effect on {kind}:", hint=f"it is for {', '.join(_TORCHVISION)}")
        found = Path(path).expanduser()
        if not path or not found.exists():
            raise DataError(f"there is no {path or 'path'!r}", place=f"--data {asked.name}", hint=f"write {kind}:PATH")
        return _BY_PATH[kind](found, asked)
    if asked.name.lower() in _TORCHVISION:
        return _torchvision(asked.name.lower(), asked)
    known = [*(f"{kind}:PATH" for kind in _BY_PATH), *_TORCHVISION, DIGITS]
    close = did_you_mean(asked.name, [*_BY_PATH, *_TORCHVISION, DIGITS])
    raise DataError(
        f"there are no data called {asked.name!r}", place="--data", hint=close or f"choose one of {', '.join(known)}"
    )


# --- arrays --------------------------------------------------------------------------------------------------------

_INPUTS = ("x", "images", "image", "inputs", "data", "features")
_TARGETS = ("y", "labels", "label", "targets", "target")
_SPLITS = {
    "": "",
    "train": "train",
    "training": "train",
    "test": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
}


def _npz(path: Path, asked: DataRequest) -> NamedData:
    place = f"--data {asked.name}"
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if _meaning(name)}
            names = list(file.files)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, TypeError) as error:
        raise DataError(f"{path.name} cannot be read as npz: {headline(error)}", place=place) from error
    found = {_meaning(name): array for name, array in arrays.items()}
    inputs, targets = found.get(("train", "x"), found.get(("", "x"))), found.get(("train", "y"), found.get(("", "y")))
    if inputs is None or targets is None:
        raise DataError(
            f"no inputs and targets were recognised among its arrays: {', '.join(names) or 'there are none'}",
            place=place,
            hint="call them x and y, images and labels, or x_train, y_train, x_test, y_test",
        )
    test = next((both for split in ("test", "val") if (both := _pair(found, split)) is not None), None)
    return _from_arrays((inputs, targets), test, asked, f"{path.name}: arrays {', '.join(arrays)}")


def _meaning(name: str) -> tuple[str, str] | None:
    """Return ``x_train``, ``train-images``, ``ytest`` as (split, "x" or "y"); None for any other name."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    roles = {**dict.fromkeys(_INPUTS, "x"), **dict.fromkeys(_TARGETS, "y")}
    spellings = {
        spelling: (split, role)
        for word, split in _SPLITS.items()
        for noun, role in roles.items()
        for spelling in (word + noun, noun + word)
    }
    return spellings.get(plain)


def _pair(found: Mapping[Any, np.ndarray], split: str) -> tuple[np.ndarray, np.ndarray] | None:
    both = found.get((split, "x")), found.get((split, "y"))
    return None if both[0] is None or both[1] is None else (both[0], both[1])


def _from_arrays(
    train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray] | None, asked: DataRequest, what: str
) -> NamedData:
    """Return arrays as tensors in torch's layout; without test data a fixed part is set aside."""
    place = f"--data {asked.name}"
    note = ""
    if test is None:
        train, test = _split_arrays(train, place)
        note = f", one in {_TESTED} set aside for testing"
    made = _tensors(train, asked), _tensors(test, asked)
    shape = "x".join(map(str, made[0][0].shape[1:]))
    counts = f"{len(made[0][1]):,} samples of {shape} to train, {len(made[1][1]):,} to test"
    return NamedData(*made, f"{what}: {counts}{note}")


def _tensors(both: tuple[np.ndarray, np.ndarray], asked: DataRequest) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = both
    if len(inputs) != len(targets) or not len(inputs):
        raise DataError(f"it holds {len(inputs)} inputs and {len(targets)} targets", place=f"--data {asked.name}")
    return _inputs(inputs, asked.like), _targets(targets)


def _split_arrays(
    both: tuple[np.ndarray, np.ndarray], place: str
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    count = min(map(len, both))
    if count < 2:
        raise DataError(f"{count} samples are too few to train and test", place=place)
    kept, aside = _split(count)
    return (both[0][kept], both[1][kept]), (both[0][aside], both[1][aside])


def _split(count: int) -> tuple[list[int], list[int]]:
    """Return the indices of the training and the test samples, the same ones every time."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    cut = max(1, count // _TESTED)
    return sorted(order[cut:]), sorted(order[:cut])


def _inputs(array: np.ndarray, like: tuple[int, ...] | None) -> torch.Tensor:
    """Return inputs with channels first if they are clearly last, and reshaped if only the shape differs."""
    tensor = torch.as_tensor(np.ascontiguousarray(array))
    if tensor.dtype == torch.float64:
        tensor = tensor.float()
    if tensor.ndim == 4 and tensor.shape[-1] in _CHANNELS and tensor.shape[1] not in _CHANNELS:
        tensor = tensor.permute(0, 3, 1, 2).contiguous()
    if tensor.dtype == torch.uint8 and tensor.ndim == 3:
        tensor = tensor[:, None]
    if like is not None and tensor[0].numel() == torch.Size(like).numel():
        tensor = tensor.reshape(len(tensor), *like)
    return tensor


def _targets(array: np.ndarray) -> torch.Tensor:
    tensor = torch.as_tensor(np.ascontiguousarray(array))
    if tensor.is_floating_point():
        return tensor.float()
    return (tensor[:, 0] if tensor.ndim == 2 and tensor.shape[1] == 1 else tensor).long()


def scaled(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch with bytes scaled to 0..1; done per batch, as floats take four times the memory."""
    images, labels = batch
    return (images.float() / 255 if images.dtype == torch.uint8 else images), labels


# --- torchvision ---------------------------------------------------------------------------------------------------

_TORCHVISION: dict[str, tuple[str, Callable[[bool], Mapping[str, Any]]]] = {
    **{
        name.lower(): (name, lambda train: {"train": train})
        for name in ("MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100")
    },
    "svhn": ("SVHN", lambda train: {"split": "train" if train else "test"}),
}


def _torchvision(name: str, asked: DataRequest) -> NamedData:
    kind, which = _TORCHVISION[name]
    make = getattr(torchvision_module().datasets, kind)
    parts = []
    for train in (True, False):
        try:
            data = make(str(asked.root), download=asked.download, **which(train))
        except Exception as error:
            if asked.download:
                raise DataError(f"{kind} could not be downloaded: {headline(error)}", place=str(asked.root)) from error
            raise DataError(
                f"{kind} is missing or incomplete: {headline(error)}",
                place=str(asked.root),
                hint="--data-root names the folder that holds it; --download fetches it",
            ) from error
        labels = data.labels if hasattr(data, "labels") else data.targets
        parts.append((np.asarray(data.data), np.asarray(labels)))
    return _from_arrays(parts[0], parts[1], asked, kind)


# --- folders of images ---------------------------------------------------------------------------------------------


def _imagefolder(path: Path, asked: DataRequest) -> NamedData:
    """Return images in one folder per class, below ``train`` and ``test`` (or ``val``) or in one tree that is split."""
    tests = [path / name for name in ("test", "val", "valid", "validation") if (path / name).is_dir()]
    if (path / "train").is_dir() and tests:
        train, test = _images(path / "train", asked), _images(tests[0], asked)
        if train.classes != test.classes:
            raise DataError(
                f"train has the classes {_some(train.classes)}, {tests[0].name} has {_some(test.classes)}",
                place=str(path),
                hint="use the same class folders in both",
            )
        kept = _kept_if_small((train, range(len(train))), (test, range(len(test))))
        return NamedData(*kept, f"images of {path.name}: {len(train):,} to train, {len(test):,} to test")
    images = _images(path / "train" if (path / "train").is_dir() else path, asked)
    used, aside = _split(len(images))
    note = f"one in {_TESTED} set aside for testing"
    kept = _kept_if_small((images, used), (images, aside))
    return NamedData(*kept, f"images of {path.name}: {len(used):,} to train, {len(aside):,} to test, {note}")


def _images(path: Path, asked: DataRequest) -> Any:
    """Return an ImageFolder of tensors of one size: the model's if known, else the first image's."""
    vision = torchvision_module()
    try:
        images = vision.datasets.ImageFolder(str(path))
    except (FileNotFoundError, OSError) as error:
        raise DataError(
            f"no images by class were found: {headline(error)}",
            place=str(path),
            hint="make one folder per class, with images in it",
        ) from error
    like = asked.like if asked.like is not None and len(asked.like) == 3 else None
    if like is None:
        size, mode = images[0][0].size[::-1], "RGB"
    else:
        size, mode = like[1:], "L" if like[0] == 1 else "RGB"
    images.transform = _AsTensor(tuple(size), mode)
    return images


@dataclass(frozen=True)
class _AsTensor:
    """A transform of a picture to float[channels, height, width] in 0..1; a class, so that it can be pickled."""

    size: tuple[int, int]
    mode: str

    @property
    def shape(self) -> tuple[int, int, int]:
        return (1 if self.mode == "L" else 3, *self.size)

    def bytes_of(self, picture: Any) -> torch.Tensor:
        """Return a picture as uint8[channels, height, width]."""
        if picture.size[::-1] != self.size:
            picture = picture.resize(self.size[::-1])
        tensor: torch.Tensor = torchvision_module().transforms.functional.pil_to_tensor(picture.convert(self.mode))
        return tensor

    def __call__(self, picture: Any) -> torch.Tensor:
        return self.bytes_of(picture).float() / 255


_KEPT_BYTES = 1 << 30
_Part = tuple[Any, Sequence[int]]
"""An ImageFolder, and the numbers of some of its images."""


def _kept_if_small(train: _Part, test: _Part) -> tuple[Any, Any]:
    """Return both parts, decoded once for all trials and epochs if a GiB holds them.

    The size alone decides: batches come in another order from tensors than from a data set, so that what this machine
    has room for must not.
    """
    size = sum(len(numbers) * math.prod(images.transform.shape) for images, numbers in (train, test))
    if size > _KEPT_BYTES:
        return Subset(*train), Subset(*test)
    return _decoded(*train), _decoded(*test)


def _decoded(images: Any, numbers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images as bytes, and their labels."""
    pixels = torch.empty((len(numbers), *images.transform.shape), dtype=torch.uint8)

    def decode(row: int) -> None:
        path = images.samples[numbers[row]][0]
        try:
            pixels[row] = images.transform.bytes_of(images.loader(path))
        except Exception as error:
            said = f"it cannot be read as an image: {headline(error)}"
            raise DataError(said, place=path, hint="remove the file, or replace it") from error

    with ThreadPoolExecutor(cores()) as threads:  # decoding lets other threads run
        deque(threads.map(decode, range(len(numbers))), maxlen=0)
    return pixels, torch.tensor([images.targets[number] for number in numbers])


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")


_BY_PATH: dict[str, Callable[[Path, DataRequest], NamedData]] = {"npz": _npz, "imagefolder": _imagefolder}

"""Batches from data in any of the accepted forms: loaders, data sets, tensors, iterables."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, IterableDataset

from dst_analyze.errors import DataError, OptionError
from dst_analyze.model.inputs.infer import has_annotations
from dst_analyze.model.user_errors import user_code
from dst_analyze.run.config import DEFAULT_BATCH_SIZE
from dst_analyze.sweep.data.seeded_loading import can_be_seeded, drawn_batches, drawn_once

_FORMS = "return a DataLoader, a Dataset, a tensor, a tuple or a dict of tensors"


class Batches(Protocol):
    """A repeatable source of batches."""

    def stream(self, seed: int) -> Iterator[Any]:
        """Yield batches epoch after epoch without end, in an order that the seed determines."""

    def once(self) -> Iterator[Any]:
        """Yield all batches once, in their own order."""

    @property
    def per_epoch(self) -> int | None:
        """The number of batches in an epoch; None if unknown."""

    def describe(self) -> str:
        """Return the number and kind of batches in words; a part of a run's configuration."""


@dataclass(frozen=True)
class TensorBatches:
    """Batches cut from tensors in memory along their first dimension; ``shape`` converts each for the model."""

    tensors: Any
    batch_size: int
    shape: Callable[[Any], Any] | None = None

    @property
    def samples(self) -> int:
        """The number of samples."""
        return len(tree_leaves(self.tensors)[0])

    @property
    def per_epoch(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole + (rest > 1 or (rest == 1 and not whole))

    def stream(self, seed: int) -> Iterator[Any]:
        order = torch.Generator().manual_seed(seed)
        return _endless(lambda: self._cut(torch.randperm(self.samples, generator=order)))

    def once(self) -> Iterator[Any]:
        return self._cut(torch.arange(self.samples))

    def _cut(self, order: torch.Tensor) -> Iterator[Any]:
        for rows in torch.split(order, self.batch_size):
            batch = tree_map(itemgetter(rows), self.tensors)
            yield self.shape(batch) if self.shape else batch

    def describe(self) -> str:
        return f"{self.samples:,} samples in batches of {self.batch_size}"


SCORED_AT_MOST = 200
"""Test batches read from a loader without a length, as it may be endless."""
_KEPT_BYTES = 1 << 30  # the most that is kept in memory of data that can be read only once


@dataclass(frozen=True)
class LoaderBatches:
    """The batches of a user's loader, unchanged."""

    loader: Any
    note: str = ""

    @property
    def per_epoch(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:  # an iterable data set has no length
            return None

    def stream(self, seed: int) -> Iterator[Any]:
        # A loader's generator would continue from the previous trial; each trial's order must depend on its seed only.
        for owner in (self.loader, getattr(self.loader, "sampler", None)):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)
        return _endless(lambda: iter(self.loader))

    def once(self) -> Iterator[Any]:
        return islice(iter(self.loader), None if self.per_epoch is not None else SCORED_AT_MOST)

    def describe(self) -> str:
        count = "batches" if self.per_epoch is None else f"{self.per_epoch:,} batches"
        return self.note or f"{count} of a {type(self.loader).__name__}"


@dataclass(frozen=True)
class SeededBatches(LoaderBatches):
    """The batches of a user's DataLoader over numbered samples: the same ones for any number of its workers."""

    def stream(self, seed: int) -> Iterator[Any]:
        return _endless(lambda: drawn_batches(self.loader, seed))

    def once(self) -> Iterator[Any]:
        return drawn_once(self.loader)


def as_batches(
    value: Any, *, place: str, batch_size: int | None = None, shuffle: bool = True, needed: int | None = None
) -> Batches:
    """Return a user's data as batches.

    Args:
        value: The data: a loader, data set, iterable, or tensors.
        place: The function or option that gave them, for messages.
        batch_size: Samples per batch of data that do not come in batches.
        shuffle: Shuffle a data set in each epoch.
        needed: The number of batches that training will read, if known; data readable only once are kept up to it.
    """
    if is_tensors(value):
        tensors = tree_map(_as_tensor, tuple(value) if isinstance(value, list) else value)
        lengths = {len(tensor) for tensor in tree_leaves(tensors)}
        if len(lengths) > 1:
            raise DataError(
                f"its tensors have different lengths: {sorted(lengths)}",
                place=place,
                hint="give each one row per sample",
            )
        if lengths == {0}:
            raise DataError("its tensors are empty", place=place, hint="there must be samples to train on")
        return TensorBatches(tensors, batch_size or DEFAULT_BATCH_SIZE)
    if _is_dataset(value):
        streams = isinstance(value, IterableDataset)
        if not streams and len(value) == 0:
            raise DataError("the data set is empty", place=place, hint="check its path and filters")
        order = torch.Generator() if shuffle and not streams else None
        size = batch_size or DEFAULT_BATCH_SIZE
        return _of_loader(DataLoader(value, batch_size=size, shuffle=order is not None, generator=order))
    if isinstance(value, DataLoader) or (isinstance(value, Iterable) and not isinstance(value, str | bytes)):
        if batch_size is not None:
            raise OptionError(
                "--batch-size has no effect: the data come in batches already",
                place=place,
                hint="set the batch size in the loader, or return the data set itself",
            )
        return _kept(value, needed, place) if _one_shot(value) else _of_loader(value)
    raise DataError(f"it returned {type(value).__name__}, which is not data", place=place, hint=_FORMS)


def _of_loader(loader: Any) -> LoaderBatches:
    return SeededBatches(loader) if can_be_seeded(loader) else LoaderBatches(_with_new_workers(loader))


def _with_new_workers(loader: Any) -> Any:
    """Return a copy of a loader without persistent workers; other loaders are returned unchanged.

    Persistent workers serve one pass at a time, so scoring in the middle of an epoch would end it. They belong to one
    process, and draw other random numbers in their second pass than new workers do.
    """
    if not isinstance(loader, DataLoader) or not loader.persistent_workers:
        return loader
    own = copy.copy(loader)
    own._iterator = None
    object.__setattr__(own, "persistent_workers", False)  # DataLoader.__setattr__ raises for this attribute
    return own


def _one_shot(value: Any) -> bool:
    """Return True if a second pass continues where the first one stopped, as for iterators."""
    if isinstance(value, DataLoader):
        return isinstance(value.dataset, IterableDataset) and _one_shot(value.dataset)
    return isinstance(value, Iterator) or (not hasattr(value, "__len__") and iter(value) is iter(value))


def _kept(source: Any, needed: int | None, place: str) -> LoaderBatches:
    """Return the batches of data readable only once, kept in memory: as many as needed, or as fit."""
    kept: list[Any] = []
    room = _KEPT_BYTES
    with user_code("the data", DataError, hint=_FORMS):
        for batch in islice(source, needed):
            kept.append(batch)
            room -= sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor | np.ndarray))
            if room < 0:
                break
    if not kept:
        raise DataError("it gives no batches", place=place, hint=_FORMS)
    all_of_it = "" if len(kept) == needed or room < 0 else ", all there are"
    what = type(source).__name__
    return LoaderBatches(kept, f"{len(kept):,} batches{all_of_it}, kept in memory as a {what} can be read only once")


def first_batch(batches: Batches, *, place: str) -> Any:
    """Return the first batch; raise if there is none."""
    for batch in batches.once():
        return batch
    raise DataError("it gives no batches", place=place, hint="the data set is empty, or drop_last drops all of them")


def _endless(epoch: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield batches epoch after epoch, without batches of one sample, which batch norm cannot train on."""
    largest = 0
    while True:
        given = 0
        for batch in epoch():
            size = _size(batch)
            largest = max(largest, size)
            if size == 1 < largest:
                continue
            given += 1
            yield batch
        if not given:
            raise DataError(
                "the training data gave no more batches", hint=f"they must be readable once per epoch: {_FORMS}"
            )


def _size(batch: Any) -> int:
    if has_annotations(batch):
        return len(batch[1])
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim), 0)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def is_tensors(value: Any) -> bool:
    """Return True for a tensor or array, or several in a tuple, list or dict."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return _is_tensor(value) or (isinstance(value, tuple | list) and bool(value) and all(map(_is_tensor, value)))


def _is_dataset(value: Any) -> bool:
    """Return True for indexable samples of any class; a list counts as a list of batches, like a loader."""
    by_number = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return isinstance(value, Dataset) or (by_number and not isinstance(value, Mapping | Sequence))


def _as_tensor(value: Any) -> torch.Tensor:
    """Return a tensor; float64 arrays become float32, as models rarely use float64."""
    tensor = torch.as_tensor(value)
    return tensor.float() if isinstance(value, np.ndarray) and tensor.dtype == torch.float64 else tensor

"""Data in whatever form a user has them, as batches."""

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

_FORMS = "return a DataLoader, a Dataset, a tensor, a tuple or a dict of tensors"


class Batches(Protocol):
    """Batches, as often as they are asked for."""

    def stream(self, seed: int) -> Iterator[Any]:
        """Epoch after epoch without end, in an order that the seed decides."""

    def once(self) -> Iterator[Any]:
        """All of them, once."""

    @property
    def per_epoch(self) -> int | None:
        """How many there are, None if nobody knows."""

    def describe(self) -> str: ...


@dataclass(frozen=True)
class TensorBatches:
    """Tensors in memory, cut along their first dimension; ``shape`` turns a cut into the batch the model wants."""

    tensors: Any
    batch_size: int
    shape: Callable[[Any], Any] | None = None

    @property
    def samples(self) -> int:
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
"""Batches that a test reads of a loader without a length: it may have no end."""
_KEPT_BYTES = 1 << 30  # what is kept at most of data that can be read only once


@dataclass(frozen=True)
class LoaderBatches:
    """A user's loader: its batches as they come."""

    loader: Any
    note: str = ""

    @property
    def per_epoch(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:  # an iterable data set has no length
            return None

    def stream(self, seed: int) -> Iterator[Any]:
        # A loader's own generator would carry on from the trial before: each trial must see its own order, always.
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


def as_batches(
    value: Any, *, place: str, batch_size: int | None = None, shuffle: bool = True, needed: int | None = None
) -> Batches:
    """Whatever a user's function returned, as batches; errors name the function.

    ``needed``: how many batches training will read, where that is known; what can be read only once is kept so far.
    """
    if is_tensors(value):
        tensors = tree_map(_as_tensor, tuple(value) if isinstance(value, list) else value)
        lengths = {len(tensor) for tensor in tree_leaves(tensors)}
        if len(lengths) > 1:
            raise DataError(
                f"its tensors have different lengths: {sorted(lengths)}", place=place, hint="one row per sample in each"
            )
        if lengths == {0}:
            raise DataError("its tensors are empty", place=place, hint="there must be samples to train on")
        return TensorBatches(tensors, batch_size or DEFAULT_BATCH_SIZE)
    if _is_dataset(value):
        streams = isinstance(value, IterableDataset)
        if not streams and len(value) == 0:
            raise DataError("the data set is empty", place=place, hint="is the path right, or a filter too strict?")
        order = torch.Generator() if shuffle and not streams else None
        size = batch_size or DEFAULT_BATCH_SIZE
        return LoaderBatches(DataLoader(value, batch_size=size, shuffle=order is not None, generator=order))
    if isinstance(value, DataLoader) or (isinstance(value, Iterable) and not isinstance(value, str | bytes)):
        if batch_size is not None:
            raise OptionError(
                "--batch-size has no effect: the data come in batches already",
                place=place,
                hint="set the batch size in the loader, or return the data set itself",
            )
        return _kept(value, needed, place) if _one_shot(value) else LoaderBatches(_with_new_workers(value))
    raise DataError(f"it returned {type(value).__name__}, which is not data", place=place, hint=_FORMS)


def _with_new_workers(loader: Any) -> Any:
    """A loader that keeps its workers as one that has new ones for each pass over the data.

    Those that are kept serve one pass at a time: a score taken in the middle of an epoch would end it. They belong to
    one process, and draw other numbers in their second pass than new ones do.
    """
    if not isinstance(loader, DataLoader) or not loader.persistent_workers:
        return loader
    own = copy.copy(loader)
    own._iterator = None
    object.__setattr__(own, "persistent_workers", False)  # which a loader's own __setattr__ refuses
    return own


def _one_shot(value: Any) -> bool:
    """Whether a second reading goes on where the first one stopped: the iterator is the thing itself."""
    if isinstance(value, DataLoader):
        return isinstance(value.dataset, IterableDataset) and _one_shot(value.dataset)
    return isinstance(value, Iterator) or (not hasattr(value, "__len__") and iter(value) is iter(value))


def _kept(source: Any, needed: int | None, place: str) -> LoaderBatches:
    """What can be read only once, in memory: as many batches as training needs, or as fit."""
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
    """The first batch of training, or an error if there is none."""
    for batch in batches.once():
        return batch
    raise DataError("it gives no batches", place=place, hint="the data set is empty, or drop_last drops all of it")


def _endless(epoch: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Epoch after epoch, without a trailing batch of one: batch norm cannot train on it."""
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
                "the training data gave no more batches", hint=f"they must be readable again for each epoch: {_FORMS}"
            )


def _size(batch: Any) -> int:
    if has_annotations(batch):
        return len(batch[1])
    return next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim), 0)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def is_tensors(value: Any) -> bool:
    """One tensor or array, or several in a tuple, list or dict."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return _is_tensor(value) or (isinstance(value, tuple | list) and bool(value) and all(map(_is_tensor, value)))


def _is_dataset(value: Any) -> bool:
    """Samples by number, whatever the class; a list is taken for a list of batches, that is, for a loader."""
    by_number = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return isinstance(value, Dataset) or (by_number and not isinstance(value, Mapping | Sequence))


def _as_tensor(value: Any) -> torch.Tensor:
    """Arrays are float64 by habit, models hardly ever."""
    tensor = torch.as_tensor(value)
    return tensor.float() if isinstance(value, np.ndarray) and tensor.dtype == torch.float64 else tensor

"""Batches of a DataLoader that are the same for any number of its workers, which load ahead while a step trains.

A DataLoader without workers draws from the random numbers of the training, one with workers from others per worker.
Here each batch is loaded with random numbers of its own, and one set of workers loads all epochs of a training:
nothing waits for new workers where an epoch ends.

A thread in place of workers would not do: torch's, Python's and NumPy's generators belong to the whole process, so that
its transforms and the model's dropout would draw from one sequence in an order that changes from run to run.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from dst_analyze.errors import DataError
from dst_analyze.model.user_errors import user_code


class _Drawn(NamedTuple):
    """The numbers of a batch's samples, and the seed that it is loaded with."""

    seed: int
    samples: Any


def can_be_seeded(loader: Any) -> bool:
    """True for a plain DataLoader over samples with numbers, in batches that it can count."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return False
    try:
        return len(loader) > 0
    except TypeError:  # a sampler without a length
        return False


def drawn_batches(loader: Any, seed: int) -> Iterator[Any]:
    """Yield the batches of one epoch after the other, without end, in an order that the seed determines."""
    return _loaded(loader, _Epochs(loader, seed))


def drawn_once(loader: Any) -> Iterator[Any]:
    """Yield all batches once, in the loader's own order."""
    return _loaded(loader, _Epochs(loader, 0, epochs=1))


@dataclass(frozen=True)
class _Epochs:
    """The batches of one epoch after the other; an epoch without any ends it."""

    loader: Any
    seed: int
    epochs: int | None = None

    def __iter__(self) -> Iterator[_Drawn]:
        for epoch in islice(count(), self.epochs):
            seed = int(np.random.SeedSequence((self.seed, epoch)).generate_state(1)[0])
            drawn = _order(self.loader, seed)
            if not drawn:
                return
            seeds = torch.randint(2**31, (len(drawn),), generator=torch.Generator().manual_seed(seed)).tolist()
            yield from map(_Drawn, seeds, drawn)


def _order(loader: Any, seed: int) -> list[Any]:
    """Return the numbers of the samples of each batch of an epoch."""
    # Generators of the user's would go on from the previous trial, and a batch sampler may hold one, too.
    for owner in (loader, getattr(loader, "sampler", None), loader.batch_sampler):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
    with _random_numbers(seed):
        return list(loader.batch_sampler)


@contextmanager
def _random_numbers(seed: int) -> Iterator[None]:
    """Draw from a seed in the block, and leave the random numbers of this process as they were."""
    before = torch.get_rng_state(), random.getstate(), mtrand.get_bit_generator()
    torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed GPUs, too
    random.seed(seed)
    mtrand.set_bit_generator(np.random.MT19937(seed))  # a tenth of the time of setting a state
    try:
        yield
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        mtrand.set_bit_generator(before[2])


class _Failure(NamedTuple):
    """What a worker could not load: its exception would come without the lines of the user's code."""

    error: DataError


class _Samples(Dataset[Any]):
    """A data set that loads and collates whole batches, each with random numbers of its own."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.collate = dataset, collate

    def __getattr__(self, name: str) -> Any:
        """Return what a user's worker_init_fn looks for in the data set of its worker."""
        if name.startswith("__"):  # while this is unpickled, there is no data set yet
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __getitems__(self, drawn: _Drawn) -> Any:
        with _random_numbers(drawn.seed):
            if get_worker_info() is None:
                return self._load(drawn.samples)
            try:
                with user_code("loading a batch", DataError):
                    return self._load(drawn.samples)
            except DataError as error:
                return _Failure(error)

    def _load(self, samples: Any) -> Any:
        several = getattr(self.dataset, "__getitems__", None)
        return self.collate(several(samples) if several else [self.dataset[number] for number in samples])


def _as_it_is(batch: Any) -> Any:
    return batch


def _loaded(loader: Any, drawn: _Epochs) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)  # said of the user's own loader
        own: DataLoader[Any] = DataLoader(
            _Samples(loader.dataset, loader.collate_fn),
            batch_sampler=drawn,  # type: ignore[arg-type]
            collate_fn=_as_it_is,
            num_workers=loader.num_workers,
            prefetch_factor=loader.prefetch_factor,
            multiprocessing_context=loader.multiprocessing_context,
            worker_init_fn=loader.worker_init_fn,
            timeout=loader.timeout,
            pin_memory=loader.pin_memory,
            generator=torch.Generator(),  # else the seeds of workers would be drawn from the training's numbers
        )
    for batch in own:
        if isinstance(batch, _Failure):
            raise batch.error
        yield batch

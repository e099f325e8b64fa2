"""Tensors on their way to another process.

Torch sends a tensor as a descriptor of its memory, and closes it as soon as nobody holds the tensor. Some are made only
while their owner is pickled (the state of a `torch.Generator`, what a `__getstate__` returns) and are gone before they
have been sent: what arrives then is whatever has got the descriptor's number since.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing.reductions import reduce_storage


@contextmanager
def keep_storages_alive() -> Iterator[None]:
    """The memory of all tensors that are pickled meanwhile lives until this is over."""
    alive: list[torch.UntypedStorage] = []

    def reduce(storage: torch.UntypedStorage) -> Any:
        alive.append(storage)
        return reduce_storage(storage)

    ForkingPickler.register(torch.UntypedStorage, reduce)
    try:
        yield
    finally:
        ForkingPickler.register(torch.UntypedStorage, reduce_storage)

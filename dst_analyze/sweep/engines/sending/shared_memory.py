"""Shared memory of tensors that are sent to another process.

Torch sends a tensor as a file descriptor of its storage, and closes it when the tensor is freed. A tensor that exists
only while its owner is pickled (the state of a `torch.Generator`, the result of `__getstate__`) is freed before it is
sent; the receiver then gets whatever file has reused the descriptor.
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
    """Keep the storages of all tensors that are pickled in the block alive until its end."""
    alive: list[torch.UntypedStorage] = []

    def reduce(storage: torch.UntypedStorage) -> Any:
        alive.append(storage)
        return reduce_storage(storage)

    ForkingPickler.register(torch.UntypedStorage, reduce)
    try:
        yield
    finally:
        ForkingPickler.register(torch.UntypedStorage, reduce_storage)

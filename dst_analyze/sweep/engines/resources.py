"""How many threads a trial gets, how many trials run at once, and how much memory there is for them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dst_analyze.run.config import DEFAULT_BATCH_SIZE

SMALL_STEP = 2e8
"""Multiply-accumulates of one forward pass that one thread gets through before a second one pays."""

MOST_THREADS = 8

BYTES_PER_PARAMETER = 8 * 4
"""What a trial holds for each: weights, masked weights, gradients, momentum, and room to move."""

_CGROUP = Path("/sys/fs/cgroup")


def threads_per_trial(macs: int, batch_size: int | None) -> int:
    """Threads of one trial, by the model's size and the machine, never by how many trials run beside it.

    Torch adds in another order with another number of threads: if they depended on ``--jobs``, so would the results.
    At most half the cores, as trials are independent and threads are not: two trials on one core each beat one
    trial after the other on two.
    """
    wanted = int(macs * (batch_size or DEFAULT_BATCH_SIZE) / SMALL_STEP)
    return max(1, min(wanted, MOST_THREADS, cores() // 2, torch.get_num_threads()))


def default_jobs(threads: int, job_count: int, params: int) -> int:
    """As many job_count at once as there are cores and memory for.

    Measured with `benchmarks/sweep_cost.py`, the demo's 4 trials of 600 steps on 2 cores: two at once, the default
    there, take 0.55 of the time of one at a time on a quiet machine; on one kept busy by others (load 7) 95 s to 94 s.
    """
    fits = free_memory() // 2 // max(1, BYTES_PER_PARAMETER * params)
    return max(1, min(cores() // threads, job_count, fits))


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its container and of its own limit."""
    return max(0, min((free for free in (_machine(), _container(), _own_limit()) if free is not None), default=1 << 62))


def _machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None  # not told on this system


def _container() -> int | None:
    try:
        return int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return None


def _own_limit() -> int | None:
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return None if most == resource.RLIM_INFINITY else most - pages * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return None


def peak_memory(run: Callable[[], object]) -> int:
    """The most bytes of tensors that were alive at one moment of a run, beyond those that were there before."""
    watch = _Watch()
    with watch:
        run()
    return watch.most


class _Watch(TorchDispatchMode):
    """Counts the storage of every new tensor until it is freed; the allocator of CPUs keeps no such books."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.now = self.most = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._seen(leaf.untyped_storage(), given)
        return result

    def _seen(self, storage: torch.UntypedStorage, given: set[int]) -> None:
        key = id(storage)
        if key in self.live or key in given:
            return
        self.live[key] = storage.nbytes()
        self.now += self.live[key]
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


def gigabytes(count: float) -> str:
    """A count of bytes for people."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"

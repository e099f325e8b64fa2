"""Threads per trial, number of jobs at once, and free memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dst_analyze.run.config import DEFAULT_BATCH_SIZE

SMALL_STEP = 2e8
"""Multiply-accumulates of a forward pass per thread: fewer do not make another thread worthwhile."""

MOST_THREADS = 8

BYTES_PER_PARAMETER = 8 * 4
"""Memory of a trial per parameter: weights, masked weights, gradients, momentum and a reserve."""

_CGROUP = Path("/sys/fs/cgroup")


def threads_per_trial(macs: int, batch_size: int | None) -> int:
    """Return the threads of one trial, from the model's size and the machine.

    They do not depend on ``--jobs``: torch's sums differ in the last digits with the number of threads, and results
    must not depend on the number of jobs. At most half the cores, as two trials on one core each are faster than one
    after the other on two.
    """
    return _threads_of(macs, batch_size, 2)


def threads_per_warm_up(macs: int, batch_size: int | None, warm_ups: int) -> int:
    """Return the threads of a warm-up: those of a trial, but of all cores where there is only one to wait for."""
    return _threads_of(macs, batch_size, min(warm_ups, 2))


def _threads_of(macs: int, batch_size: int | None, trainings: int) -> int:
    wanted = int(macs * (batch_size or DEFAULT_BATCH_SIZE) / SMALL_STEP)
    return max(1, min(wanted, MOST_THREADS, cores() // trainings, torch.get_num_threads()))


def default_jobs(threads: int, job_count: int, params: int) -> int:
    """Return how many of the jobs run at once: as many as there are cores and memory for."""
    fits = free_memory() // 2 // max(1, BYTES_PER_PARAMETER * params)
    return max(1, min(cores() // threads, job_count, fits))


def cores() -> int:
    """Return how many cores this process may use."""
    process = psutil.Process()
    affinity = process.cpu_affinity() if hasattr(process, "cpu_affinity") else None  # not on macOS
    return len(affinity) if affinity else psutil.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Temporarily set torch's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory() -> int:
    """Return the bytes that this process may still allocate, within the machine, its container and its own limit."""
    limits = (psutil.virtual_memory().available, _container(), _own_limit())
    return max(0, min(free for free in limits if free is not None))


def _container() -> int | None:
    """Return what the container's limit leaves; None without one. psutil does not read control groups."""
    try:
        return int((_CGROUP / "memory.max").read_text()) - int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # none, or "max"
        return None


def _own_limit() -> int | None:
    """Return what this process's limit of address space (``ulimit -v``) leaves; None without one."""
    process = psutil.Process()
    if not hasattr(process, "rlimit"):  # Linux and FreeBSD have it
        return None
    most = process.rlimit(psutil.RLIMIT_AS)[0]
    return None if most == psutil.RLIM_INFINITY else int(most - process.memory_info().vms)


def peak_memory(run: Callable[[], object]) -> int:
    """Return the peak bytes of tensors that a function allocates."""
    watch = _PeakMemoryMode()
    with watch:
        run()
    return watch.most


class _PeakMemoryMode(TorchDispatchMode):
    """A counter of the storage of new tensors until they are freed; torch's CPU allocator has no statistics."""

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
                self._add(leaf.untyped_storage(), given)
        return result

    def _add(self, storage: torch.UntypedStorage, given: set[int]) -> None:
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
    """Return a number of bytes in readable units."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"

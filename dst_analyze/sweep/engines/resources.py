"""How many threads a trial gets, and how many trials run at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dst_analyze.run.record import DEFAULT_BATCH_SIZE
from dst_analyze.sweep.engines.memory import BYTES_PER_PARAMETER, free_memory

SMALL_STEP = 2e8
"""Multiply-accumulates of one forward pass that one thread gets through before a second one pays."""

MOST_THREADS = 8


def threads_per_trial(macs: int, batch_size: int | None) -> int:
    """Threads of one trial, by the model's size and the machine, never by how many trials run beside it.

    Torch adds in another order with another number of threads: if they depended on ``--jobs``, so would the results.
    At most half the cores, as trials are independent and threads are not: two trials on one core each beat one
    trial after the other on two.
    """
    wanted = int(macs * (batch_size or DEFAULT_BATCH_SIZE) / SMALL_STEP)
    return max(1, min(wanted, MOST_THREADS, cores() // 2, torch.get_num_threads()))


def default_jobs(threads: int, errands: int, params: int) -> int:
    """As many errands at once as there are cores and memory for.

    Measured with `benchmarks/sweep_cost.py`, the demo's 4 trials of 600 steps on 2 cores: two at once, the default
    there, take 0.55 of the time of one at a time on a quiet machine; on one kept busy by others (load 7) 95 s to 94 s.
    """
    fits = free_memory() // 2 // max(1, BYTES_PER_PARAMETER * params)
    return max(1, min(cores() // threads, errands, fits))


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

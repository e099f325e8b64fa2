"""The GPUs of this machine: their free memory, how many trials fit, and which GPU a worker takes."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Collection

import torch

from dst_analyze.errors import OptionError
from dst_analyze.sweep.engines.resources import gigabytes

CONTEXT = 600 * 10**6
"""Bytes of a GPU that each process takes beside its tensors: torch's context and libraries."""


def free_gpu_memory(index: int | None = None) -> int:
    """Return the free bytes of a GPU, by default the current one, after giving back what torch keeps for later."""
    torch.cuda.empty_cache()
    free: int = torch.cuda.mem_get_info(index)[0]
    return free


def peak_gpu_memory(run: Callable[[], object]) -> int:
    """Return the peak bytes of tensors that a function allocates on the current GPU."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before


def forget_locals(error: BaseException | None) -> None:
    """Free what the frames of a caught error hold: tensors of a step that ran out of memory."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)


def trials_per_gpu(needed: int) -> list[int]:
    """Return how many trials fit on each GPU, each in a process of its own, given the bytes of one."""
    return [free_gpu_memory(index) // (needed + CONTEXT) for index in range(torch.cuda.device_count())]


def default_gpu_jobs(needed: int) -> int:
    """Return one job for each GPU that has room for a trial; at least one, since the preflight has run."""
    return max(1, sum(fit > 0 for fit in trials_per_gpu(needed)))


def refuse_jobs(jobs: int, needed: int) -> None:
    """Raise if the GPUs have too little memory for this many trials at once."""
    fitting = sum(trials_per_gpu(needed))
    if jobs > max(1, fitting):
        count = torch.cuda.device_count()
        free = sum(free_gpu_memory(index) for index in range(count))
        raise OptionError(
            f"{jobs} trials at once do not fit: each takes {gigabytes(needed + CONTEXT)} of a GPU, and "
            f"{gigabytes(free)} are free on {count if count > 1 else 'the'} GPU{'s' if count > 1 else ''}",
            place=f"--jobs {jobs}",
            hint=f"--jobs {max(1, fitting)} fits; a smaller --batch-size takes less",
        )


def next_gpu(fitting: Collection[int], taken: Collection[int]) -> int:
    """Return the GPU with the most room left, given how many trials fit on each and the GPUs of running ones."""
    running = list(taken)
    left = [fit - running.count(index) for index, fit in enumerate(fitting)]
    return left.index(max(left))


def share_of_gpu(jobs: int, gpus: int, needed: int) -> float:
    """Return the share of a GPU for each of several jobs of a cluster, rounded down to what Ray can divide.

    The GPUs of other nodes are taken to have as much memory as the current one.
    """
    together = -(-jobs // gpus)
    if together == 1:
        return 1.0
    fit = free_gpu_memory() // (needed + CONTEXT)
    if together > max(1, fit):
        raise OptionError(
            f"{jobs} trials at once are {together} on each of {gpus} GPUs, and each takes "
            f"{gigabytes(needed + CONTEXT)} of the {gigabytes(free_gpu_memory())} that are free",
            place=f"--jobs {jobs}",
            hint=f"--jobs {max(1, fit) * gpus} fits; a smaller --batch-size takes less",
        )
    return math.floor(1e4 / together) / 1e4

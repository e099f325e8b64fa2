"""The operator's loops in C (kernels.c), built by the machine's compiler.

P and dW equal those of the eager loops to the bit, dt to rounding. A group that the C loops do not support (on a GPU,
in half precision, not contiguous) goes through the eager loops. torch.compile is no alternative: a call costs more than
the work on a small layer, and every worker process compiles again, while this is built once per machine.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import logging
import math
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from dst_analyze.masking.kernels.axes import Axes, axes_of
from dst_analyze.masking.masked_weight import EAGER, Kernels, Masking, Tensors

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
DTYPES = {torch.float32: ("-DREAL=float", "-DINT=int32_t"), torch.float64: ("-DREAL=double", "-DINT=int64_t")}
REPAID_AFTER = 100_000_000  # weights x steps: the eager loops lose 10 ns on each, the build takes about 1 s
_THREADED = 1 << 18  # a weight of at least this size is split among threads


def repays(weights: int, steps: int) -> bool:
    """True if the compiled loops save more time over a training than building them takes.

    The cache is ignored on purpose: the same command must give the same bits every time.
    """
    return weights * steps >= REPAID_AFTER


class _Build:
    """The state of this process's loops: not built, being built, or done (None if that failed)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = False
        self.kernels: Kernels | None = None
        self.thread: threading.Thread | None = None


_build = _Build()


def _reset_after_fork() -> None:
    """Forget an unfinished build, since its thread and lock do not survive a fork."""
    global _build
    if not _build.done:
        _build = _Build()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def compiled_kernels() -> Kernels | None:
    """Return the compiled loops, built if necessary; None if this machine cannot build them."""
    build = _build
    if not build.done:
        with build.lock:
            if not build.done:
                build.kernels, build.done = _load(), True
    return build.kernels


def kernels_when_ready() -> Kernels | None:
    """Return the compiled loops if they are ready; else start to build them, and return None."""
    build = _build
    if not build.done and build.thread is None:
        compiler = _compiler()
        if compiler is None or all(_target(compiler, flags).exists() for flags in DTYPES.values()):
            return compiled_kernels()
        build.thread = threading.Thread(target=compiled_kernels, name="dst-masking-build", daemon=True)
        build.thread.start()
    return build.kernels


def _load() -> Kernels | None:
    compiler = _compiler()
    if compiler is None:
        return None
    try:
        return Compiled({dtype: ctypes.CDLL(str(_compile(compiler, flags))) for dtype, flags in DTYPES.items()})
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        log.warning("masking loops cannot be compiled, using the eager loops: %s", error)
        return None


def _compiler() -> str | None:
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _compile(compiler: str, dtype: tuple[str, ...]) -> Path:
    """Return the shared library, built once per source, compiler and processor, and cached."""
    target = _target(compiler, dtype)
    if not target.exists():
        descriptor, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
        os.close(descriptor)
        command = (compiler, *FLAGS, *dtype, "-o", name, str(SOURCE))
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        os.replace(name, target)  # another process may have built the same; either file will do
    return target


def _target(compiler: str, dtype: tuple[str, ...]) -> Path:
    described = "\n".join((SOURCE.read_text(), compiler, *FLAGS, *dtype, _processor()))
    return _cache() / f"loops-{hashlib.sha256(described.encode()).hexdigest()[:16]}.so"


def _cache() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dst-analyze"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.access(root, os.W_OK):
            return root
    except OSError:
        pass
    return _temporary_cache()


@functools.cache
def _temporary_cache() -> Path:
    """Return a temporary folder of this process, for machines without a writable cache."""
    return Path(tempfile.mkdtemp(prefix="dst-analyze-"))


def _processor() -> str:
    """Return what -march=native depends on, since unlike machines may share a home directory."""
    try:
        flags = [
            line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith(("flags", "Features"))
        ]
    except OSError:
        flags = []
    return "|".join((platform.machine(), platform.processor(), *flags[:1]))


Loop = Callable[..., int]
CODES = {"long-tail": 1, "clipped": 0}


@dataclass(frozen=True)
class _Group:
    """The sizes of a group of weights as the loops take them."""

    levels: tuple[Axes, ...]
    starts: tuple[int, ...]  # the index of each weight's first threshold
    places: ctypes.Array[ctypes.c_int64]  # starts and levels, for C
    pointers: type[ctypes.Array[ctypes.c_void_p]]
    largest: int

    def addresses(self, tensors: Tensors) -> ctypes.Array[ctypes.c_void_p]:
        """Return the tensors' addresses, for C."""
        return self.pointers(*[tensor.data_ptr() for tensor in tensors])


class Compiled:
    """The operator in C; groups of weights that the loops do not support go through the eager loops."""

    def __init__(self, libraries: dict[torch.dtype, ctypes.CDLL]) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_int64

        def typed(name: str, arguments: list[type], result: type | None = None) -> dict[torch.dtype, Loop]:
            loops = {dtype: getattr(library, name) for dtype, library in libraries.items()}
            for loop in loops.values():
                loop.argtypes, loop.restype = arguments, result
            return loops

        self._forward = typed("forward", [pointer] * 3 + [size] * 4, size)
        self._count = typed("count", [pointer] * 2 + [size] * 4, size)
        self._backward = typed("backward", [pointer] * 5 + [size] * 4 + [ctypes.c_int])
        self._forward_all = typed("forward_all", [size] + [pointer] * 5)
        self._backward_all = typed("backward_all", [size] + [pointer] * 6 + [ctypes.c_int])

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        group = _supported_group(masking, thresholds, weights)
        if group is None:
            return EAGER.forward(masking, thresholds, weights, counts)
        masked, t = [torch.empty_like(weight) for weight in weights], thresholds.data_ptr()
        kept: Iterable[int]
        if _is_single_threaded(group):
            kept = (ctypes.c_int64 * len(weights))()
            loop = self._forward_all[thresholds.dtype]
            loop(len(weights), group.addresses(weights), t, group.addresses(masked), group.places, kept)
        else:
            loop, width = self._forward[thresholds.dtype], thresholds.element_size()
            kept = [
                sum(_run(loop, levels, [weight.data_ptr(), t + width * start, result.data_ptr()], "wtw", width))
                for weight, result, levels, start in zip(weights, masked, group.levels, group.starts, strict=True)
            ]
        if counts is not None:
            counts.extend(kept)
        return masked

    def backward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        group = _supported_group(masking, thresholds, weights)
        if group is None or any(grad is not None and grad.dtype != thresholds.dtype for grad in grads):
            return EAGER.backward(masking, thresholds, weights, grads)
        given = [
            grad.contiguous() if grad is not None else torch.zeros_like(weight)
            for grad, weight in zip(grads, weights, strict=True)
        ]
        results, grad_thresholds = [torch.empty_like(weight) for weight in weights], torch.empty_like(thresholds)
        t, dt, code = thresholds.data_ptr(), grad_thresholds.data_ptr(), CODES[masking.estimator]
        if _is_single_threaded(group):
            addresses = [group.addresses(tensors) for tensors in (given, weights, results)]
            loop = self._backward_all[thresholds.dtype]
            loop(len(weights), addresses[0], addresses[1], t, addresses[2], dt, group.places, code)
        else:
            loop, width = self._backward[thresholds.dtype], thresholds.element_size()
            each = zip(given, weights, results, group.levels, group.starts, strict=True)
            for grad, weight, result, levels, start in each:
                own = [t + width * start, result.data_ptr(), dt + width * start]
                _run(loop, levels, [grad.data_ptr(), weight.data_ptr(), *own], "wwtwt", width, code)
        return [None if grad is None else r for grad, r in zip(grads, results, strict=True)], grad_thresholds

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> torch.Tensor:
        group = _supported_group(masking, thresholds, weights)
        if group is None:
            return EAGER.count(masking, thresholds, weights)
        loop, width, t = self._count[thresholds.dtype], thresholds.element_size(), thresholds.data_ptr()
        counts = [
            sum(_run(loop, levels, [weight.data_ptr(), t + width * start], "wt", width))
            for weight, levels, start in zip(weights, group.levels, group.starts, strict=True)
        ]
        return torch.tensor(counts)


def _supported_group(masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> _Group | None:
    """Return the group as the loops take it; None if they do not support it."""
    dtype = thresholds.dtype
    if not thresholds.is_cpu or dtype not in DTYPES or not thresholds.is_contiguous():
        return None
    for weight in weights:
        if weight.dtype != dtype or not weight.is_contiguous():
            return None
    return _group(masking)


@functools.lru_cache(maxsize=4096)
def _group(masking: Masking) -> _Group | None:
    found = [axes_of(view, shape) for view, shape in zip(masking.views, masking.shapes, strict=True)]
    if None in found:
        return None
    all_levels = tuple(one for one in found if one is not None)
    starts = tuple(itertools.accumulate(masking.sizes[:-1], initial=0))
    numbers = [number for start, one in zip(starts, all_levels, strict=True) for number in (start, *one)]
    places = (ctypes.c_int64 * len(numbers))(*numbers)
    return _Group(all_levels, starts, places, ctypes.c_void_p * len(starts), max(map(math.prod, all_levels)))


def _is_single_threaded(group: _Group) -> bool:
    """True if one thread processes all weights, in one call."""
    return group.largest < _THREADED or torch.get_num_threads() < 2


def _run(loop: Loop, fold: Axes, pointers: list[int], kinds: str, width: int, *extra: int) -> list[int]:
    """Run a loop over a weight; rows of a large one are split among threads (without the GIL)."""
    groups, outer, rows, columns = fold
    threads = min(torch.get_num_threads(), rows)
    if threads < 2 or groups * outer != 1 or rows * columns < _THREADED:
        return [loop(*pointers, *fold, *extra)]
    # Bytes from one row to the next: a whole row of a weight, one number of a threshold.
    steps = [width * columns if kind == "w" else width for kind in kinds]
    bounds = [rows * i // threads for i in range(threads + 1)]

    def part(i: int) -> int:
        begin, end = bounds[i], bounds[i + 1]
        moved = (pointer + begin * step for pointer, step in zip(pointers, steps, strict=True))
        return loop(*moved, 1, 1, end - begin, columns, *extra)

    return list(_pool(os.getpid(), threads).map(part, range(threads)))


@functools.lru_cache(maxsize=1)
def _pool(pid: int, threads: int) -> ThreadPoolExecutor:
    """Return the threads of a process; the id is a key, since threads do not survive a fork."""
    return ThreadPoolExecutor(threads, thread_name_prefix="dst-masking")

"""The choice of the loops that compute masks: by what was asked for, and by device."""

from __future__ import annotations

import functools
import logging
from typing import Literal

import torch

from dst_analyze.masking.kernels.c_backend import compiled_kernels, kernels_when_ready
from dst_analyze.masking.kernels.grouped_backend import GROUPED
from dst_analyze.masking.masked_weight import EAGER, Kernels, Masking

log = logging.getLogger(__name__)

Backend = Literal["eager", "eager-on-cpu", "compiled", "when-ready"]


def kernels_on(device: torch.device, backend: Backend) -> Kernels:
    """Return the loops for weights on a device; ``backend`` says which ones on a CPU."""
    # torch.compile traces the eager loops and fuses them.
    if backend == "eager" or torch.compiler.is_compiling():
        return EAGER
    if device.type == "cuda":
        return gpu_kernels(device)
    if device.type != "cpu" or backend == "eager-on-cpu":
        return EAGER
    return (compiled_kernels() if backend == "compiled" else kernels_when_ready()) or EAGER


@functools.cache
def gpu_kernels(device: torch.device) -> Kernels:
    """Return the Triton kernels if they can be imported and work on this GPU, else the grouped operations."""
    try:
        from dst_analyze.masking.kernels.triton_backend import TRITON
    except ImportError:
        return GROUPED
    try:
        if agree_on(device, TRITON):
            return TRITON
        log.warning("the Triton kernels compute wrong masks on %s, using torch's operations", device)
    except Exception as error:  # no C compiler for Triton's launcher, or a GPU that it does not support
        log.warning("the Triton kernels do not run on %s, using torch's operations: %s", device, error)
    return GROUPED


def agree_on(device: torch.device, kernels: Kernels) -> bool:
    """True if these loops mask a few weights on a device as the eager loops do."""
    masking = Masking("long-tail", ((2, 3),), ((2, 1),), (2,))
    weights = [torch.tensor([[0.5, -1.0, 2.0], [0.0, -0.25, 3.0]], device=device)]
    thresholds, grads = torch.tensor([0.75, 0.1], device=device), [torch.ones(2, 3, device=device)]
    found, expected = (
        (*loops.forward(masking, thresholds, weights), *loops.backward(masking, thresholds, weights, grads)[0])
        for loops in (kernels, EAGER)
    )
    pairs = zip(found, expected, strict=True)
    return all(one is not None and two is not None and torch.equal(one, two) for one, two in pairs)

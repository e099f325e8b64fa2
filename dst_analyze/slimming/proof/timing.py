"""Timing of several models, in rounds of one pass each, so that noise of the machine affects all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from dst_analyze.sweep.training.device import Device

_WARM_UP = 2


def milliseconds(
    models: Sequence[nn.Module], call: Callable[[nn.Module], object], device: Device, *, rounds: int = 15
) -> list[float]:
    """Return the median time of a forward pass of each model, in eval mode."""
    times: list[list[float]] = [[] for _ in models]
    for model in models:
        model.eval()
    with torch.no_grad():
        for at in range(rounds + _WARM_UP):
            for model, taken in zip(models, times, strict=True):
                begun = time.perf_counter()
                call(model)
                device.wait()
                if at >= _WARM_UP:
                    taken.append(time.perf_counter() - begun)
    return [1000 * float(np.median(taken)) for taken in times]

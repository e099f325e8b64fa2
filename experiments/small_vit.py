"""The example's vision transformer for MNIST, small enough for runs of full length on one core.

For experiments/short_sweep.py. Sixteen patches of 7x7; trained with Adam.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dst_analyze.examples import small_vit


def vit() -> nn.Module:
    return small_vit.build_model(48, 4, 3, channels=1, size=28, patch=7)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)

"""A GRU that reads the rows of MNIST's images from top to bottom, for benchmarks/short_sweep.py; trained with Adam."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class Gru(nn.Module):
    """Three layers of as many hidden units; the last row's are classified."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(28, hidden, num_layers=3, batch_first=True)
        self.out = nn.Linear(hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.gru(images.squeeze(1))[0][:, -1])
        return scores


def gru() -> nn.Module:
    return Gru(64)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)

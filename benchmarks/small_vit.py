"""A vision transformer for MNIST, small enough for runs of full length on one core: for benchmarks/short_sweep.py.

Trained with Adam, as transformers are.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class Vit(nn.Module):
    """Sixteen patches of 7x7 as tokens; norms come before attention and before the two linear layers of each block."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True, activation="gelu"
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        scores: torch.Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return scores


def vit() -> nn.Module:
    return Vit(48, 4, 3)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)

"""A small MLP-Mixer for 32x32 images: linear layers across patches, then across channels, four times.

Not in the paper; trained with AdamW, as transformers are.

    dst-analyze example:mlp-mixer --data cifar10 --epochs 30 --schedule cosine
"""

from collections.abc import Iterable

import torch
from torch import nn


def _mlp(size: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, size))


class Mixing(nn.Module):
    """A block: layers across patches, shared by channels, then across channels, shared by patches."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.across_patches = _mlp(patches, width // 2)
        self.norm2 = nn.LayerNorm(width)
        self.across_channels = _mlp(width, 2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.across_patches(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        mixed: torch.Tensor = x + self.across_channels(self.norm2(x))
        return mixed


class Mixer(nn.Module):
    """A mixer on patches of 4x4 with ``depth`` blocks, classified by the mean over patches."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(*(Mixing(64, width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        scores: torch.Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return scores


def build_model(width: int = 128, depth: int = 4) -> nn.Module:
    return Mixer(width, depth)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.001, weight_decay=0.05)

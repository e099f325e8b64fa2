"""A small vision transformer: 4x4 patches of 32x32 images, four blocks, the mean over tokens.

Not in the paper; trained with AdamW, as transformers are.

    dst-analyze example:small-vit --data cifar10 --epochs 30 --schedule cosine
"""

from collections.abc import Iterable

import torch
from torch import nn


class Vit(nn.Module):
    """A vision transformer with norms before attention and before the linear layers of each block."""

    def __init__(self, width: int, depth: int, heads: int, channels: int, size: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (size // patch) ** 2, width) * 0.02)
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


def build_model(
    width: int = 96, depth: int = 4, heads: int = 3, channels: int = 3, size: int = 32, patch: int = 4
) -> nn.Module:
    return Vit(width, depth, heads, channels, size, patch)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.001, weight_decay=0.05)

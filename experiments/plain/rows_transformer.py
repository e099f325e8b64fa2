"""A transformer encoder that reads an image of handwritten digits row by row, MNIST at 14x14, AdamW."""

from collections.abc import Iterable

import torch
from mlp_sgd import test_data, train_data
from torch import nn

__all__ = ["test_data", "train_data"]


class Rows(nn.Module):
    """Fourteen rows as tokens, three blocks, the mean over tokens."""

    def __init__(self, width: int = 64, depth: int = 3, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(14, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, 14, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images.squeeze(1)) + self.position
        scores: torch.Tensor = self.head(self.blocks(x).mean(1))
        return scores


def build_model() -> nn.Module:
    return Rows()


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)

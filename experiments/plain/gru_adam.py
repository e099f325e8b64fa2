"""A GRU that reads an image of handwritten digits row by row, MNIST at 14x14, Adam."""

from collections.abc import Iterable

import torch
from mlp_sgd import test_data, train_data
from torch import nn

__all__ = ["test_data", "train_data"]


class Rows(nn.Module):
    """Two layers; the last step's hidden units are classified."""

    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.gru = nn.GRU(14, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.gru(images.squeeze(1))[0][:, -1])
        return scores


def build_model() -> nn.Module:
    return Rows()


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=2e-3)

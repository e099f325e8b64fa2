"""LSTM-a: an image read row by row by two LSTM layers of 128 hidden units.

The paper's training on MNIST: Adam, learning rate 0.001 throughout, batches of 100, 20 epochs, alpha 1e-3.

    dst-analyze example:lstm-a --data mnist --recipe paper --epochs 20 --batch-size 100 \
        --schedule constant --alphas 1e-3
"""

from collections.abc import Iterable

import torch
from torch import nn


class Lstm(nn.Module):
    """A classifier of the last hidden state; each row of 28 pixels is a step."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.lstm(images.squeeze(1))[0][:, -1])
        return scores


def build_model(hidden: int = 128) -> nn.Module:
    return Lstm(hidden)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.001)

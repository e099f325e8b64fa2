"""A residual CNN without batch norm's help in its branches, the CIFAR-10 subset at 16x16, the tool's own SGD."""

import torch
from cnn_adamw import test_data, train_data
from torch import nn

__all__ = ["test_data", "train_data"]


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.one, self.two = nn.Conv2d(width, inner, 3, padding=1), nn.Conv2d(inner, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.two(self.one(self.norm(x).relu()).relu())
        return out


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), Block(32, 32), Block(32, 32), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 1), Block(64, 64), Block(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip

"""An MLP of five layers of falling width, MNIST at 14x14, the tool's own SGD."""

from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torchvision.datasets import MNIST

ROOT = Path(__file__).parents[3] / "shared/data"
WIDTHS = (196, 256, 192, 128, 64, 10)


def build_model() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _part(train: bool) -> tuple[torch.Tensor, torch.Tensor]:
    data = MNIST(ROOT, train=train)
    return nn.functional.avg_pool2d(data.data[:, None].float() / 255, 2), data.targets


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    return _part(True)


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    return _part(False)

"""A plain CNN of nine layers with batch norm, images of 16x16 in ten classes (the CIFAR-10 subset), AdamW."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import nn

FILE = Path(__file__).parents[3] / "shared/data/cifar10-20k.npz"
WIDTHS = (24, 24, 48, 48, 96, 96, 96)


def build_model() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for at, width in enumerate(WIDTHS):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        if at % 2:
            layers.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 4, 128), nn.ReLU(), nn.Linear(128, 10))


def _part(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(FILE) as file:
        images, labels = file[f"x_{name}"], file[f"y_{name}"]
    return nn.functional.avg_pool2d(torch.tensor(images).float() / 255, 2), torch.tensor(labels)


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    return _part("train")


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    return _part("test")


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)

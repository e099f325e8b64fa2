"""A CNN with batch norm for the CIFAR-10 subset at 16x16 with one stage that is too wide."""

from data import cifar
from torch import Tensor, nn


def layer(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def build_model(width: int = 128) -> nn.Module:
    return nn.Sequential(
        *layer(3, 24), nn.MaxPool2d(2), *layer(24, 32), nn.MaxPool2d(2), *layer(32, width), *layer(width, 40),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(40, 10),
    )  # fmt: skip


def train_data() -> tuple[Tensor, Tensor]:
    return cifar()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return cifar()[2:]

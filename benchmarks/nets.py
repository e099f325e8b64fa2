"""The nets that benchmarks measure on: small ones of different kinds, each named as ``nets.py:lenet_5``.

MNIST for `lenet_300_100`, `lenet_5` and `lstm`; the CIFAR-10 subset for `vgg`, `resnet` and `vit`.
"""

from __future__ import annotations

import torch
from torch import nn


def lenet_300_100() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def lenet_5() -> nn.Module:
    """LeNet-5-Caffe."""
    features = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


class Lstm(nn.Module):
    """An image read row by row: the paper's LSTM-a."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 128, num_layers=2, batch_first=True)
        self.out = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.lstm(images.squeeze(1))[0][:, -1])
        return scores


def lstm() -> nn.Module:
    return Lstm()


def vgg(width: float = 0.25) -> nn.Module:
    """VGG-16 for 32x32 images with its channels times ``width``: 13 convolutions, two linear layers."""
    layers: list[nn.Module] = []
    before = 3
    for block, (channels, depth) in enumerate(zip((64, 128, 256, 512, 512), (2, 2, 3, 3, 3), strict=True)):
        channels = int(channels * width)
        for _ in range(depth):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2) if block < 4 else nn.AdaptiveAvgPool2d(1))
    hidden = int(512 * width)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, hidden), nn.ReLU(), nn.Linear(hidden, 10))


class Block(nn.Module):
    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if before != channels or stride > 1:
            self.shortcut = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


def resnet(width: int = 16, depth: int = 2, stride: int = 1) -> nn.Module:
    """ResNet for 32x32 images, three stages of ``depth`` blocks: ResNet-14 unless told otherwise, ResNet-20 at 3."""
    stem = [nn.Conv2d(3, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks: list[nn.Module] = []
    before = width
    for stage in range(3):
        channels = width * 2**stage
        for block in range(depth):
            blocks.append(Block(before, channels, 2 if stage and not block else 1))
            before = channels
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def small_resnet() -> nn.Module:
    """ResNet-14 that starts at 16x16: a quarter of the MACs."""
    return resnet(stride=2)


class Vit(nn.Module):
    """Patches of 4x4, four pre-norm blocks of width 96, mean over tokens."""

    def __init__(self, width: int = 96, depth: int = 4, heads: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 64, width) * 0.02)
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
    return Vit()

"""WideResNet-16-8 for 32x32 images: six residual blocks, eight times as wide as a ResNet's.

The paper's training on CIFAR-10: SGD with momentum, learning rate 0.1 times 0.1 at epochs 80 and 120 of 160, batches of
64, alpha 5e-6.

    dst-analyze example:wide-resnet-16-8 --data cifar10 --recipe paper --alphas 1e-6,5e-6,1e-5
"""

from collections.abc import Iterable

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions, each after norm and activation; a widening shortcut starts after the first norm."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(before)
        self.conv1 = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(before, channels, 1, stride, bias=False) if before != channels else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active = self.bn1(x).relu()
        y: torch.Tensor = self.conv2(self.bn2(self.conv1(active)).relu())
        return y + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """Three stages of (depth - 4) / 6 blocks with 16, 32 and 64 channels times ``width``."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        before = 16
        for stage in range(3):
            channels = 16 * width * 2**stage
            for block in range((depth - 4) // 6):
                blocks.append(Block(before, channels, 2 if stage and not block else 1))
                before = channels
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(before)
        self.out = nn.Linear(before, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.blocks(self.conv(images))).relu()
        scores: torch.Tensor = self.out(x.mean((2, 3)))
        return scores


def build_model(depth: int = 16, width: int = 8) -> nn.Module:
    return WideResNet(depth, width)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

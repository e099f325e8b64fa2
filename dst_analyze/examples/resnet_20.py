"""ResNet-20 for 32x32 images: nine residual blocks in three stages.

Not in the paper; trained as its CIFAR-10 nets are, SGD with momentum and learning rate 0.1 times 0.1 at half and at
three quarters, batches of 64.

    dst-analyze example:resnet-20 --data cifar10 --recipe paper --alphas 1e-6,5e-6,1e-5
"""

from collections.abc import Iterable

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions and a shortcut, which has a convolution if the shape changes."""

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
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        activated: torch.Tensor = (y + self.shortcut(x)).relu()
        return activated


def build_model(width: int = 16, blocks: int = 3, stride: int = 1) -> nn.Module:
    """Return three stages of ``blocks`` blocks, 6 x blocks + 2 layers; ``stride`` 2 quarters the MACs."""
    stem = [nn.Conv2d(3, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    body: list[nn.Module] = []
    before = width
    for stage in range(3):
        channels = width * 2**stage
        for block in range(blocks):
            body.append(Block(before, channels, 2 if stage and not block else 1))
            before = channels
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

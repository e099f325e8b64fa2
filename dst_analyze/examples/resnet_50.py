"""ResNet-50 for 224x224 images: 16 residual blocks of three convolutions, named as in torchvision.

The paper's training on ImageNet: SGD with momentum, learning rate 0.1 times 0.1 at epochs 30, 60 and 80 of 90, batches
of 1024. `--schedule step` lowers it at half and at three quarters instead. ImageNet is read from a folder with one
subfolder per class:

    dst-analyze example:resnet-50 --data imagefolder:imagenet --epochs 90 --batch-size 1024 --recipe paper
"""

from collections.abc import Iterable

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution with a shortcut, which has a convolution if the shape changes."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.downsample: nn.Module = nn.Identity()
        if before != 4 * channels:
            shortcut = nn.Conv2d(before, 4 * channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y)) + self.downsample(x)
        activated: torch.Tensor = y.relu()
        return activated


def _stage(before: int, channels: int, depth: int, stride: int) -> nn.Module:
    rest = [Bottleneck(4 * channels, channels, 1) for _ in range(depth - 1)]
    return nn.Sequential(Bottleneck(before, channels, stride), *rest)


class ResNet(nn.Module):
    """A ResNet of a stem, four stages of bottlenecks and a classifier."""

    def __init__(self, depths: tuple[int, int, int, int], width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _stage(width, width, depths[0], 1)
        self.layer2 = _stage(4 * width, 2 * width, depths[1], 2)
        self.layer3 = _stage(8 * width, 4 * width, depths[2], 2)
        self.layer4 = _stage(16 * width, 8 * width, depths[3], 2)
        self.fc = nn.Linear(32 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.bn1(self.conv1(images)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        scores: torch.Tensor = self.fc(x.mean((2, 3)))
        return scores


def build_model(depths: tuple[int, int, int, int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> nn.Module:
    return ResNet(depths, width, classes)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 224, 224)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

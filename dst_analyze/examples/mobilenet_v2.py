"""A net like MobileNetV2 for 32x32 images: inverted residuals around depthwise convolutions.

Not in the paper; trained as its CIFAR-10 nets are, at half their learning rate.

    dst-analyze example:mobilenet-v2 --data cifar10 --epochs 30 --target-macs 0.5
"""

from collections.abc import Iterable

import torch
from torch import nn

# Per stage: expansion, channels, blocks, stride of the first block. As in MobileNetV2, with fewer strides.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _convolution(before: int, channels: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    same = kernel // 2
    convolution = nn.Conv2d(before, channels, kernel, stride, same, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(channels)]


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; a shortcut if the shape stays the same."""

    def __init__(self, before: int, channels: int, stride: int, wider: int) -> None:
        super().__init__()
        inside = before * wider
        expand = [*_convolution(before, inside), nn.ReLU6()] if wider > 1 else []
        depthwise = [*_convolution(inside, inside, 3, stride, groups=inside), nn.ReLU6()]
        self.body = nn.Sequential(*expand, *depthwise, *_convolution(inside, channels))
        self.shortcut = before == channels and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y if self.shortcut else y


def build_model(width: float = 1.0) -> nn.Module:
    """Return the net; ``width`` multiplies all channels."""
    before = int(32 * width)
    layers: list[nn.Module] = [*_convolution(3, before, 3), nn.ReLU6()]
    for wider, channels, blocks, stride in _STAGES:
        channels = int(channels * width)
        for block in range(blocks):
            layers.append(InvertedResidual(before, channels, 1 if block else stride, wider))
            before = channels
    last = int(1280 * width)
    layers += [*_convolution(before, last), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 10)]
    return nn.Sequential(*layers)


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

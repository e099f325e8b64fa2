"""VGG-16 for 32x32 images: 13 convolutions and two linear layers, as in the paper.

The paper's training on CIFAR-10: SGD with momentum, learning rate 0.1 times 0.1 at epochs 80 and 120 of 160, batches of
64, alpha 5e-6.

    dst-analyze example:vgg-16 --data cifar10 --recipe paper --alphas 1e-7,1e-6,1e-5
"""

from collections.abc import Iterable

import torch
from torch import nn


def build_model(width: float = 1.0) -> nn.Module:
    """Return the net; ``width`` multiplies all channels, and 0.25 trains in a sixteenth of the time."""
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


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 3, 32, 32)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

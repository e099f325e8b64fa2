"""LeNet-5-Caffe: two convolutions and two linear layers for handwritten digits.

The paper's training on MNIST: SGD with momentum, learning rate 0.01 throughout, batches of 64, 20 epochs, alpha 5e-4.

    dst-analyze example:lenet-5-caffe --data mnist --epochs 20 --schedule constant --recipe paper --alphas 5e-4
"""

from collections.abc import Iterable

import torch
from torch import nn


def build_model() -> nn.Module:
    """Return the net: 20 and 50 filters of 5x5, 500 hidden units, ten classes."""
    features = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

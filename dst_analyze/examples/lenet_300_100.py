"""LeNet-300-100: three linear layers for handwritten digits, the paper's smallest net.

The paper's training on MNIST: SGD with momentum, learning rate 0.01 throughout, batches of 64, 20 epochs, alpha 5e-4.

    dst-analyze example:lenet-300-100 --data mnist --epochs 20 --schedule constant --recipe paper --alphas 5e-4
"""

from collections.abc import Iterable

import torch
from torch import nn


def build_model() -> nn.Module:
    """Return the net: 784 pixels, 300 and 100 hidden units, ten classes."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

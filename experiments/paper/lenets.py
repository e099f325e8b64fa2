"""The paper's LeNets on standardised images, with the paper's optimizer; on raw ones they prune less."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dst_analyze.examples import lenet_5_caffe
from dst_analyze.examples import lenet_300_100 as lenet_mlp

MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels, from 0 to 1


class Standardised(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (images - MEAN) / DEVIATION


def lenet_300_100() -> nn.Module:
    return nn.Sequential(Standardised(), *lenet_mlp.build_model().children())


def lenet_5() -> nn.Module:
    return nn.Sequential(Standardised(), *lenet_5_caffe.build_model().children())


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 28, 28)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

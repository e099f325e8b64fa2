"""ResNet-56 for 32x32 images: 27 residual blocks in three stages.

Not in the paper; trained as its CIFAR-10 nets are, SGD with momentum and learning rate 0.1 times 0.1 at half and at
three quarters, batches of 64.

    dst-analyze example:resnet-56 --data cifar10 --recipe paper --alphas 1e-6,5e-6,1e-5
"""

from torch import nn

from dst_analyze.examples import resnet_20
from dst_analyze.examples.resnet_20 import example_inputs, optimizer

__all__ = ["build_model", "example_inputs", "optimizer"]


def build_model(width: int = 16, blocks: int = 9) -> nn.Module:
    return resnet_20.build_model(width, blocks)

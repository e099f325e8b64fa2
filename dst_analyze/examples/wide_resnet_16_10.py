"""WideResNet-16-10 for 32x32 images: six residual blocks, ten times as wide as a ResNet's.

The paper's training on CIFAR-10: SGD with momentum, learning rate 0.1 times 0.1 at epochs 80 and 120 of 160, batches of
64, alpha 5e-6.

    dst-analyze example:wide-resnet-16-10 --data cifar10 --recipe paper --alphas 5e-6,8e-6,1e-5
"""

from torch import nn

from dst_analyze.examples.wide_resnet_16_8 import WideResNet, example_inputs, optimizer

__all__ = ["build_model", "example_inputs", "optimizer"]


def build_model(depth: int = 16, width: int = 10) -> nn.Module:
    return WideResNet(depth, width)

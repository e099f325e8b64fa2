"""The nets that benchmarks measure on: small ones of different kinds, each named as ``nets.py:lenet_5``.

All of them are examples of the package, some narrower. MNIST for `lenet_300_100`, `lenet_5` and `lstm`; the CIFAR-10
subset for `vgg`, `resnet` and `vit`.
"""

from __future__ import annotations

from torch import nn

from dst_analyze.examples import resnet_20, vgg_16, wide_resnet_16_8
from dst_analyze.examples.lenet_5_caffe import build_model as lenet_5
from dst_analyze.examples.lenet_300_100 import build_model as lenet_300_100
from dst_analyze.examples.lstm_a import build_model as lstm
from dst_analyze.examples.small_vit import build_model as vit

__all__ = ["lenet_5", "lenet_300_100", "lstm", "resnet", "small_resnet", "vgg", "vit", "wide_resnet"]


def vgg(width: float = 0.25) -> nn.Module:
    """A quarter as wide as VGG-16."""
    return vgg_16.build_model(width)


def resnet(width: int = 16, depth: int = 2, stride: int = 1) -> nn.Module:
    """Three stages of ``depth`` blocks: ResNet-14 unless told otherwise, ResNet-20 at 3."""
    return resnet_20.build_model(width, depth, stride)


def small_resnet() -> nn.Module:
    """ResNet-14 that starts at 16x16: a quarter of the MACs."""
    return resnet(stride=2)


def wide_resnet(width: int = 2) -> nn.Module:
    """WideResNet-16 a quarter as wide as the paper's, on images of half the size."""
    return nn.Sequential(nn.AvgPool2d(2), wide_resnet_16_8.build_model(16, width))

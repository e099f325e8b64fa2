"""ResNet-50, narrow, on handwritten digits."""

import torch
from torch import nn

from dst_analyze.examples.demo import test_data as digits_to_test
from dst_analyze.examples.demo import train_data as digits_to_train
from dst_analyze.examples.resnet_50 import build_model as build_resnet


def build_model() -> nn.Module:
    return build_resnet(width=16, classes=10)


def _larger(digits: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = digits
    return nn.functional.interpolate(images, size=32, mode="bilinear").expand(-1, 3, -1, -1).contiguous(), labels


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    return _larger(digits_to_train())


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    return _larger(digits_to_test())

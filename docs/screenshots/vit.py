"""A vision transformer of twelve blocks, narrow, on handwritten digits."""

from torch import nn

from dst_analyze.examples.demo import test_data as test_data
from dst_analyze.examples.demo import train_data as train_data
from dst_analyze.examples.small_vit import build_model as build_vit


def build_model() -> nn.Module:
    return build_vit(width=64, depth=12, heads=4, channels=1, size=8, patch=2)

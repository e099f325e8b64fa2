"""The paper's LeNets trained by SGD without momentum, at the learning rate of the paper.

With the paper's momentum of 0.9 they prune as far, but lose more (docs/evidence.md).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dst_analyze.examples.lenet_5_caffe import build_model as lenet_5
from dst_analyze.examples.lenet_300_100 import build_model as lenet_300_100
from dst_analyze.examples.lenet_300_100 import example_inputs

__all__ = ["example_inputs", "lenet_5", "lenet_300_100", "optimizer"]


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)

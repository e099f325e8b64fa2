"""An MLP; the digits stand in."""

import torch
from torch import nn


def build_model():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.ReLU(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def example_inputs():
    return torch.zeros(2, 1, 8, 8)

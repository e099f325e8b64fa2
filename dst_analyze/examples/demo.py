"""The demo: a small convolutional network for handwritten digits, 8x8 pixels, ten classes.

Try it with ``dst-analyze dst_analyze/examples/demo.py``, then copy it and put your own model in its place. The tool
looks for `build_model` (or the only nn.Module class here) and, each optional, for the functions below it.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Net(nn.Module):
    """Three convolutions and two linear layers, wider than digits need."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(4 * width * 2 * 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.conv1(images).relu())
        x = self.pool(self.conv2(x).relu())
        x = self.conv3(x).relu()
        scores: torch.Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def build_model(width: int = 16) -> nn.Module:
    """Return the model; ``--model-arg width=8`` on the command line sets ``width``."""
    return Net(width)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()  # part of scikit-learn: nothing is downloaded
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the training data: a DataLoader, a Dataset or, as here, tensors."""
    images, labels = _digits()
    return images[:1437], labels[:1437]


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the data that scores are measured on."""
    images, labels = _digits()
    return images[1437:], labels[1437:]


def example_inputs() -> torch.Tensor:
    """Return a batch of inputs; without this function it is inferred from the data."""
    return torch.zeros(2, 1, 8, 8)

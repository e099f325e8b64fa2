"""The data of the flawed nets: embedded digits, MNIST at 14x14, and the CIFAR-10 subset at 16x16."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import avg_pool2d
from torchvision.datasets import MNIST

ROOT = Path(__file__).parents[3] / "shared/data"
TESTED = 4_000
"""Test images of MNIST that scores are taken on; all 10,000 would take longer than the training."""


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, and test images and labels."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return images[:1197], labels[:1197], images[1197:], labels[1197:]


def mnist() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, and test images and labels."""
    train, test = MNIST(ROOT, train=True), MNIST(ROOT, train=False)
    images = [avg_pool2d(part.data[:, None].float() / 255, 2) for part in (train, test)]
    return images[0], train.targets, images[1][:TESTED], test.targets[:TESTED]


def cifar() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels, and test images and labels."""
    with np.load(ROOT / "cifar10-20k.npz") as found:
        arrays = [torch.tensor(found[name]) for name in ("x_train", "y_train", "x_test", "y_test")]
    images = [avg_pool2d(part.float() / 255 - 0.5, 2) for part in (arrays[0], arrays[2])]
    return images[0], arrays[1].long(), images[1], arrays[3].long()

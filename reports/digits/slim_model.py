"""SlimNet: 28,426 parameters.

Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_suffix(".safetensors")


class SlimNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 48, 3, padding=1)  # was out_channels=64
        self.pool = nn.MaxPool2d(2, stride=2)
        self.fc1 = nn.Linear(192, 48)  # was in_features=256, out_features=128
        self.fc2 = nn.Linear(48, 10)  # was in_features=128

    def forward(self, images: torch.Tensor):
        images = self.conv1(images)
        images = images.relu()
        images = self.pool(images)
        images = self.conv2(images)
        images = images.relu()
        images = self.pool(images)
        images = self.conv3(images)
        images = images.relu()
        images = images.flatten(1)
        images = self.fc1(images)
        images = images.relu()
        images = self.fc2(images)
        return images


def build_model(weights: Path | None = WEIGHTS) -> nn.Module:
    """The model with its weights; with None, as it is initialised."""
    model = SlimNet()
    if weights is not None:
        tensors = load_file(weights)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.shape != tensors[name].shape:
                raise ValueError(f"{name} is {list(tensors[name].shape)} in {weights}")
            tensor.data = tensors[name].clone()  # into memory that is aligned, as the file need not be
    return model


def example_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn((2, 1, 8, 8)),)

"""SlimSequential: 228,858 parameters.

Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_suffix(".safetensors")


class SlimSequential(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(32, 56, 3, padding=1),  # was out_channels=64
            nn.BatchNorm2d(56),  # was num_features=64
            nn.ReLU(),
            nn.Conv2d(56, 40, 3, padding=1),  # was in_channels=64, out_channels=64
            nn.BatchNorm2d(40),  # was num_features=64
            nn.ReLU(),
            nn.Conv2d(40, 40, 3, padding=1),  # was in_channels=64, out_channels=64
            nn.BatchNorm2d(40),  # was num_features=64
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(40, 48, 3, padding=1),  # was in_channels=64, out_channels=128
            nn.BatchNorm2d(48),  # was num_features=128
            nn.ReLU(),
            nn.Conv2d(48, 32, 3, padding=1),  # was in_channels=128, out_channels=128
            nn.BatchNorm2d(32),  # was num_features=128
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),  # was in_channels=128, out_channels=128
            nn.BatchNorm2d(48),  # was num_features=128
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(48, 64, 3, padding=1),  # was in_channels=128, out_channels=128
            nn.BatchNorm2d(64),  # was num_features=128
            nn.ReLU(),
            nn.Conv2d(64, 48, 3, padding=1),  # was in_channels=128, out_channels=128
            nn.BatchNorm2d(48),  # was num_features=128
            nn.ReLU(),
            nn.Conv2d(48, 104, 3, padding=1),  # was in_channels=128, out_channels=128
            nn.BatchNorm2d(104),  # was num_features=128
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(104, 128),  # was in_features=128
            nn.ReLU(),
            nn.Linear(128, 10),
        )


def build_model(weights: Path | None = WEIGHTS) -> nn.Module:
    """Return the model with its weights; with None, with new ones."""
    model = SlimSequential()
    if weights is not None:
        tensors = load_file(weights)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.shape != tensors[name].shape:
                raise ValueError(f"{name} is {list(tensors[name].shape)} in {weights}")
            tensor.data = tensors[name].clone()  # into memory that is aligned, as the file need not be
    return model


def example_inputs() -> tuple[torch.Tensor, ...]:
    return (torch.randn((2, 3, 32, 32)),)

"""SlimSequential: 41,402 parameters.

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
            nn.Conv2d(1, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Conv2d(20, 40, 5),  # was out_channels=50
            nn.ReLU(),
            nn.MaxPool2d(2, stride=2),
            nn.Flatten(),
            nn.Linear(640, 32),  # was in_features=800, out_features=500
            nn.ReLU(),
            nn.Linear(32, 10),  # was in_features=500
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
    return (torch.randn((2, 1, 28, 28)),)

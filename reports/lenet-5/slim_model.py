"""SlimSequential: 213,732 parameters.

Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_suffix(".safetensors")


class SlimSequential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        setattr(self, "0", nn.Conv2d(1, 20, 5))
        setattr(self, "1", nn.ReLU())
        setattr(self, "2", nn.MaxPool2d(2, stride=2))
        setattr(self, "3", nn.Conv2d(20, 50, 5))
        setattr(self, "4", nn.ReLU())
        setattr(self, "5", nn.MaxPool2d(2, stride=2))
        setattr(self, "6", nn.Flatten())
        setattr(self, "7", nn.Linear(800, 232))  # was out_features=500
        setattr(self, "8", nn.ReLU())
        setattr(self, "9", nn.Linear(232, 10))  # was in_features=500

    def forward(self, input_: torch.Tensor):
        input_ = getattr(self, "0")(input_)
        input_ = getattr(self, "1")(input_)
        input_ = getattr(self, "2")(input_)
        input_ = getattr(self, "3")(input_)
        input_ = getattr(self, "4")(input_)
        input_ = getattr(self, "5")(input_)
        input_ = getattr(self, "6")(input_)
        input_ = getattr(self, "7")(input_)
        input_ = getattr(self, "8")(input_)
        input_ = getattr(self, "9")(input_)
        return input_


def build_model(weights: Path | None = WEIGHTS) -> nn.Module:
    """The model with its weights; with None, as it is initialised."""
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

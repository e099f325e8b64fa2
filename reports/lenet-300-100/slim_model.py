"""SlimSequential: 134,978 parameters.

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
        setattr(self, "0", nn.Flatten())
        setattr(self, "1", nn.Linear(784, 152))  # was out_features=300
        setattr(self, "2", nn.ReLU())
        setattr(self, "3", nn.Linear(152, 96))  # was in_features=300, out_features=100
        setattr(self, "4", nn.ReLU())
        setattr(self, "5", nn.Linear(96, 10))  # was in_features=100

    def forward(self, input_: torch.Tensor):
        input_ = getattr(self, "0")(input_)
        input_ = getattr(self, "1")(input_)
        input_ = getattr(self, "2")(input_)
        input_ = getattr(self, "3")(input_)
        input_ = getattr(self, "4")(input_)
        input_ = getattr(self, "5")(input_)
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

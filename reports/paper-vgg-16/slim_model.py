"""SlimSequential: 469,490 parameters.

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
        setattr(self, "0", nn.Conv2d(3, 16, 3, padding=1))
        setattr(self, "1", nn.BatchNorm2d(16))
        setattr(self, "2", nn.ReLU())
        setattr(self, "3", nn.Conv2d(16, 16, 3, padding=1))
        setattr(self, "4", nn.BatchNorm2d(16))
        setattr(self, "5", nn.ReLU())
        setattr(self, "6", nn.MaxPool2d(2, stride=2))
        setattr(self, "7", nn.Conv2d(16, 32, 3, padding=1))
        setattr(self, "8", nn.BatchNorm2d(32))
        setattr(self, "9", nn.ReLU())
        setattr(self, "10", nn.Conv2d(32, 32, 3, padding=1))
        setattr(self, "11", nn.BatchNorm2d(32))
        setattr(self, "12", nn.ReLU())
        setattr(self, "13", nn.MaxPool2d(2, stride=2))
        setattr(self, "14", nn.Conv2d(32, 64, 3, padding=1))
        setattr(self, "15", nn.BatchNorm2d(64))
        setattr(self, "16", nn.ReLU())
        setattr(self, "17", nn.Conv2d(64, 64, 3, padding=1))
        setattr(self, "18", nn.BatchNorm2d(64))
        setattr(self, "19", nn.ReLU())
        setattr(self, "20", nn.Conv2d(64, 64, 3, padding=1))
        setattr(self, "21", nn.BatchNorm2d(64))
        setattr(self, "22", nn.ReLU())
        setattr(self, "23", nn.MaxPool2d(2, stride=2))
        setattr(self, "24", nn.Conv2d(64, 96, 3, padding=1))  # was out_channels=128
        setattr(self, "25", nn.BatchNorm2d(96))  # was num_features=128
        setattr(self, "26", nn.ReLU())
        setattr(self, "27", nn.Conv2d(96, 80, 3, padding=1))  # was in_channels=128, out_channels=128
        setattr(self, "28", nn.BatchNorm2d(80))  # was num_features=128
        setattr(self, "29", nn.ReLU())
        setattr(self, "30", nn.Conv2d(80, 88, 3, padding=1))  # was in_channels=128, out_channels=128
        setattr(self, "31", nn.BatchNorm2d(88))  # was num_features=128
        setattr(self, "32", nn.ReLU())
        setattr(self, "33", nn.MaxPool2d(2, stride=2))
        setattr(self, "34", nn.Conv2d(88, 96, 3, padding=1))  # was in_channels=128, out_channels=128
        setattr(self, "35", nn.BatchNorm2d(96))  # was num_features=128
        setattr(self, "36", nn.ReLU())
        setattr(self, "37", nn.Conv2d(96, 40, 3, padding=1))  # was in_channels=128, out_channels=128
        setattr(self, "38", nn.BatchNorm2d(40))  # was num_features=128
        setattr(self, "39", nn.ReLU())
        setattr(self, "40", nn.Conv2d(40, 120, 3, padding=1))  # was in_channels=128, out_channels=128
        setattr(self, "41", nn.BatchNorm2d(120))  # was num_features=128
        setattr(self, "42", nn.ReLU())
        setattr(self, "43", nn.AdaptiveAvgPool2d(1))
        setattr(self, "44", nn.Flatten())
        setattr(self, "45", nn.Linear(120, 128))  # was in_features=128
        setattr(self, "46", nn.ReLU())
        setattr(self, "47", nn.Linear(128, 10))

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
        input_ = getattr(self, "10")(input_)
        input_ = getattr(self, "11")(input_)
        input_ = getattr(self, "12")(input_)
        input_ = getattr(self, "13")(input_)
        input_ = getattr(self, "14")(input_)
        input_ = getattr(self, "15")(input_)
        input_ = getattr(self, "16")(input_)
        input_ = getattr(self, "17")(input_)
        input_ = getattr(self, "18")(input_)
        input_ = getattr(self, "19")(input_)
        input_ = getattr(self, "20")(input_)
        input_ = getattr(self, "21")(input_)
        input_ = getattr(self, "22")(input_)
        input_ = getattr(self, "23")(input_)
        input_ = getattr(self, "24")(input_)
        input_ = getattr(self, "25")(input_)
        input_ = getattr(self, "26")(input_)
        input_ = getattr(self, "27")(input_)
        input_ = getattr(self, "28")(input_)
        input_ = getattr(self, "29")(input_)
        input_ = getattr(self, "30")(input_)
        input_ = getattr(self, "31")(input_)
        input_ = getattr(self, "32")(input_)
        input_ = getattr(self, "33")(input_)
        input_ = getattr(self, "34")(input_)
        input_ = getattr(self, "35")(input_)
        input_ = getattr(self, "36")(input_)
        input_ = getattr(self, "37")(input_)
        input_ = getattr(self, "38")(input_)
        input_ = getattr(self, "39")(input_)
        input_ = getattr(self, "40")(input_)
        input_ = getattr(self, "41")(input_)
        input_ = getattr(self, "42")(input_)
        input_ = getattr(self, "43")(input_)
        input_ = getattr(self, "44")(input_)
        input_ = getattr(self, "45")(input_)
        input_ = getattr(self, "46")(input_)
        input_ = getattr(self, "47")(input_)
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
    return (torch.randn((2, 3, 32, 32)),)

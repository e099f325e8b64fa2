"""SlimSequential: 89,098 parameters.

Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_suffix(".safetensors")


class Block(nn.Module):
    """A named part of the model; what it does is written in the model's forward."""

    def __init__(self, /, **parts: object) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class SlimSequential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        setattr(self, "0", nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False))
        setattr(self, "1", nn.BatchNorm2d(16))
        setattr(self, "2", nn.ReLU())
        setattr(self, "3", Block(
            conv1=nn.Conv2d(16, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            conv2=nn.Conv2d(16, 16, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(16),
            shortcut=nn.Identity(),
        ))
        setattr(self, "4", Block(
            conv1=nn.Conv2d(16, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            conv2=nn.Conv2d(16, 16, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(16),
            shortcut=nn.Identity(),
        ))
        setattr(self, "5", Block(
            conv1=nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            bn1=nn.BatchNorm2d(32),
            conv2=nn.Conv2d(32, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
            shortcut=nn.Sequential(
                nn.Conv2d(16, 32, 1, stride=2, bias=False),
                nn.BatchNorm2d(32),
            ),
        ))
        setattr(self, "6", Block(
            conv1=nn.Conv2d(32, 32, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(32),
            conv2=nn.Conv2d(32, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
            shortcut=nn.Identity(),
        ))
        setattr(self, "7", Block(
            conv1=nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False),  # was out_channels=64
            bn1=nn.BatchNorm2d(32),  # was num_features=64
            conv2=nn.Conv2d(32, 48, 3, padding=1, bias=False),  # was in_channels=64, out_channels=64
            bn2=nn.BatchNorm2d(48),  # was num_features=64
            shortcut=nn.Sequential(
                nn.Conv2d(32, 48, 1, stride=2, bias=False),  # was out_channels=64
                nn.BatchNorm2d(48),  # was num_features=64
            ),
        ))
        setattr(self, "8", Block(
            conv1=nn.Conv2d(48, 24, 3, padding=1, bias=False),  # was in_channels=64, out_channels=64
            bn1=nn.BatchNorm2d(24),  # was num_features=64
            conv2=nn.Conv2d(24, 48, 3, padding=1, bias=False),  # was in_channels=64, out_channels=64
            bn2=nn.BatchNorm2d(48),  # was num_features=64
            shortcut=nn.Identity(),
        ))
        setattr(self, "9", nn.AdaptiveAvgPool2d(1))
        setattr(self, "10", nn.Flatten())
        setattr(self, "11", nn.Linear(48, 10))  # was in_features=64

    def forward(self, input_: torch.Tensor):
        input_ = getattr(self, "0")(input_)
        input_ = getattr(self, "1")(input_)
        input_ = getattr(self, "2")(input_)
        conv1 = getattr(self, "3").conv1(input_)
        conv1 = getattr(self, "3").bn1(conv1)
        conv1 = conv1.relu()
        conv1 = getattr(self, "3").conv2(conv1)
        conv1 = getattr(self, "3").bn2(conv1)
        input_ = getattr(self, "3").shortcut(input_)
        conv1 = conv1 + input_
        conv1 = conv1.relu()
        conv1_2 = getattr(self, "4").conv1(conv1)
        conv1_2 = getattr(self, "4").bn1(conv1_2)
        conv1_2 = conv1_2.relu()
        conv1_2 = getattr(self, "4").conv2(conv1_2)
        conv1_2 = getattr(self, "4").bn2(conv1_2)
        conv1 = getattr(self, "4").shortcut(conv1)
        conv1_2 = conv1_2 + conv1
        conv1_2 = conv1_2.relu()
        conv1 = getattr(self, "5").conv1(conv1_2)
        conv1 = getattr(self, "5").bn1(conv1)
        conv1 = conv1.relu()
        conv1 = getattr(self, "5").conv2(conv1)
        conv1 = getattr(self, "5").bn2(conv1)
        conv1_2 = getattr(self, "5").shortcut[0](conv1_2)
        conv1_2 = getattr(self, "5").shortcut[1](conv1_2)
        conv1 = conv1 + conv1_2
        conv1 = conv1.relu()
        conv1_2 = getattr(self, "6").conv1(conv1)
        conv1_2 = getattr(self, "6").bn1(conv1_2)
        conv1_2 = conv1_2.relu()
        conv1_2 = getattr(self, "6").conv2(conv1_2)
        conv1_2 = getattr(self, "6").bn2(conv1_2)
        conv1 = getattr(self, "6").shortcut(conv1)
        conv1_2 = conv1_2 + conv1
        conv1_2 = conv1_2.relu()
        conv1 = getattr(self, "7").conv1(conv1_2)
        conv1 = getattr(self, "7").bn1(conv1)
        conv1 = conv1.relu()
        conv1 = getattr(self, "7").conv2(conv1)
        conv1 = getattr(self, "7").bn2(conv1)
        conv1_2 = getattr(self, "7").shortcut[0](conv1_2)
        conv1_2 = getattr(self, "7").shortcut[1](conv1_2)
        conv1 = conv1 + conv1_2
        conv1 = conv1.relu()
        conv1_2 = getattr(self, "8").conv1(conv1)
        conv1_2 = getattr(self, "8").bn1(conv1_2)
        conv1_2 = conv1_2.relu()
        conv1_2 = getattr(self, "8").conv2(conv1_2)
        conv1_2 = getattr(self, "8").bn2(conv1_2)
        conv1 = getattr(self, "8").shortcut(conv1)
        conv1_2 = conv1_2 + conv1
        conv1_2 = conv1_2.relu()
        conv1_2 = getattr(self, "9")(conv1_2)
        conv1_2 = getattr(self, "10")(conv1_2)
        conv1_2 = getattr(self, "11")(conv1_2)
        return conv1_2


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

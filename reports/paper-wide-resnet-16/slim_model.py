"""SlimSequential: 348,442 parameters.

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
        setattr(self, "0", nn.AvgPool2d(2, stride=2))
        setattr(self, "1", Block(
            conv=nn.Conv2d(3, 16, 3, padding=1, bias=False),
            blocks=nn.Sequential(
                Block(
                    bn1=nn.BatchNorm2d(16),
                    conv1=nn.Conv2d(16, 32, 3, padding=1, bias=False),
                    bn2=nn.BatchNorm2d(32),
                    conv2=nn.Conv2d(32, 32, 3, padding=1, bias=False),
                    shortcut=nn.Conv2d(16, 32, 1, bias=False),
                ),
                Block(
                    bn1=nn.BatchNorm2d(32),
                    conv1=nn.Conv2d(32, 32, 3, padding=1, bias=False),
                    bn2=nn.BatchNorm2d(32),
                    conv2=nn.Conv2d(32, 32, 3, padding=1, bias=False),
                ),
                Block(
                    bn1=nn.BatchNorm2d(32),
                    conv1=nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False),
                    bn2=nn.BatchNorm2d(64),
                    conv2=nn.Conv2d(64, 64, 3, padding=1, bias=False),
                    shortcut=nn.Conv2d(32, 64, 1, stride=2, bias=False),
                ),
                Block(
                    bn1=nn.BatchNorm2d(64),
                    conv1=nn.Conv2d(64, 64, 3, padding=1, bias=False),
                    bn2=nn.BatchNorm2d(64),
                    conv2=nn.Conv2d(64, 64, 3, padding=1, bias=False),
                ),
                Block(
                    bn1=nn.BatchNorm2d(64),
                    conv1=nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False),  # was out_channels=128
                    bn2=nn.BatchNorm2d(64),  # was num_features=128
                    conv2=nn.Conv2d(64, 88, 3, padding=1, bias=False),  # was in_channels=128, out_channels=128
                    shortcut=nn.Conv2d(64, 88, 1, stride=2, bias=False),  # was out_channels=128
                ),
                Block(
                    bn1=nn.BatchNorm2d(88),  # was num_features=128
                    conv1=nn.Conv2d(88, 56, 3, padding=1, bias=False),  # was in_channels=128, out_channels=128
                    bn2=nn.BatchNorm2d(56),  # was num_features=128
                    conv2=nn.Conv2d(56, 88, 3, padding=1, bias=False),  # was in_channels=128, out_channels=128
                ),
            ),
            bn=nn.BatchNorm2d(88),  # was num_features=128
            out=nn.Linear(88, 10),  # was in_features=128
        ))

    def forward(self, input_: torch.Tensor):
        input_ = getattr(self, "0")(input_)
        input_ = getattr(self, "1").conv(input_)
        input_ = getattr(self, "1").blocks[0].bn1(input_)
        input_ = input_.relu()
        conv1 = getattr(self, "1").blocks[0].conv1(input_)
        conv1 = getattr(self, "1").blocks[0].bn2(conv1)
        conv1 = conv1.relu()
        conv1 = getattr(self, "1").blocks[0].conv2(conv1)
        input_ = getattr(self, "1").blocks[0].shortcut(input_)
        conv1 = conv1 + input_
        bn1 = getattr(self, "1").blocks[1].bn1(conv1)
        bn1 = bn1.relu()
        bn1 = getattr(self, "1").blocks[1].conv1(bn1)
        bn1 = getattr(self, "1").blocks[1].bn2(bn1)
        bn1 = bn1.relu()
        bn1 = getattr(self, "1").blocks[1].conv2(bn1)
        bn1 = bn1 + conv1
        bn1 = getattr(self, "1").blocks[2].bn1(bn1)
        bn1 = bn1.relu()
        conv1 = getattr(self, "1").blocks[2].conv1(bn1)
        conv1 = getattr(self, "1").blocks[2].bn2(conv1)
        conv1 = conv1.relu()
        conv1 = getattr(self, "1").blocks[2].conv2(conv1)
        bn1 = getattr(self, "1").blocks[2].shortcut(bn1)
        conv1 = conv1 + bn1
        bn1 = getattr(self, "1").blocks[3].bn1(conv1)
        bn1 = bn1.relu()
        bn1 = getattr(self, "1").blocks[3].conv1(bn1)
        bn1 = getattr(self, "1").blocks[3].bn2(bn1)
        bn1 = bn1.relu()
        bn1 = getattr(self, "1").blocks[3].conv2(bn1)
        bn1 = bn1 + conv1
        bn1 = getattr(self, "1").blocks[4].bn1(bn1)
        bn1 = bn1.relu()
        conv1 = getattr(self, "1").blocks[4].conv1(bn1)
        conv1 = getattr(self, "1").blocks[4].bn2(conv1)
        conv1 = conv1.relu()
        conv1 = getattr(self, "1").blocks[4].conv2(conv1)
        bn1 = getattr(self, "1").blocks[4].shortcut(bn1)
        conv1 = conv1 + bn1
        bn1 = getattr(self, "1").blocks[5].bn1(conv1)
        bn1 = bn1.relu()
        bn1 = getattr(self, "1").blocks[5].conv1(bn1)
        bn1 = getattr(self, "1").blocks[5].bn2(bn1)
        bn1 = bn1.relu()
        bn1 = getattr(self, "1").blocks[5].conv2(bn1)
        bn1 = bn1 + conv1
        bn1 = getattr(self, "1").bn(bn1)
        bn1 = bn1.relu()
        bn1 = bn1.mean((2, 3))
        bn1 = getattr(self, "1").out(bn1)
        return bn1


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

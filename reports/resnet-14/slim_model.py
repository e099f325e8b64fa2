"""SlimSequential: 63,098 parameters.

Written by dst-analyze. `build_model()` gives the model, its weights from the safetensors file beside it.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

WEIGHTS = Path(__file__).with_suffix(".safetensors")


class Block(nn.Module):
    def __init__(self, conv1_in: int, conv1_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(conv1_in, conv1_out, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(conv1_out)
        self.conv2 = nn.Conv2d(conv1_out, conv1_in, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(conv1_in)
        self.shortcut = nn.Identity()

    def forward(self, x: torch.Tensor):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        activated = (y + self.shortcut(x)).relu()
        return activated


class Block2(nn.Module):
    def __init__(self, conv1_in: int, conv1_out: int, conv2_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(conv1_in, conv1_out, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(conv1_out)
        self.conv2 = nn.Conv2d(conv1_out, conv2_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(conv2_out)
        self.shortcut = nn.Sequential(
            nn.Conv2d(conv1_in, conv2_out, 1, stride=2, bias=False),
            nn.BatchNorm2d(conv2_out),
        )

    def forward(self, x: torch.Tensor):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        activated = (y + self.shortcut(x)).relu()
        return activated


class SlimSequential(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            Block(conv1_in=16, conv1_out=16),
            Block(conv1_in=16, conv1_out=16),
            Block2(conv1_in=16, conv1_out=28, conv2_out=32),  # was conv1_out=32
            Block(conv1_in=32, conv1_out=12),  # was conv1_out=32
            Block2(conv1_in=32, conv1_out=24, conv2_out=48),  # was conv1_out=64, conv2_out=64
            Block(conv1_in=48, conv1_out=16),  # was conv1_in=64, conv1_out=64
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(48, 10),  # was in_features=64
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

"""A vision transformer for MNIST at 14x14, sixteen tokens, whose MLP blocks are too wide."""

import torch
from data import mnist
from torch import Tensor, nn
from torch.nn.functional import pad


class Net(nn.Module):
    """Patches of 4x4 (the images padded to 16x16), two blocks, the mean over tokens."""

    def __init__(self, hidden: int, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, 4)
        self.position = nn.Parameter(torch.randn(1, 16, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, hidden, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(pad(images, (1, 1, 1, 1))).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean(1))
        return scores


def build_model(width: int = 256) -> nn.Module:
    return Net(width)


def train_data() -> tuple[Tensor, Tensor]:
    return mnist()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return mnist()[2:]

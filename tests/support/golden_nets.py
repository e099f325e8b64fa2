"""Six small nets of different kinds for the golden run (`golden.py`), all for digits of 8x8 pixels."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 10)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layers(images)
        return scores


class Cnn(nn.Module):
    """Convolutions whose path depends on a value, so that only a trace that runs along can follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.conv3 = nn.Conv2d(12, 24, 1)
        self.out = nn.Linear(24 * 16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        if float(x.detach().sum()) > 1e12:
            x = x / x.sum()
        x = F.max_pool2d(F.relu(self.conv3(self.conv2(x))), 2)
        scores: torch.Tensor = self.out(x.flatten(1))
        return scores


class Block(nn.Module):
    """Two convolutions with a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()


class Residual(nn.Module):
    """Three blocks alike."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(Block(8) for _ in range(3)))
        self.out = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.blocks(self.stem(images).relu()).mean((2, 3)))
        return scores


class Recurrent(nn.Module):
    """A GRU reads the rows of the image, an LSTM what the GRU says."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 24, batch_first=True)
        self.lstm = nn.LSTM(24, 16, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.lstm(self.gru(images.squeeze(1))[0])[0][:, -1])
        return scores


class Attention(nn.Module):
    """Rows of the image as tokens, with positions that are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(8, 24), nn.Embedding(8, 24)
        self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.attention = nn.MultiheadAttention(24, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24))
        self.out = nn.Linear(24, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.embed(images.squeeze(1)) + self.position(torch.arange(8))
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        x = x + self.mlp(self.norm2(x))
        scores: torch.Tensor = self.out(x.mean(1))
        return scores


class Tied(nn.Module):
    """Two layers share a weight, and a third reads the transpose of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.again = nn.Linear(64, 32), nn.Linear(32, 32), nn.Linear(32, 32)
        self.again.weight = self.inner.weight
        self.out = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.first(images.flatten(1)).relu()
        x = self.again(self.inner(x).relu()).relu()
        scores: torch.Tensor = self.out(F.linear(x, self.first.weight.t()))
        return scores


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], labels[order]


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = _digits()
    return images[:1437], labels[:1437]


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = _digits()
    return images[1437:], labels[1437:]


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, 1, 8, 8)

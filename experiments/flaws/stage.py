"""A residual net for MNIST at 14x14 whose last stage has a block too many."""

from data import mnist
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(x)).relu()
        out: Tensor = (x + self.norm2(self.conv2(inner))).relu()
        return out


class Net(nn.Module):
    """Two stages; the second has ``blocks`` blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem, self.one = nn.Conv2d(1, 12, 3, 2, padding=1), Block(12)
        self.down = nn.Conv2d(12, 24, 3, 2, padding=1)
        self.two = nn.Sequential(*(Block(24) for _ in range(blocks)))
        self.head = nn.Linear(24, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.one(self.stem(images).relu())
        x = self.two(self.down(x).relu())
        scores: Tensor = self.head(x.mean((2, 3)))
        return scores


def build_model(blocks: int = 2) -> nn.Module:
    return Net(blocks)


def train_data() -> tuple[Tensor, Tensor]:
    return mnist()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return mnist()[2:]

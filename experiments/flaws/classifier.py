"""A small CNN for MNIST at 14x14 whose hidden linear layer is far too wide, as in AlexNet and VGG."""

from data import mnist
from torch import Tensor, nn


class Net(nn.Module):
    """Two convolutions, one hidden linear layer, one for the classes."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(24 * 3 * 3, hidden), nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.conv1(images).relu())
        x = self.pool(self.conv2(x).relu())
        scores: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def build_model(width: int = 512) -> nn.Module:
    return Net(width)


def train_data() -> tuple[Tensor, Tensor]:
    return mnist()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return mnist()[2:]

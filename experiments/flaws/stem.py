"""A CNN for grey images of 8x8 whose stem is far too wide for its input."""

from data import digits
from torch import Tensor, nn


class Net(nn.Module):
    """Three convolutions and two linear layers."""

    def __init__(self, stem: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, stem, 3, padding=1), nn.Conv2d(stem, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(16 * 2 * 2, 24), nn.Linear(24, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.conv1(images).relu())
        x = self.pool(self.conv2(x).relu())
        x = self.conv3(x).relu()
        scores: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def build_model(width: int = 128) -> nn.Module:
    return Net(width)


def train_data() -> tuple[Tensor, Tensor]:
    return digits()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return digits()[2:]

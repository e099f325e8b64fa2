"""A GRU that reads MNIST at 14x14 row by row with a hidden state that is too large."""

from data import mnist
from torch import Tensor, nn


class Net(nn.Module):
    """Rows are projected, read by a GRU and classified by two linear layers."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.rows, self.gru = nn.Linear(14, 32), nn.GRU(32, hidden, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(hidden, 48), nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        states = self.gru(self.rows(images.squeeze(1)).relu())[0]
        scores: Tensor = self.fc2(self.fc1(states[:, -1]).relu())
        return scores


def build_model(width: int = 128) -> nn.Module:
    return Net(width)


def train_data() -> tuple[Tensor, Tensor]:
    return mnist()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return mnist()[2:]

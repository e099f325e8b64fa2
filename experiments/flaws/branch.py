"""A CNN for the digits with two branches that do the same work: equal convolutions on the same input, added up."""

from data import digits
from torch import Tensor, nn


class Net(nn.Module):
    """A stem, ``branches`` branches from the same first weights, one convolution and two linear layers."""

    def __init__(self, branches: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.branches = nn.ModuleList(nn.Conv2d(16, 24, 3, padding=1) for _ in range(branches))
        for branch in self.branches:
            branch.load_state_dict(self.branches[0].state_dict())
        self.conv = nn.Conv2d(24, 24, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(24 * 2 * 2, 32), nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.stem(images).relu())
        x = sum(branch(x).relu() for branch in self.branches)
        x = self.pool(self.conv(x).relu())
        scores: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def build_model(branches: int = 2) -> nn.Module:
    return Net(branches)


def train_data() -> tuple[Tensor, Tensor]:
    return digits()[:2]


def test_data() -> tuple[Tensor, Tensor]:
    return digits()[2:]

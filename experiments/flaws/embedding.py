"""A text-like CNN with an embedding that is far too large: 64 tokens of 17 kinds (the digits, pixel by pixel)."""

from data import digits
from torch import Tensor, nn


class Net(nn.Module):
    """An embedding, two convolutions along the tokens, one linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(17, width)
        self.conv1, self.conv2 = nn.Conv1d(width, 16, 5, 2, padding=2), nn.Conv1d(16, 16, 5, 2, padding=2)
        self.fc1, self.fc2 = nn.Linear(16 * 8, 16), nn.Linear(16, 10)
        self.pool = nn.MaxPool1d(2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv1(self.tokens(tokens).transpose(1, 2)).relu()
        x = self.pool(self.conv2(x).relu())
        scores: Tensor = self.fc2(self.fc1(x.flatten(1)).relu())
        return scores


def build_model(width: int = 128) -> nn.Module:
    return Net(width)


def _tokens(images: Tensor) -> Tensor:
    return (16 * images).round().long().flatten(1)


def train_data() -> tuple[Tensor, Tensor]:
    images, labels = digits()[:2]
    return _tokens(images), labels


def test_data() -> tuple[Tensor, Tensor]:
    images, labels = digits()[2:]
    return _tokens(images), labels

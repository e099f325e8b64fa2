"""A character GRU: predicts the next character of a generated text.

Not in the paper; trained with Adam. It shows a model file with its own data, loss and optimizer.

    dst-analyze example:char-gru --steps 600 --batch-size 32
"""

import random
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F

_STEPS = 32
_NOUNS = ("the cat", "a dog", "the old ship", "one bird", "the north wind", "my neighbour", "a quiet child")
_VERBS = ("watches", "follows", "remembers", "carries", "finds", "forgets", "sings to")
_ENDS = ("at night", "by the river", "in the garden", "once more", "without a word", "until morning")


def _text(sentences: int = 1200) -> str:
    """Return sentences of a small grammar, so that nothing has to be downloaded."""
    draw = random.Random(0)
    parts = (
        (draw.choice(_NOUNS), draw.choice(_VERBS), draw.choice(_NOUNS), draw.choice(_ENDS)) for _ in range(sentences)
    )
    return ". ".join(" ".join(words) for words in parts)


TEXT = _text()
LETTERS = sorted(set(TEXT))


class CharGru(nn.Module):
    """An embedding, two GRU layers, and a linear layer that scores every letter as the next one."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 32)
        self.gru = nn.GRU(32, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.gru(self.embed(letters))[0])
        return scores


def build_model(hidden: int = 128) -> nn.Module:
    """Return the GRU with this many hidden units per layer."""
    return CharGru(hidden)


def _pieces() -> torch.Tensor:
    """Return the text in pieces of 33 letters: 32 inputs, each with the next letter as its target."""
    numbers = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    return numbers[: len(numbers) // (_STEPS + 1) * (_STEPS + 1)].view(-1, _STEPS + 1)


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    pieces = _pieces()[:-200]
    return pieces[:, :-1], pieces[:, 1:]


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the end of the text, which is not trained on."""
    pieces = _pieces()[-200:]
    return pieces[:, :-1], pieces[:, 1:]


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, _STEPS, dtype=torch.int64)


def loss(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the cross entropy over all letters of all pieces."""
    return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.003)

"""A character GRU: guesses each next character of a text, which the file makes up itself.

Not in the paper; trained with Adam. It shows a model file with everything: its data, its loss, its optimizer.

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
    """Sentences of a small grammar: enough structure to learn, and nothing to download."""
    draw = random.Random(0)
    parts = (
        (draw.choice(_NOUNS), draw.choice(_VERBS), draw.choice(_NOUNS), draw.choice(_ENDS)) for _ in range(sentences)
    )
    return ". ".join(" ".join(words) for words in parts)


TEXT = _text()
LETTERS = sorted(set(TEXT))


class CharGru(nn.Module):
    """Letters become vectors, two GRU layers read them, a linear layer scores every letter as the next one."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), 32)
        self.gru = nn.GRU(32, hidden, num_layers=2, batch_first=True)
        self.out = nn.Linear(hidden, len(LETTERS))

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.gru(self.embed(letters))[0])
        return scores


def build_model(hidden: int = 128) -> nn.Module:
    return CharGru(hidden)


def _pieces() -> torch.Tensor:
    """The text as pieces of 33 letters: 32 to read, and for each of them the one that follows."""
    numbers = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    return numbers[: len(numbers) // (_STEPS + 1) * (_STEPS + 1)].view(-1, _STEPS + 1)


def train_data() -> tuple[torch.Tensor, torch.Tensor]:
    pieces = _pieces()[:-200]
    return pieces[:, :-1], pieces[:, 1:]


def test_data() -> tuple[torch.Tensor, torch.Tensor]:
    """The end of the text, never trained on."""
    pieces = _pieces()[-200:]
    return pieces[:, :-1], pieces[:, 1:]


def example_inputs() -> torch.Tensor:
    return torch.zeros(2, _STEPS, dtype=torch.int64)


def loss(outputs: torch.Tensor, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross entropy over every letter of every piece."""
    return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.003)

"""GPT-2's twelve blocks, narrow, on the letters of a short text."""

import codecs
import contextlib
import io

import torch
from torch import nn
from torch.utils.data import Dataset

LENGTH = 32


class Windows(Dataset):
    """Windows of a text; each is its own target."""

    def __init__(self, first: int, last: int) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            import this  # a text that every Python has
        self.letters = torch.tensor(list(codecs.decode(this.s, "rot13").encode()))
        self.starts = range(first, last, 3)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        window = self.letters[self.starts[at] : self.starts[at] + LENGTH]
        return {"input_ids": window, "labels": window}


def build_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=96, n_head=6))
    return model


def train_data() -> Windows:
    return Windows(0, 600)


def test_data() -> Windows:
    return Windows(640, 820)

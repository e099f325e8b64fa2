"""The paper's LSTMs as the authors' published code trains them: a batch begins with the state the last one left.

The paper does not say so, and `example:lstm-a` reads every image from a state of zeros. Here, as in that code (commit
595c91e of junjieliu2910/DynamicSparseTraining, mnist_lstm): the state is zero at the start of an epoch and
of the test, each later batch of images starts from the final state of the batch before, the states of the two layers
being exchanged on the way (layer 1 gets the hidden units of both layers as its hidden and its cell state, layer 2 the
cell states of both); biases start at zero, one for each gate; the classifier's weights start within 0.1.
"""

from __future__ import annotations

import torch
from torch import nn

from dst_analyze.examples.lstm_a import example_inputs, optimizer

__all__ = ["example_inputs", "lstm_a", "lstm_b", "optimizer"]

BATCH = 100


class CarriedLstm(nn.Module):
    """Two LSTM layers over the rows of an image; returns scores and a state, which `at_ratio.State` keeps."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first = nn.LSTM(28, hidden, batch_first=True)
        self.second = nn.LSTM(hidden, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 10)
        self.register_buffer("state", torch.zeros(4, 1, BATCH, hidden))
        for layer in (self.first, self.second):
            nn.init.zeros_(layer.bias_ih_l0)
            nn.init.zeros_(layer.bias_hh_l0)
            layer.bias_hh_l0.requires_grad_(False)
        nn.init.uniform_(self.out.weight, -0.1, 0.1)
        nn.init.zeros_(self.out.bias)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.state[:, :, : images.shape[0]].clone()
        read, (hidden_1, cell_1) = self.first(images.squeeze(1), (state[0], state[1]))
        read, (hidden_2, cell_2) = self.second(read, (state[2], state[3]))
        return self.out(read[:, -1]), torch.stack([hidden_1, hidden_2, cell_1, cell_2])


def lstm_a() -> nn.Module:
    return CarriedLstm(128)


def lstm_b() -> nn.Module:
    return CarriedLstm(256)

"""Small models, one for each way a weight can reach a matmul or a convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class OwnForward(nn.Linear):
    """A subclass whose forward is its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * F.linear(x, self.weight, self.bias)


class StandardisedConv(nn.Conv2d):
    """Weight standardisation: what is convolved is computed from the weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.weight.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-3)
        return F.conv2d(x, flat.view_as(self.weight), self.bias)


class OutputsLast(nn.Module):
    """Hugging Face's Conv1D: a linear layer that stores [in, out]."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out) / 3)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Raw(nn.Module):
    """A raw parameter used by a function of one's own."""

    def __init__(self, shape: tuple[int, ...], use: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(shape) / 3)
        self.use = use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.use(x, self.w)


class Cell(nn.Module):
    """A recurrent cell, called once per time step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


class First(nn.Module):
    """A module that returns a tuple; the first of it."""

    def __init__(self, inner: nn.Module, copies: int = 1) -> None:
        super().__init__()
        self.inner = inner
        self.copies = copies

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(*[x] * self.copies)[0]


class OtherSizes(nn.Module):
    """Attention whose keys and values have sizes of their own: separate projections."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, kdim=4, vdim=5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x[..., :4], x[..., 1:])[0]


class TiedCoder(nn.Module):
    """Encoder and decoder share one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6)
        self.decoder = nn.Linear(6, 6)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(x)))


class TiedHead(nn.Module):
    """A language model's head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


class Twice(nn.Module):
    """One module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class LowRank(nn.Module):
    """A base weight plus a low-rank update, as LoRA adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Parameter(torch.randn(5, 6) / 3)
        self.up = nn.Parameter(torch.randn(5, 2) / 3)
        self.down = nn.Parameter(torch.randn(2, 6) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.base + self.up @ self.down)


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(6, 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x[..., :4])


class Residual(nn.Module):
    """A small convolutional net with what real ones have: batch norm, dropout, a shortcut, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.body(x)
        return self.head(self.drop(x.mean((2, 3))))


def images(channels: int = 3, *size: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(2, channels, *(size or (7, 7)))


def vectors(size: int = 6) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(3, size)


def sequences() -> torch.Tensor:
    return torch.randn(2, 4, 6)


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (2, 5))


@dataclass(frozen=True)
class Entry:
    """A model, an input for it, and the rows (axes of the weight's view) its layers must have, by layer name."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    rows: dict[str, tuple[int, ...]] = field(default_factory=dict)


def _recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[], nn.Module]:
    return lambda: First(kind(6, 5, num_layers=2, bidirectional=True, batch_first=True, **options))


_GATES = {f"inner.weight_{part}_l{k}{end}": (0, 1) for k in (0, 1) for end in ("", "_reverse") for part in ("ih", "hh")}
_ONE_GATE = dict.fromkeys(_GATES, (0,))

ZOO: dict[str, Entry] = {
    "linear": Entry(lambda: nn.Linear(6, 5), vectors(), {"weight": (0,)}),
    "subclass": Entry(lambda: nn.Sequential(OwnForward(6, 5)), vectors(), {"0": (0,)}),
    "bilinear": Entry(Bilinear, vectors(), {"layer": (0,)}),
    "conv1d": Entry(lambda: nn.Sequential(nn.Conv1d(3, 4, 3)), images(3, 9), {"0": (0,)}),
    "conv2d": Entry(lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), images(), {"0": (0,)}),
    "conv3d": Entry(lambda: nn.Sequential(nn.Conv3d(3, 4, 2)), images(3, 4, 4, 4), {"0": (0,)}),
    "grouped": Entry(lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2)), images(4), {"0": (0, 1)}),
    "depthwise": Entry(lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4)), images(4), {"0": (0,)}),
    "transposed1d": Entry(lambda: nn.Sequential(nn.ConvTranspose1d(3, 4, 3)), images(3, 9), {"0": (1,)}),
    "transposed2d": Entry(lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3)), images(), {"0": (1,)}),
    "transposed3d": Entry(lambda: nn.Sequential(nn.ConvTranspose3d(3, 4, 2)), images(3, 3, 3, 3), {"0": (1,)}),
    "transposed-grouped": Entry(lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, groups=2)), images(4), {"0": (0, 2)}),
    "standardised": Entry(lambda: nn.Sequential(StandardisedConv(3, 4, 3)), images(), {"0": (0,)}),
    "weight-norm": Entry(
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 5))), vectors(), {"0": (0,)}
    ),
    "rnn": Entry(_recurrent(nn.RNN), sequences, _ONE_GATE),
    "lstm": Entry(_recurrent(nn.LSTM), sequences, _GATES),
    "lstm-no-bias": Entry(_recurrent(nn.LSTM, bias=False), sequences, _GATES),
    "lstm-projected": Entry(
        _recurrent(nn.LSTM, proj_size=3),
        sequences,
        _GATES | {f"inner.weight_hr_l{k}{end}": (0,) for k in (0, 1) for end in ("", "_reverse")},
    ),
    "gru": Entry(_recurrent(nn.GRU), sequences, _GATES),
    "rnn-cell": Entry(lambda: Cell(nn.RNNCell(6, 5)), sequences, {"cell.weight_ih": (0,), "cell.weight_hh": (0,)}),
    "lstm-cell": Entry(
        lambda: Cell(nn.LSTMCell(6, 5)), sequences, dict.fromkeys(("cell.weight_ih", "cell.weight_hh"), (0, 1))
    ),
    "gru-cell": Entry(
        lambda: Cell(nn.GRUCell(6, 5)), sequences, dict.fromkeys(("cell.weight_ih", "cell.weight_hh"), (0, 1))
    ),
    "attention": Entry(
        lambda: First(nn.MultiheadAttention(6, 2, batch_first=True), copies=3),
        sequences,
        {"inner.in_proj_weight": (0, 1), "inner.out_proj": (0,)},
    ),
    "attention-separate": Entry(
        OtherSizes,
        sequences,
        {f"attention.{part}_proj_weight": (0,) for part in "qkv"} | {"attention.out_proj": (0,)},
    ),
    "transformer": Entry(
        lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True),
        sequences,
        {"self_attn.in_proj_weight": (0, 1), "self_attn.out_proj": (0,), "linear1": (0,), "linear2": (0,)},
    ),
    "raw-linear": Entry(lambda: Raw((5, 6), F.linear), vectors(), {"w": (0,)}),
    "raw-conv": Entry(lambda: Raw((4, 3, 3, 3), F.conv2d), images(), {"w": (0,)}),
    "raw-matmul": Entry(lambda: Raw((6, 5), torch.matmul), vectors(), {"w": (1,)}),
    "raw-matmul-left": Entry(lambda: Raw((5, 4), lambda x, w: w @ x), sequences, {"w": (0,)}),
    "raw-transposed": Entry(lambda: Raw((5, 6), lambda x, w: x @ w.t()), vectors(), {"w": (0,)}),
    "raw-heads": Entry(
        lambda: Raw((6, 8), lambda x, w: torch.einsum("bi,ihd->bhd", x, w.view(6, 2, 4))), vectors(), {"w": (1, 2)}
    ),
    "raw-experts": Entry(lambda: Raw((2, 6, 5), lambda x, w: torch.bmm(x, w)), sequences, {"w": (0, 2)}),
    "raw-slices": Entry(
        lambda: Raw((9, 6), lambda x, w: F.linear(x, w[:4]).sum() + F.linear(x, w[4:])), vectors(), {"w": (0,)}
    ),
    "outputs-last": Entry(lambda: nn.Sequential(OutputsLast(6, 5)), vectors(), {"0": (1,)}),
    "low-rank": Entry(LowRank, vectors(), {"base": (0,), "up": (0,), "down": (1,)}),
    "tied": Entry(TiedCoder, vectors(), {"encoder": (0,)}),
    "tied-head": Entry(TiedHead, tokens, {"embed": (0,)}),
    "twice": Entry(Twice, vectors(), {"layer": (0,)}),
    "residual": Entry(Residual, images(), {"stem.0": (0,), "body.0": (0,), "head": (0,)}),
}

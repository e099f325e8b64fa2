"""Small models, one for each way channels can belong together, with the groups a reader would write down for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    """Parts by name, and a forward that is a function of them."""

    def __init__(self, use: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.use = use
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.use(self, *inputs)


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and its removable groups: name -> (units, channels of the first producer)."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    groups: dict[str, tuple[int, int]]
    inexact: frozenset[str] = field(default_factory=frozenset)


def images(channels: int = 3, side: int = 8) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(2, channels, side, side)


def vectors(size: int = 5) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(3, size)


def sequences(size: int = 6, length: int = 5) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(2, length, size)


def tokens() -> torch.Tensor:
    return torch.randint(0, 11, (2, 5))


def conv(i: int, o: int, k: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(i, o, k, padding=k // 2, **options)


def noisy(norm: nn.Module) -> nn.Module:
    """A norm whose numbers are not all ones and zeros."""
    with torch.no_grad():
        for tensor in (*norm.parameters(), *norm.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(torch.rand_like(tensor) + 0.5)
    return norm


def pooled(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.head(x.mean((2, 3)))


# --- attention, written out -------------------------------------------------------------------------------------


def _split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _separate(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.embed(x)
    q, k, v = (_split_heads(part(x), 4) for part in (m.q, m.k, m.v))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return m.head(m.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


def _packed(m: Net, x: torch.Tensor) -> torch.Tensor:
    b, t, c = x.shape
    q, k, v = m.qkv(x).reshape(b, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
    return m.head(m.out(x))


def _chunked(m: Net, x: torch.Tensor) -> torch.Tensor:
    """One head of many channels: queries and keys shrink together, values by themselves."""
    q, k, v = m.qkv(x).chunk(3, dim=-1)
    return m.head(m.out(F.scaled_dot_product_attention(q, k, v)))


def _einsum(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k = (part(x).unflatten(-1, (2, 4)) for part in (m.q, m.k))
    scores = torch.einsum("b q h d, b k h d -> b h q k", q, k)
    table = m.bias[m.index.view(-1)].view(5, 5, 2).permute(2, 0, 1)
    scores = (scores + table.unsqueeze(0)).softmax(-1)
    v = m.v(x).unflatten(-1, (2, 4))
    return m.head(torch.einsum("bhqk,bkhd->bqhd", scores, v).flatten(2))


def linears(**sizes: tuple[int, int]) -> dict[str, nn.Module]:
    return {name: nn.Linear(*size) for name, size in sizes.items()}


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
    return Net(
        lambda m, x: m.head(m.layer(m.embed(x) + m.position)[:, 0]),
        embed=nn.Linear(6, 8),
        position=nn.Parameter(torch.randn(1, 5, 8)),
        layer=layer,
        head=nn.Linear(8, 4),
    )


def _attention(heads: int = 2, **options: Any) -> nn.Module:
    def use(m: Net, x: torch.Tensor) -> Any:
        x = m.embed(x)
        mixed, weights = m.attention(x, x, x, **options)
        return m.head(mixed), weights

    return Net(
        use, embed=nn.Linear(6, 8), attention=nn.MultiheadAttention(8, heads, batch_first=True), head=nn.Linear(8, 4)
    )


# --- convolutions -----------------------------------------------------------------------------------------------


def _shuffle(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    b, c, h, w = x.shape
    x = x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)
    one, two = x.chunk(2, dim=1)
    return m.head(torch.cat([one, m.branch(two)], 1).mean((2, 3)))


def _gate(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    x = x * torch.sigmoid(m.up(F.relu(m.down(F.adaptive_avg_pool2d(x, 1)))))
    return pooled(m, x * torch.sigmoid(m.place(x)))


def _mixer(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.embed(x)
    x = x + m.tokens_out(F.gelu(m.tokens_in(x.transpose(1, 2)))).transpose(1, 2)
    x = x + m.out(F.gelu(m.inner(x)))
    return m.head(x.mean(1))


def _recurrent(kind: type[nn.RNNBase], **options: Any) -> Callable[[], nn.Module]:
    return lambda: Net(
        lambda m, x: m.head(m.layer(m.embed(x))[0][:, -1]),
        embed=nn.Linear(6, 7),
        layer=kind(7, 6, num_layers=2, bidirectional=True, batch_first=True, **options),
        head=nn.Linear(2 * options.get("proj_size", 6), 4),
    )


def _cells(m: Net, x: torch.Tensor) -> torch.Tensor:
    h, c = (part(x[:, 0]) for part in (m.first_h, m.first_c))
    for step in x.unbind(1):
        h, c = m.cell(step, (h, c))
    return m.head(h)


def _tied() -> nn.Module:
    net = Net(
        lambda m, t: m.head(m.out(torch.tanh(m.inner(m.embed(t))))),
        embed=nn.Embedding(11, 8),
        inner=nn.Linear(8, 6),
        out=nn.Linear(6, 8),
        head=nn.Linear(8, 11, bias=False),
    )
    net.head.weight = net.embed.weight
    return net


_PLAIN = {"stem": (8, 8)}

CASES: dict[str, Case] = {
    "chain": Case(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)),
        vectors(),
        {"0": (8, 8), "2": (6, 6)},
    ),
    "residual": Case(
        lambda: Net(
            lambda m, x: pooled(m, (y := m.stem(x)) + m.body(y)), stem=conv(3, 8), body=conv(8, 8), head=nn.Linear(8, 4)
        ),
        images(),
        _PLAIN,
    ),
    "batch-norm": Case(
        lambda: Net(
            lambda m, x: pooled(m, F.relu(m.norm(m.stem(x)))),
            stem=conv(3, 8, bias=False),
            norm=noisy(nn.BatchNorm2d(8)),
            head=nn.Linear(8, 4),
        ),
        images(),
        _PLAIN,
    ),
    "instance-norm-prelu": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.act(m.norm(m.stem(x))) ** 2),
            stem=conv(3, 8),
            norm=noisy(nn.InstanceNorm2d(8, affine=True)),
            act=nn.PReLU(8),
            head=nn.Linear(8, 4),
        ),
        images(),
        _PLAIN,
    ),
    "group-norm-many": Case(  # whole groups leave, exactly
        lambda: Net(
            lambda m, x: pooled(m, F.relu(m.norm(m.stem(x)))),
            stem=conv(3, 8),
            norm=noisy(nn.GroupNorm(4, 8)),
            head=nn.Linear(8, 4),
        ),
        images(),
        {"stem": (4, 8)},
    ),
    "group-norm-few": Case(  # the same place leaves every group, and the statistics with it
        lambda: Net(
            lambda m, x: pooled(m, F.relu(F.group_norm(m.stem(x), 2, m.scale))),
            stem=conv(3, 8),
            scale=nn.Parameter(torch.rand(8)),
            head=nn.Linear(8, 4),
        ),
        images(),
        {"stem": (4, 8)},
        frozenset({"stem"}),
    ),
    "layer-norm": Case(
        lambda: Net(
            lambda m, x: m.head(F.layer_norm(m.norm(m.stem(x)), (8,), m.scale)),
            stem=nn.Linear(6, 8),
            norm=noisy(nn.LayerNorm(8)),
            scale=nn.Parameter(torch.rand(8)),
            head=nn.Linear(8, 4),
        ),
        sequences(),
        _PLAIN,
        frozenset({"stem"}),
    ),
    "rms-norm": Case(
        lambda: nn.Sequential(nn.Linear(5, 8), noisy(nn.RMSNorm(8)), nn.Linear(8, 4)),
        vectors(),
        {"0": (8, 8)},
        frozenset({"0"}),
    ),
    "concatenation": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.last(torch.cat([m.one(x), x, m.two(x)], 1))),
            one=conv(3, 6),
            two=conv(3, 4, 1),
            last=conv(13, 8, 1),
            head=nn.Linear(8, 4),
        ),
        images(),
        {"one": (6, 6), "two": (4, 4), "last": (8, 8)},
    ),
    "slices": Case(  # borders of a slice move with what leaves before them
        lambda: Net(
            lambda m, x: m.head((y := m.stem(x))[:, 2:6] * y.narrow(1, 6, 4)) + m.other(y[:, :2]),
            stem=nn.Linear(5, 10),
            head=nn.Linear(4, 4),
            other=nn.Linear(2, 4),
        ),
        vectors(),
        {"stem": (2, 2), "stem#2": (4, 8)},
    ),
    "split": Case(
        lambda: Net(
            lambda m, x: (lambda a, b, c: m.head(a * torch.sigmoid(b)) + m.other(c))(*m.stem(x).split([4, 4, 3], -1)),
            stem=nn.Linear(5, 11),
            head=nn.Linear(4, 4),
            other=nn.Linear(3, 4),
        ),
        vectors(),
        {"stem": (4, 8), "stem#2": (3, 3)},
    ),
    "glu": Case(
        lambda: Net(lambda m, x: m.head(F.glu(m.stem(x))), stem=nn.Linear(5, 8), head=nn.Linear(4, 4)),
        vectors(),
        {"stem": (4, 8)},
    ),
    "flatten": Case(  # a channel is many columns of the layer that reads it
        lambda: Net(
            lambda m, x: m.head(torch.flatten(F.max_pool2d(m.stem(x), 2), 1)), stem=conv(3, 8), head=nn.Linear(128, 4)
        ),
        images(),
        _PLAIN,
    ),
    "literal-reshape": Case(
        lambda: Net(
            lambda m, x: m.head(m.stem(x).reshape(x.shape[0], 8, 64).permute(0, 2, 1)),
            stem=conv(3, 8),
            head=nn.Linear(8, 4),
        ),
        images(),
        _PLAIN,
    ),
    "gates": Case(
        lambda: Net(
            _gate, stem=conv(3, 8), down=conv(8, 3, 1), up=conv(3, 8, 1), place=conv(8, 1, 1), head=nn.Linear(8, 4)
        ),
        images(),
        {"stem": (8, 8), "down": (3, 3)},
    ),
    "depthwise": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.deep(m.stem(x))),
            stem=conv(3, 6),
            deep=conv(6, 12, groups=6),
            head=nn.Linear(12, 4),
        ),
        images(),
        {"stem": (6, 6)},
    ),
    "grouped-few": Case(  # two groups: the same place leaves each
        lambda: Net(
            lambda m, x: pooled(m, m.body(m.stem(x))),
            stem=conv(3, 8),
            body=conv(8, 12, groups=2),
            head=nn.Linear(12, 4),
        ),
        images(),
        {"stem": (4, 8), "body": (6, 12)},
    ),
    "grouped-many": Case(  # four groups of two: whole groups leave
        lambda: Net(
            lambda m, x: pooled(m, m.body(m.stem(x))),
            stem=conv(3, 8),
            body=conv(8, 12, groups=4),
            head=nn.Linear(12, 4),
        ),
        images(),
        {"stem": (4, 8)},
    ),
    "grouped-function": Case(
        lambda: Net(
            lambda m, x: pooled(m, F.conv2d(m.stem(x), m.weight, groups=2)),
            stem=conv(3, 8),
            weight=nn.Parameter(torch.randn(6, 4, 3, 3)),
            head=nn.Linear(6, 4),
        ),
        images(),
        {"stem": (4, 8), "weight": (3, 6)},
    ),
    "transposed": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.body(m.stem(x))),
            stem=conv(3, 8),
            body=nn.ConvTranspose2d(8, 6, 2, 2),
            head=nn.Linear(6, 4),
        ),
        images(),
        {"stem": (8, 8), "body": (6, 6)},
    ),
    "transposed-grouped-few": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.body(m.stem(x))),
            stem=conv(3, 8),
            body=nn.ConvTranspose2d(8, 12, 3, groups=2),
            head=nn.Linear(12, 4),
        ),
        images(),
        {"stem": (4, 8), "body": (6, 6)},
    ),
    "transposed-grouped-many": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.body(m.stem(x))),
            stem=conv(3, 8),
            body=nn.ConvTranspose2d(8, 12, 3, groups=4),
            head=nn.Linear(12, 4),
        ),
        images(),
        {"stem": (4, 8)},
    ),
    "channel-shuffle": Case(
        lambda: Net(_shuffle, stem=conv(3, 8), branch=conv(4, 6), head=nn.Linear(10, 4)),
        images(),
        {"stem": (2, 4), "stem#2": (2, 4), "branch": (6, 6)},
    ),
    "channel-shuffle-module": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.shuffle(m.stem(x))),
            stem=conv(3, 8),
            shuffle=nn.ChannelShuffle(2),
            head=nn.Linear(8, 4),
        ),
        images(),
        {"stem": (4, 8)},
    ),
    "pixel-shuffle": Case(
        lambda: Net(
            lambda m, x: pooled(m, m.last(F.pixel_shuffle(m.stem(x), 2))),
            stem=conv(3, 16),
            last=conv(4, 6),
            head=nn.Linear(6, 4),
        ),
        images(),
        {"stem": (4, 16), "last": (6, 6)},
    ),
    "patches": Case(
        lambda: Net(
            lambda m, x: m.head(
                torch.cat([m.token.expand(x.shape[0], -1, -1), m.stem(x).flatten(2).transpose(1, 2)], 1) + m.position
            ),
            stem=nn.Conv2d(3, 8, 4, 4),
            token=nn.Parameter(torch.randn(1, 1, 8)),
            position=nn.Parameter(torch.randn(1, 5, 8)),
            head=nn.Linear(8, 4),
        ),
        images(),
        {"stem": (8, 8)},
    ),
    "unfold": Case(
        lambda: Net(
            lambda m, x: m.head(F.unfold(m.stem(x), 2, stride=2).transpose(1, 2)),
            stem=conv(3, 6),
            head=nn.Linear(24, 4),
        ),
        images(),
        {"stem": (6, 6)},
    ),
    "layer-scale": Case(
        lambda: Net(
            lambda m, x: m.head((y := m.stem(x)) + m.scale * m.body(y)),
            stem=nn.Linear(5, 8),
            body=nn.Linear(8, 8),
            scale=nn.Parameter(torch.rand(8)),
            head=nn.Linear(8, 4),
        ),
        vectors(),
        _PLAIN,
    ),
    "sum-over-channels": Case(
        lambda: Net(
            lambda m, x: m.head(x) + m.stem(x).pow(2).sum(1, keepdim=True), stem=nn.Linear(5, 8), head=nn.Linear(5, 4)
        ),
        vectors(),
        _PLAIN,
    ),
    "mean-over-channels": Case(
        lambda: Net(
            lambda m, x: m.head(x) + m.stem(x).mean(-1, keepdim=True), stem=nn.Linear(5, 8), head=nn.Linear(5, 4)
        ),
        vectors(),
        _PLAIN,
        frozenset({"stem"}),
    ),
    "bilinear": Case(
        lambda: Net(
            lambda m, x: m.head(m.both(m.one(x), m.two(x))),
            both=nn.Bilinear(6, 4, 5),
            **linears(one=(5, 6), two=(5, 4), head=(5, 4)),
        ),
        vectors(),
        {"one": (6, 6), "two": (4, 4), "both": (5, 5)},
    ),
    "low-rank": Case(
        lambda: Net(
            lambda m, x: m.head(F.linear(x, m.base + m.up @ m.down)),
            base=nn.Parameter(torch.randn(6, 5)),
            up=nn.Parameter(torch.randn(6, 3)),
            down=nn.Parameter(torch.randn(3, 5)),
            head=nn.Linear(6, 4),
        ),
        vectors(),
        {"base": (6, 6), "down": (3, 3)},
    ),
    "weight-norm": Case(
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, 4)),
        vectors(),
        {"0": (8, 8)},
    ),
    "attention-separate": Case(
        lambda: Net(_separate, **linears(embed=(6, 6), q=(6, 8), k=(6, 8), v=(6, 12), out=(12, 7), head=(7, 4))),
        sequences(),
        {"embed": (6, 6), "q": (4, 8), "out": (7, 7)},
    ),
    "attention-packed": Case(
        lambda: Net(_packed, **linears(qkv=(8, 24), out=(8, 7), head=(7, 4))),
        sequences(8),
        {"qkv": (4, 24), "out": (7, 7)},
    ),
    "attention-one-head": Case(
        lambda: Net(_chunked, **linears(qkv=(6, 24), out=(8, 7), head=(7, 4))),
        sequences(),
        {"qkv": (8, 16), "qkv#2": (8, 8), "out": (7, 7)},
    ),
    "attention-einsum": Case(
        lambda: Net(
            _einsum,
            **linears(q=(6, 8), k=(6, 8), v=(6, 8), head=(8, 4)),
            bias=nn.Parameter(torch.randn(9, 2)),
            index=nn.Buffer(torch.arange(25) % 9),
        ),
        sequences(),
        {"q": (2, 8)},
    ),
    "attention-module": Case(
        _attention,
        sequences(),
        {"embed": (8, 8), "attention.in_proj_weight": (2, 24), "attention.out_proj": (8, 8)},
        frozenset({"attention.in_proj_weight"}),
    ),
    "attention-module-fast": Case(
        lambda: _attention(4, need_weights=False),
        sequences(),
        {"embed": (8, 8), "attention.in_proj_weight": (4, 24), "attention.out_proj": (8, 8)},
    ),
    "transformer": Case(
        _encoder,
        sequences(),
        {"embed": (8, 8), "layer.self_attn.in_proj_weight": (2, 24), "layer.linear1": (12, 12)},
        frozenset({"embed"}),
    ),
    "mixer": Case(
        lambda: Net(
            _mixer,
            **linears(embed=(6, 8), tokens_in=(5, 7), tokens_out=(7, 5), inner=(8, 10), out=(10, 8), head=(8, 4)),
        ),
        sequences(),
        {"embed": (8, 8), "tokens_in": (7, 7), "inner": (10, 10)},
    ),
    "two-axes-flattened": Case(  # hidden tokens and channels in one axis: each may leave by itself
        lambda: Net(
            lambda m, x: m.head(m.tokens_in(m.embed(x).transpose(1, 2)).flatten(1)),
            **linears(embed=(6, 4), tokens_in=(5, 3), head=(12, 4)),
        ),
        sequences(),
        {"embed": (4, 4), "tokens_in": (3, 3)},
    ),
    "rnn": Case(_recurrent(nn.RNN), sequences(), {"embed": (7, 7), "layer.weight_ih_l0": (6, 6)}),
    "lstm": Case(_recurrent(nn.LSTM), sequences(), {"embed": (7, 7), "layer.weight_ih_l0": (6, 24)}),
    "lstm-projected": Case(
        _recurrent(nn.LSTM, proj_size=3),
        sequences(),
        {"embed": (7, 7), "layer.weight_ih_l0": (6, 24), "layer.weight_hr_l0": (3, 3)},
    ),
    "gru": Case(_recurrent(nn.GRU), sequences(), {"embed": (7, 7), "layer.weight_ih_l0": (6, 18)}),
    "lstm-cell": Case(
        lambda: Net(_cells, cell=nn.LSTMCell(6, 5), **linears(first_h=(6, 5), first_c=(6, 5), head=(5, 4))),
        sequences(),
        {"first_h": (5, 5)},
    ),
    "embedding-tied": Case(_tied, tokens, {"embed": (8, 8), "inner": (6, 6)}),
    "used-twice": Case(
        lambda: Net(
            lambda m, x: m.head(m.inner(torch.tanh(m.inner(m.stem(x))))),
            **linears(stem=(5, 8), inner=(8, 8), head=(8, 4)),
        ),
        vectors(),
        {"stem": (8, 8)},
    ),
    "dropout": Case(
        lambda: Net(
            lambda m, x: m.head(F.dropout(m.drop(m.stem(x)), 0.3, m.training)),
            stem=nn.Linear(5, 8),
            drop=nn.Dropout(0.2),
            head=nn.Linear(8, 4),
        ),
        vectors(),
        _PLAIN,
    ),
    "zeroed-in-place": Case(  # Swin v2's key bias: nothing reads the result of zero_(), and it matters
        lambda: Net(
            _zeroed, weight=nn.Parameter(torch.randn(8, 5)), bias=nn.Parameter(torch.randn(8)), head=nn.Linear(8, 4)
        ),
        vectors(),
        {"weight": (4, 4), "weight#2": (4, 4)},
    ),
    "written-over": Case(
        lambda: Net(_written_over, stem=nn.Linear(5, 8), other=nn.Linear(5, 4), head=nn.Linear(8, 4)),
        vectors(),
        {"stem": (4, 4), "stem#2": (4, 4)},
    ),
}


def _written_over(m: Net, x: torch.Tensor) -> torch.Tensor:
    y = m.stem(x).clone()
    y[:, :4] = m.other(x)
    return m.head(y)


def _zeroed(m: Net, x: torch.Tensor) -> torch.Tensor:
    bias = m.bias.clone()
    bias[2:6].zero_()
    return m.head(F.linear(x, m.weight, bias))


class Strange(nn.Module):
    """Its forward asks for a tensor's contents: an opaque leaf."""

    def __init__(self, inputs: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.layer(x).detach().numpy())

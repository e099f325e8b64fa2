"""Models in the way people write them, small: states that begin with zeros, einops, messages along edges, and the like.

Each broke the coupling once, or cost it channels it could have had.
"""

from __future__ import annotations

from typing import Any

import torch
from channels import CASES, Case, Net, conv, images, linears, pooled, sequences, vectors
from einops import rearrange
from einops.layers.torch import Rearrange
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# --- states that begin with zeros -------------------------------------------------------------------------------


DEVICE = torch.device("cpu")


def _tutorial(m: Net, x: torch.Tensor) -> torch.Tensor:
    h0 = torch.zeros(2, x.size(0), 6, dtype=x.dtype).to(DEVICE)
    c0 = torch.zeros(2, x.size(0), 6, dtype=x.dtype).to(DEVICE)
    return m.head(m.lstm(x, (h0, c0))[0][:, -1, :])


def _read_as_long_as_it_is(m: Net, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    packed = pack_padded_sequence(m.embed(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
    out, (h, _) = m.lstm(packed)
    out, _ = pad_packed_sequence(out, batch_first=True)
    return m.head(torch.cat((h[-2], h[-1]), 1)) + m.other(out).mean(1)


def _read_in_order(m: Net, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Samples sorted by length, as the oldest of such code wants them."""
    packed = pack_padded_sequence(m.embed(x), lengths, batch_first=True)
    return m.head(m.lstm(packed)[1][0][-1])


def _numbers_in_a_tensor(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Both halves of a layer, cut where a tensor says, as WaveGlow's scripted gate does."""
    half = torch.IntTensor([8])[0]
    h = m.both(x)
    return m.head(torch.tanh(h[:, :half]) * torch.sigmoid(h[:, half:]))


def _latent(m: Net, x: torch.Tensor) -> Any:
    """A variational autoencoder's divergence: the sum of exponentials counts every channel."""
    mean, spread = m.mean(x), m.spread(x)
    return m.head(mean + torch.exp(spread)), (mean.square() + spread.exp() - spread - 1).sum(1)


def _scale_of_a_size(m: Net, x: torch.Tensor) -> torch.Tensor:
    """A size that became a tensor, as DeBERTa scales attention."""
    q, k = m.q(x), m.k(x)
    scores = (q @ k.transpose(1, 2) / torch.sqrt(torch.tensor(q.size(-1), dtype=torch.float))).softmax(-1)
    return m.head(scores @ x)


def _as_many_as_are_positive(m: Net, x: torch.Tensor) -> torch.Tensor:
    """The number of rows depends on values, which other widths change."""
    h = torch.relu(m.both(x))
    rows = (h.sum(1) > 3 * h.sum(1).mean().tanh()).nonzero().squeeze(1)
    return m.head(h + h[rows].mean(0))


def _steps(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = x.new_zeros(x.shape[0], 6)
    for step in range(x.shape[1]):
        h = m.cell(x[:, step], h)
    return m.head(h)


def _scan(m: Net, x: torch.Tensor) -> torch.Tensor:
    """A state space, step by step, as Mamba's is written."""
    b, length, _ = x.shape
    x, gate = m.both(x).split([8, 8], dim=-1)
    rate, b_in, c_out = m.read(x).split([2, 3, 3], dim=-1)
    rate = F.softplus(m.rate(rate))
    decay = torch.exp(torch.einsum("bld,dn->bldn", rate, -torch.exp(m.a)))
    enters = torch.einsum("bld,bln,bld->bldn", rate, b_in, x)
    state, seen = torch.zeros((b, 8, 3), dtype=x.dtype), []
    for i in range(length):
        state = decay[:, i] * state + enters[:, i]
        seen.append(torch.einsum("bdn,bn->bd", state, c_out[:, i]))
    return m.head(m.out(torch.stack(seen, 1) * F.silu(gate)).mean(1))


def _conv_lstm(m: Net, x: torch.Tensor) -> torch.Tensor:
    h, c = (torch.zeros(x.shape[0], 4, 8, 8, dtype=x.dtype) for _ in range(2))
    for _ in range(2):
        i, f, o, g = torch.split(m.cell(torch.cat([x, h], 1)), 4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return pooled(m, h)


# --- attention --------------------------------------------------------------------------------------------------


def _einops_heads(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Heads put into the batch, as the oldest of such code does."""
    q, k, v = (rearrange(t, "b n (h d) -> (b h) n d", h=4) for t in m.qkv(x).chunk(3, dim=-1))
    scores = torch.einsum("b i d, b j d -> b i j", q, k).softmax(-1)
    out = torch.einsum("b i j, b j d -> b i d", scores, v)
    return m.head(m.out(rearrange(out, "(b h) n d -> b n (h d)", h=4)))


def _dots(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = rearrange(m.qkv(x), "b n (three h d) -> three b h n d", three=3, h=4)
    scores = torch.einsum("... i d, ... j d -> ... i j", q, k).softmax(-1)
    return m.head(rearrange(torch.einsum("...ij,...jd->...id", scores, v), "b h n d -> b n (h d)"))


def _grouped_queries(m: Net, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (part(x).unflatten(-1, (-1, 2)).transpose(1, 2) for part in (m.q, m.k, m.v))
    return m.head(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))


def _features_of_heads(m: Net, x: torch.Tensor) -> torch.Tensor:
    """A table written out for every head: heads cannot leave without it, the channels of all heads can."""
    q = m.q(x).unflatten(-1, (2, 4)).transpose(1, 2)
    table = m.table.expand(q.shape[0], 2, -1, -1)
    return m.head(torch.einsum("...id,...jd->...ij", q, table).transpose(1, 2).flatten(2))


# --- convolutions -----------------------------------------------------------------------------------------------


def _cbam(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    seen = torch.cat([torch.mean(x, dim=1, keepdim=True), torch.max(x, dim=1, keepdim=True)[0]], dim=1)
    return pooled(m, x * m.look(seen).sigmoid())


def _segnet(m: Net, x: torch.Tensor) -> torch.Tensor:
    x, places = F.max_pool2d(m.stem(x), 2, return_indices=True)
    return m.last(m.unpool(m.body(x), places))


def _looking(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    theta = m.theta(x.mean((2, 3))).view(-1, 2, 3)
    return pooled(m, F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False))


def _kernel_per_sample(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    b, c, h, w = x.shape
    kernels = torch.mm(m.mix(x.mean((2, 3))).softmax(1), m.kernels.view(3, -1)).view(-1, c, 3, 3)
    return pooled(m, F.conv2d(x.view(1, -1, h, w), kernels, padding=1, groups=b).view(b, 6, h, w))


def _blurred(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    return pooled(m, F.conv2d(x, m.blur, stride=2, groups=x.shape[1]))


def _gated_residual(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Rows of a cell's output, put back into the shape of what went in."""
    x = m.stem(x)
    y = m.body(x)
    return m.head(m.cell(y.flatten(0, 1), x.flatten(0, 1)).reshape_as(y))


def _standardised(m: Net, x: torch.Tensor) -> torch.Tensor:
    weight = m.weight - m.weight.mean(dim=(1, 2, 3), keepdim=True)
    spread = weight.view(weight.size(0), -1).std(dim=1).view(-1, 1, 1, 1)
    return pooled(m, F.conv2d(m.stem(x), weight / (spread + 1e-5).expand_as(weight)))


# --- graphs, sets, tables ---------------------------------------------------------------------------------------


def _messages(m: Net, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    sent = nodes @ m.weight
    return m.head(torch.zeros_like(sent).index_add_(0, edges[1], sent[edges[0]]).relu())


def _sums_of_neighbours(m: Net, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
    """The same by scatter_add, with an index for every place, as graph libraries do it; and back by gather."""
    sent = (nodes @ m.weight)[edges[0]]
    total = sent.new_zeros(nodes.size(0), sent.size(1))
    total = total.scatter_add_(0, edges[1].view(-1, 1).expand_as(sent), sent)
    return m.head(total + total.gather(0, edges[0].unsqueeze(-1).expand(-1, 8)).mean(0))


def _experts(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Experts that get what a router sends them, which may be nothing."""
    chosen, total = (x[:, 0] > 1e6).long(), torch.zeros_like(x)
    for index, expert in enumerate((m.one, m.two)):
        (mine,) = torch.where(chosen == index)
        total.index_add_(0, mine, expert(x[mine]))
    return m.head(total)


def _best(m: Net, x: torch.Tensor) -> torch.Tensor:
    x = m.stem(x)
    return m.head(x.topk(2, dim=1)[0].sum(1) + x.sort(dim=1).values[:, 0] + x.median(dim=1).values)


def _alike(m: Net, x: torch.Tensor) -> Any:
    one, two = m.stem(x), m.stem(-x)
    return m.cosine(one, two), F.pairwise_distance(one, two, keepdim=True)


AS_WRITTEN: dict[str, Case] = {
    "tutorial-lstm": Case(
        lambda: Net(_tutorial, lstm=nn.LSTM(6, 6, 2, batch_first=True), head=nn.Linear(6, 4)),
        sequences(),
        {"lstm.weight_ih_l0": (6, 24)},
    ),
    "packed": Case(
        lambda: Net(
            _read_as_long_as_it_is,
            embed=nn.Linear(6, 7),
            lstm=nn.LSTM(7, 6, 2, batch_first=True, bidirectional=True),
            **linears(head=(12, 4), other=(12, 4)),
        ),
        lambda: (torch.randn(2, 5, 6), torch.tensor([3, 5])),
        {"embed": (7, 7), "lstm.weight_ih_l0": (6, 24)},
    ),
    "packed-in-order": Case(
        lambda: Net(_read_in_order, embed=nn.Linear(6, 7), lstm=nn.LSTM(7, 6, batch_first=True), head=nn.Linear(6, 4)),
        lambda: (torch.randn(3, 5, 6), torch.tensor([4, 4, 4])),
        {"embed": (7, 7), "lstm.weight_ih_l0": (6, 24)},
    ),
    "numbers-in-a-tensor": Case(
        lambda: Net(_numbers_in_a_tensor, **linears(both=(5, 16), head=(8, 4))), vectors(), {"both": (8, 16)}
    ),
    "divergence": Case(
        lambda: Net(_latent, **linears(mean=(5, 6), spread=(5, 6), head=(6, 4))),
        vectors(),
        {"mean": (6, 6)},
        frozenset({"mean"}),
    ),
    "scale-of-a-size": Case(
        lambda: Net(_scale_of_a_size, **linears(q=(6, 8), k=(6, 8), head=(6, 4))), sequences(), {"q": (8, 8)}
    ),
    "as-many-as-are-positive": Case(
        lambda: Net(_as_many_as_are_positive, **linears(both=(5, 16), head=(16, 4))),
        lambda: torch.randn(12, 5),
        {"both": (16, 16)},
    ),
    "cell-from-zeros": Case(
        lambda: Net(_steps, cell=nn.GRUCell(6, 6), head=nn.Linear(6, 4)), sequences(), {"cell.weight_ih": (6, 18)}
    ),
    "state-space": Case(
        lambda: Net(
            _scan,
            a=nn.Parameter(torch.rand(8, 3)),
            **linears(both=(6, 16), read=(8, 8), rate=(2, 8), out=(8, 7), head=(7, 4)),
        ),
        sequences(),
        {"both": (8, 16), "read": (2, 2), "read#2": (3, 6), "out": (7, 7)},
    ),
    "conv-lstm": Case(lambda: Net(_conv_lstm, cell=conv(7, 16), head=nn.Linear(4, 4)), images(), {"cell": (4, 16)}),
    "einops-heads-in-the-batch": Case(
        lambda: Net(_einops_heads, **linears(qkv=(6, 24), out=(8, 7), head=(7, 4))),
        sequences(),
        {"qkv": (4, 24), "out": (7, 7)},
    ),
    "einops-patches": Case(
        lambda: nn.Sequential(
            Rearrange("b c (h p1) (w p2) -> b (h w) (p1 p2 c)", p1=4, p2=4),
            nn.Linear(48, 8),
            nn.GELU(),
            nn.Linear(8, 4),
        ),
        images(),
        {"1": (8, 8)},
    ),
    "einsum-dots": Case(lambda: Net(_dots, **linears(qkv=(6, 24), head=(8, 4))), sequences(), {"qkv": (4, 24)}),
    "grouped-queries": Case(
        lambda: Net(_grouped_queries, **linears(q=(6, 8), k=(6, 4), v=(6, 4), head=(8, 4))), sequences(), {"q": (2, 8)}
    ),
    "table-for-every-head": Case(
        lambda: Net(_features_of_heads, table=nn.Buffer(torch.randn(3, 4)), **linears(q=(6, 8), head=(6, 4))),
        sequences(),
        {"q#2": (3, 6), "table": (3, 3)},  # the first channel of a head stands for it where heads are counted
    ),
    "cbam": Case(
        lambda: Net(_cbam, stem=conv(3, 8), look=conv(2, 1), head=nn.Linear(8, 4)),
        images(),
        {"stem": (8, 8)},
        frozenset({"stem"}),
    ),
    "segnet": Case(
        lambda: Net(_segnet, stem=conv(3, 8), body=conv(8, 8), unpool=nn.MaxUnpool2d(2), last=conv(8, 4)),
        images(),
        {"stem": (8, 8)},
    ),
    "spatial-transformer": Case(
        lambda: Net(_looking, stem=conv(3, 8), theta=nn.Linear(8, 6), head=nn.Linear(8, 4)), images(), {"stem": (8, 8)}
    ),
    "folded": Case(
        lambda: Net(
            lambda m, x: m.last(m.fold(m.mix(m.unfold(m.stem(x))))),
            stem=conv(3, 6),
            unfold=nn.Unfold(2, stride=2),
            mix=nn.Conv1d(24, 20, 1),
            fold=nn.Fold(8, 2, stride=2),
            last=conv(5, 4),
        ),
        images(),
        {"stem": (6, 6), "mix": (5, 20)},
    ),
    "response-norm": Case(
        lambda: nn.Sequential(conv(3, 8), nn.LocalResponseNorm(3), conv(8, 4)),
        images(),
        {"0": (8, 8)},
        frozenset({"0"}),
    ),
    "glu-module": Case(
        lambda: nn.Sequential(conv(3, 8), nn.GLU(dim=1), nn.Softmax2d(), conv(4, 4)),
        images(),
        {"0": (4, 8)},
        frozenset({"0"}),
    ),
    "kernel-per-sample": Case(
        lambda: Net(
            _kernel_per_sample,
            stem=conv(3, 8),
            mix=nn.Linear(8, 3),
            kernels=nn.Parameter(torch.randn(3, 6, 8, 3, 3)),
            head=nn.Linear(6, 4),
        ),
        images(),
        {"mix": (3, 3)},
        frozenset({"mix"}),
    ),
    "blur": Case(
        lambda: Net(_blurred, stem=conv(3, 8), blur=nn.Buffer(torch.rand(8, 1, 3, 3)), head=nn.Linear(8, 4)),
        images(),
        {"stem": (8, 8)},
    ),
    "messages": Case(
        lambda: Net(_messages, weight=nn.Parameter(torch.randn(5, 8)), head=nn.Linear(8, 4)),
        lambda: (torch.randn(8, 5), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 7]])),
        {"weight": (8, 8)},
    ),
    "sums-of-neighbours": Case(
        lambda: Net(_sums_of_neighbours, weight=nn.Parameter(torch.randn(5, 8)), head=nn.Linear(8, 4)),
        lambda: (torch.randn(6, 5), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 2]])),
        {"weight": (8, 8)},
    ),
    "shape-of-another": Case(
        lambda: Net(_gated_residual, cell=nn.GRUCell(8, 8), **linears(stem=(6, 8), body=(8, 8), head=(8, 4))),
        sequences(),
        {"stem": (8, 8)},
    ),
    "spread-over-another": Case(
        lambda: Net(_standardised, stem=conv(3, 8), weight=nn.Parameter(torch.randn(6, 8, 3, 3)), head=nn.Linear(6, 4)),
        images(),
        {"stem": (8, 8), "weight": (6, 6)},
        frozenset({"stem"}),
    ),
    "experts-without-work": Case(
        lambda: Net(
            _experts,
            one=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5)),
            two=nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 5)),
            head=nn.Linear(5, 4),
        ),
        vectors(),
        {"one.0": (8, 8)},
    ),
    "in-order": Case(lambda: Net(_best, stem=nn.Linear(6, 8), head=nn.Linear(8, 4)), sequences(), {"stem": (8, 8)}),
    "compared": Case(
        lambda: Net(_alike, stem=nn.Linear(5, 8), cosine=nn.CosineSimilarity()),
        vectors(),
        {"stem": (8, 8)},
        frozenset({"stem"}),
    ),
    "embedding-bag": Case(
        lambda: nn.Sequential(nn.EmbeddingBag(11, 8), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)),
        lambda: torch.randint(0, 11, (2, 5)),
        {"0.weight": (8, 8), "1": (6, 6)},
    ),
}

ALL_CASES = {**CASES, **AS_WRITTEN}

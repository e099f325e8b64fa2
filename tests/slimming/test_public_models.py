"""Forms found in public repositories, one small model each: planned to half, built, checked, and written as source."""

from __future__ import annotations

import functools
import importlib.util
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from channels import Net, linears
from slim_checks import first_difference, zero_removed
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from dst_analyze import couple_channels, trace_model
from dst_analyze.channels.coupling import example_tensors
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.slimming.planning.evidence import equal_evidence
from dst_analyze.slimming.planning.plan_types import Limits, SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_widths
from dst_analyze.slimming.source.write import write_source
from dst_analyze.slimming.surgery.build import slim
from dst_analyze.slimming.surgery.slim_model import slim_model


def planned(model: nn.Module, example: Any, share: float = 0.5) -> tuple[Any, SlimPlan]:
    traced = trace_model(model, example)
    coupling = couple_channels(traced)
    limits, evidence = Limits(round_to=1), equal_evidence(coupling)
    return traced, plan_widths(traced, coupling, evidence, limits=limits, asked={"params": share})


def halved(model: nn.Module, example: Any, folder: Path) -> SlimPlan:
    """Return a plan for half of the parameters, with all that it promises checked."""
    traced, plan = planned(model.eval(), example)
    coupling = couple_channels(traced)
    built = slim(traced, plan.removal, coupling=coupling)
    assert first_difference(built, traced, plan.removal, coupling=coupling) == ""
    assert sum(p.numel() for p in built.parameters()) == plan.new_params
    assert plan.params == sum(p.numel() for p in model.parameters())
    assert_exact(traced, coupling)
    tensors = traced.inputs.tensors()
    spec = importlib.util.spec_from_file_location("slim_model", write_source(built, folder / "slim_model.py"))
    assert spec is not None
    assert spec.loader is not None
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    again = file.build_model().eval()
    same(built.eval()(*(t.clone() for t in tensors)), again(*(t.clone() for t in tensors)))
    return plan


def assert_exact(traced: Any, coupling: Any) -> None:
    """Check on random removals that the slim model computes what the whole one does with removed channels zeroed."""
    for seed in range(3):
        rng = random.Random(seed)
        groups = [group for group in coupling.removable if not group.inexact]
        removal = {g.name: rng.sample(range(g.width), rng.randint(0, g.width - g.floor)) for g in groups}
        built = slim(traced, removal, coupling=coupling)
        silenced = zero_removed(traced, removal, coupling=coupling)
        for name, parameter in silenced.named_parameters():
            if name.endswith("weight_v"):  # a direction of length zero is none
                parameter.data[parameter == 0] = 1e-6
        same(built.eval()(*example_tensors(traced)), silenced.eval()(*example_tensors(traced)))


def same(one: Any, other: Any) -> None:
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def widths(plan: SlimPlan) -> dict[str, int]:
    return {group.group: group.width for group in plan.groups}


# --- arguments that are no tensors ------------------------------------------------------------------------------


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, flag: bool = True) -> torch.Tensor:
        h = self.a(x).relu() if mask is None else self.a(x).relu() * mask
        return self.b(h * 2 if flag else h)  # type: ignore[no-any-return]


class Added(Optional):
    def forward(self, xs: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        return self.b((self.a(xs[0]) + self.a(xs[1])).relu())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        (Optional, (torch.ones(4, 6), None)),
        (Optional, {"x": torch.ones(4, 6), "flag": False}),
        (Added, ([torch.ones(4, 6), torch.zeros(4, 6)],)),
    ],
)
def test_arguments_may_be_nested_or_no_tensors(kind: type[nn.Module], example: Any, tmp_path: Path) -> None:
    model = kind()
    plan = halved(model, example, tmp_path)
    assert widths(plan) == {"a": 16}
    assert plan.new_macs is not None
    assert plan.new_macs * 16 == plan.macs * plan.groups[0].new_width
    with pytest.raises(OptionError, match="called with more than tensors"):
        slim_model(model, plan)
    assert slim_model(model, plan, example) is not None


# --- weights reached through closures ---------------------------------------------------------------------------


class Closure(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(8, 32), nn.Linear(32, 8), nn.Linear(8, 2)
        self.run = self.made()

    def made(self) -> Callable[..., Any]:
        return lambda x: self.down(self.up(x).relu())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.run(x))


class Method(Closure):
    def made(self) -> Callable[..., Any]:
        return self.helper

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())


class Partial(Closure):
    def made(self) -> Callable[..., Any]:
        return functools.partial(lambda model, x: model.down(model.up(x).relu()), self)


class Nested(Closure):
    def made(self) -> Callable[..., Any]:
        def both(x: torch.Tensor, steps: int = 2) -> torch.Tensor:
            return one[steps - 1](x)

        def first(x: torch.Tensor) -> torch.Tensor:
            return self.down(self.up(x).relu())

        one = {0: first, 1: lambda x: both(x, 1)}
        return both


@pytest.mark.parametrize("kind", [Closure, Method, Partial, Nested])
def test_closures_follow_the_copy(kind: type[nn.Module], tmp_path: Path) -> None:
    model = kind()
    traced, plan = planned(model, torch.randn(2, 8))
    assert traced.coverage.parameters == 1
    assert widths(plan) == {"up": 32, "down": 8}
    assert abs(plan.new_params / sum(p.numel() for p in model.parameters()) - 0.5) < 0.05
    halved(model, torch.randn(2, 8), tmp_path)


OUTSIDE: dict[str, nn.Module] = {}


class Global(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        OUTSIDE["net"] = self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OUTSIDE["net"].inner(x)  # type: ignore[no-any-return, operator]


def test_weights_that_a_copy_cannot_follow_are_refused() -> None:
    with pytest.raises(ModelError, match=r"still reads inner\.weight of the model itself") as caught:
        trace_model(Global(), torch.randn(2, 8))
    assert "test_public_models.py" in caught.value.place


def test_a_budget_is_a_share_of_the_users_parameters() -> None:
    model = Net(lambda m, x: m.b(m.a(x).relu()), **linears(a=(8, 64), b=(64, 4), unused=(8, 40)))
    _, plan = planned(model, torch.randn(2, 8), 0.3)
    whole = sum(p.numel() for p in model.parameters())
    assert plan.params == whole
    assert abs(plan.new_params / whole - 0.3) < 0.02
    assert any("360 parameters take no part in eval mode (unused.weight, unused.bias)" in note for note in plan.notes)


# --- numpy, first axes that are no batch, written inputs ----------------------------------------------------------


@pytest.mark.parametrize("number", [np.float64(4), np.sqrt(16), np.int64(4), np.float32(4)])
def test_numpy_numbers_in_forward(number: Any, tmp_path: Path) -> None:
    model = Net(lambda m, x: m.b(torch.div(m.a(x).relu(), number)), **linears(a=(6, 16), b=(16, 2)))
    assert widths(halved(model, torch.randn(2, 6), tmp_path)) == {"a": 16}


def convolved(m: Net, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
    return adjacency @ m.b((adjacency @ m.a(x)).relu())


def test_the_nodes_of_a_graph_are_not_cut(tmp_path: Path) -> None:
    model = Net(convolved, **linears(a=(6, 16), b=(16, 3)))
    assert widths(halved(model, (torch.randn(7, 6), torch.rand(7, 7)), tmp_path)) == {"a": 16}


def test_the_steps_of_a_sequence_are_not_cut(tmp_path: Path) -> None:
    model = Net(lambda m, x: m.b((m.mask @ m.a(x).flatten(1)).view(5, 3, 16)), **linears(a=(6, 16), b=(16, 2)))
    model.register_buffer("mask", torch.ones(5, 5).tril())
    halved(model, torch.randn(5, 3, 6), tmp_path)


def test_a_forward_may_write_into_its_input(tmp_path: Path) -> None:
    def use(m: Net, x: torch.Tensor) -> torch.Tensor:
        x /= 255
        return m.b(m.a(x).relu())

    example = torch.full((2, 6), 255.0)
    halved(Net(use, **linears(a=(6, 16), b=(16, 2))), example, tmp_path)
    assert torch.equal(example, torch.full((2, 6), 255.0))


# --- computed tensors -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_old_weight_norm(tmp_path: Path) -> None:
    norm: Callable[[nn.Module], nn.Module] = torch.nn.utils.weight_norm
    layers = {"a": norm(nn.Conv1d(4, 16, 3, padding=1)), "b": norm(nn.ConvTranspose1d(16, 12, 4, 2, 1))}
    model = Net(lambda m, x: m.c(F.leaky_relu(m.b(F.leaky_relu(m.a(x))))), **layers, c=norm(nn.Conv1d(12, 2, 3)))
    model(torch.randn(2, 4, 10)).sum().backward()
    assert {"a"} <= widths(halved(model, torch.randn(2, 4, 10), tmp_path)).keys()


@pytest.mark.parametrize("norm", [torch.nn.utils.spectral_norm, torch.nn.utils.parametrizations.spectral_norm])
@pytest.mark.filterwarnings("ignore:.*spectral_norm.*:FutureWarning")
def test_spectral_norm_after_a_step(norm: Callable[[nn.Module], nn.Module]) -> None:
    model = Net(
        lambda m, x: m.d(m.c(m.b(m.a(x).relu()).relu()).relu()).mean(2),
        a=norm(nn.Conv1d(4, 16, 3)), b=nn.Conv1d(16, 12, 1), c=nn.Conv1d(12, 8, 1), d=norm(nn.Conv1d(8, 2, 1)),
    )  # fmt: skip
    model(torch.randn(2, 4, 10)).sum().backward()
    traced, plan = planned(model.eval(), torch.randn(2, 4, 10), 0.7)
    assert widths(plan) == {"b": 12}
    assert_exact(traced, couple_channels(traced))


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 2)
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = [self.a(x).relu()]
        return self.b(self.seen[0])


def test_a_model_that_keeps_an_activation(tmp_path: Path) -> None:
    model = Keeping()
    model(torch.randn(2, 6))
    kept = model.seen[0]
    assert widths(halved(model, torch.randn(2, 6), tmp_path)) == {"a": 16}
    assert model.seen[0] is kept
    assert kept.grad_fn is not None


# --- modules between the layers -----------------------------------------------------------------------------------


class Positions(nn.Module):
    """A table of sines and a dropout; the width is an argument that nothing keeps."""

    def __init__(self, emb_size: int, steps: int = 30) -> None:
        super().__init__()
        rates = torch.exp(-torch.arange(0, emb_size, 2) * np.log(10_000) / emb_size)
        angles = torch.arange(steps)[:, None] * rates
        self.register_buffer("table", torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, None])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x + self.table[: x.size(0)])  # type: ignore[no-any-return, index]


def test_a_table_with_dropout_is_no_black_box(tmp_path: Path) -> None:
    model = Net(
        lambda m, x: m.head(m.norm(m.pos(m.embed(x)) + m.down(m.up(m.pos(m.embed(x))).relu()))),
        embed=nn.Embedding(20, 16), pos=Positions(16), norm=nn.LayerNorm(16),
        **linears(up=(16, 32), down=(32, 16), head=(16, 20)),
    )  # fmt: skip
    assert widths(halved(model, torch.randint(0, 20, (5, 2)), tmp_path)) == {"embed.weight": 16, "up": 32}


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 2)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.roll(self.a(x), 1, 1))  # type: ignore[no-any-return]


def test_a_reason_names_the_users_line_below_decorators() -> None:
    coupling = couple_channels(trace_model(Decorated(), torch.randn(2, 6)))
    assert all(
        "test_public_models.py" in frozen.reason for frozen in coupling.frozen if "an output" not in frozen.reason
    )


# --- axes of length one -------------------------------------------------------------------------------------------


class Selective(nn.Module):
    """A state space whose rate is read from a single channel."""

    def __init__(self, width: int = 8, states: int = 3) -> None:
        super().__init__()
        self.into, self.read, self.rate = nn.Linear(width, 24), nn.Linear(12, 1 + 2 * states), nn.Linear(1, 12)
        self.decay, self.out = nn.Parameter(torch.rand(12, states)), nn.Linear(12, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, gate = self.into(x).chunk(2, -1)
        rate, enters, leaves = self.read(x).split([1, 3, 3], -1)
        rate = F.softplus(self.rate(rate))
        decays = torch.exp(-torch.einsum("bld,dn->bldn", rate, self.decay))
        added = torch.einsum("bld,bln,bld->bldn", rate, enters, x)
        state, seen = torch.zeros(x.shape[0], 12, 3), []
        for step in range(x.shape[1]):
            state = decays[:, step] * state + added[:, step]
            seen.append(torch.einsum("bdn,bn->bd", state, leaves[:, step]))
        return self.out(torch.stack(seen, 1) * F.silu(gate))  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(Selective() for _ in range(3)), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def test_a_rate_of_rank_one_does_not_double_labels(tmp_path: Path) -> None:
    found = widths(halved(Residual(), torch.randn(2, 5, 8), tmp_path))
    assert [found[f"layers.{index}.into"] for index in range(3)] == [12, 12, 12]


# --- operations between layers --------------------------------------------------------------------------------------


def spectral_filter(m: Net, x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft2(m.a(x), dim=(1, 2), norm="ortho")
    return m.b(torch.fft.irfft2(spectrum * 0.5, s=x.shape[1:3], dim=(1, 2), norm="ortho"))


def picked(m: Net, x: torch.Tensor) -> torch.Tensor:
    h = m.a(x)
    order = torch.argsort(x.sum(-1), dim=1)[:, :3]
    return m.b(torch.gather(h, 1, order.unsqueeze(-1).repeat(1, 1, h.shape[-1])))


def picked_by_number(m: Net, x: torch.Tensor) -> torch.Tensor:
    order = torch.argsort(x.sum(-1), dim=1)[:, :3]
    return m.b(m.a(x).gather(1, order[..., None].tile(1, 1, 16)))


def begun_empty(m: Net, x: torch.Tensor) -> torch.Tensor:
    found = torch.tensor([])
    for step in range(2):
        found = torch.cat((found, m.a(x[:, step])), 1)
    return m.b(found.view(len(x), 2, 16))


def heads_first(m: Net, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q, k, v = (part(x).unflatten(-1, (4, 4)).permute(2, 0, 1, 3).flatten(0, 1) for part in (m.q, m.k, m.v))
    scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(mask.repeat(4, 1, 1) == 0, -1e9)
    return m.o(torch.bmm(scores.softmax(-1), v).view(4, *x.shape[:2], 4).permute(1, 2, 0, 3).flatten(2))


def heads_last(m: Net, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    q, k, v = (part(x).unflatten(-1, (4, 4)).transpose(1, 2).flatten(0, 1) for part in (m.q, m.k, m.v))
    scores = torch.bmm(q, k.transpose(1, 2)) + mask.repeat_interleave(4, 0)
    return m.o(torch.bmm(scores.softmax(-1), v).view(len(x), 4, -1, 4).transpose(1, 2).flatten(2))


BETWEEN: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], dict[str, tuple[int, int]], dict[str, int]]] = {
    "a filter of frequencies": (spectral_filter, (torch.randn(2, 6, 6, 8),), {"a": (8, 16), "b": (16, 4)}, {"a": 16}),
    "gather": (picked, (torch.randn(2, 6, 8),), {"a": (8, 16), "b": (16, 4)}, {"a": 16}),
    "gather by a number": (picked_by_number, (torch.randn(2, 6, 8),), {"a": (8, 16), "b": (16, 4)}, {"a": 16}),
    "a list begun empty": (begun_empty, (torch.randn(2, 6, 8),), {"a": (8, 16), "b": (16, 4)}, {"a": 16}),
    "heads before the batch": (
        heads_first,
        (torch.randn(2, 6, 8), torch.ones(2, 6, 6).tril()),
        {"q": (8, 16), "k": (8, 16), "v": (8, 16), "o": (16, 4)},
        {"q": 16},
    ),
    "heads behind the batch": (
        heads_last,
        (torch.randn(2, 6, 8), torch.randn(2, 6, 6)),
        {"q": (8, 16), "k": (8, 16), "v": (8, 16), "o": (16, 4)},
        {"q": 16},
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_channels_pass_what_lies_between_layers(name: str, tmp_path: Path) -> None:
    use, example, layers, expected = BETWEEN[name]
    assert widths(halved(Net(use, **linears(**layers)), example, tmp_path)) == expected


class Waves(nn.Module):
    """Positions computed in forward: sines beside cosines, or in turns."""

    def __init__(self, turns: bool) -> None:
        super().__init__()
        self.turns, self.width = turns, 16
        self.into, self.out = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(-math.log(10_000) * torch.arange(0, self.width, 2, device=x.device).float() / self.width)
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * rates
        waves = angles.sin(), angles.cos()
        places = torch.stack(waves, -1).flatten(-2) if self.turns else torch.cat(waves, -1)
        return self.out(self.into(x) + places)  # type: ignore[no-any-return]


@pytest.mark.parametrize("turns", [False, True])
def test_positions_computed_in_forward_lose_frequencies(turns: bool, tmp_path: Path) -> None:
    model = Waves(turns)
    plan = halved(model, torch.randn(2, 5, 8), tmp_path)
    assert {group.group: group.units for group in plan.groups} == {"into": 8}
    small = slim_model(model, plan)
    assert small(torch.randn(3, 9, 8)).shape == (3, 9, 4)


class Scaled(nn.Module):
    """Attention whose queries and keys are normalised and scaled per head and channel."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 48), nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.rand(2, 4, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        q, k = F.normalize(q, dim=-1) * self.scale[0], F.normalize(k, dim=-1) * (self.scale[1] + 1)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def test_a_scale_per_head_and_channel_leaves_with_its_head(tmp_path: Path) -> None:
    plan = halved(Scaled(), torch.randn(2, 6, 8), tmp_path)
    (group,) = plan.groups
    assert (group.group, group.units) == ("qkv", 4)
    assert "scale" in {name.partition("[")[0] for name in plan.parameters}


# --- heads and groups, or places within them ------------------------------------------------------------------------


def split_in_two(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.a(x).unflatten(-1, (4, 8)).sum(-2)  # type: ignore[no-any-return]


def split_the_other_way(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.a(x).unflatten(-1, (4, 8)).sum(-1)  # type: ignore[no-any-return]


def read_by_one(m: Net, x: torch.Tensor) -> torch.Tensor:
    return m.b(m.a(x).unflatten(-1, (4, 8))).squeeze(-1)  # type: ignore[no-any-return]


def sources(m: Net, x: torch.Tensor) -> torch.Tensor:
    """Two masks over one code, decoded by a layer that both share."""
    code = m.a(x).relu()
    masks = m.c(m.b(code)).unflatten(-1, (2, 32)).relu()
    return m.d(code.unsqueeze(-2) * masks)  # type: ignore[no-any-return]


# What is left of each group, of whose units one stays for the axis that is an output.
SPLIT: dict[str, tuple[Callable[..., Any], dict[str, nn.Module], tuple[int, ...], dict[str, int]]] = {
    "the outer part is summed": (split_in_two, linears(a=(8, 32)), (2, 8), {"a": 3}),
    "the inner part is summed": (split_the_other_way, linears(a=(8, 32)), (2, 8), {"a": 7}),
    "the inner part is read by one layer": (read_by_one, linears(a=(8, 32), b=(8, 1)), (2, 8), {"a": 7}),
    "masks of several sources": (
        sources, linears(a=(8, 32), b=(32, 8), c=(8, 64), d=(32, 5)), (2, 8), {"a": 31, "b": 8},
    ),
    "groups with fixed outputs": (
        lambda m, x: m.b(m.a(x)), {"a": nn.Conv2d(3, 32, 3), "b": nn.Conv2d(32, 8, 3, groups=4)},
        (2, 3, 8, 8), {"a": 8},
    ),
    "groups with one output each": (
        lambda m, x: m.b(m.a(x)), {"a": nn.Conv2d(3, 32, 3), "b": nn.Conv2d(32, 4, 3, groups=4)},
        (2, 3, 8, 8), {"a": 8},
    ),
    "groups with fixed inputs": (
        lambda m, x: m.b(m.a(x)), {"a": nn.Conv2d(4, 32, 3, groups=4), "b": nn.Conv2d(32, 5, 3)},
        (2, 4, 8, 8), {"a": 8},
    ),
    "groups between groups": (
        lambda m, x: m.c(m.b(m.a(x))),
        {"a": nn.Conv1d(3, 32, 3), "b": nn.Conv1d(32, 32, 3, groups=8), "c": nn.Conv1d(32, 8, 1, groups=8)},
        (2, 3, 12),
        {"a": 4, "b": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPLIT)
def test_if_one_granularity_leaves_nothing_the_other_is_tried(name: str, tmp_path: Path) -> None:
    use, layers, shape, expected = SPLIT[name]
    plan = halved(Net(use, **layers), torch.randn(shape), tmp_path)
    assert {group.group: group.units for group in plan.groups} == expected

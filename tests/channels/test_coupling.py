"""Which channels belong together: every rule on a model with known groups, and what is not understood stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch
from channels import CASES, Case, Net, Strange, conv, images, vectors
from channels_as_written import ALL_CASES
from torch import nn
from torch.nn import functional as F
from zoo import ZOO

from dst_analyze import couple_channels
from dst_analyze.channels.contraction import parse_einsum
from dst_analyze.channels.groups import Coupling
from dst_analyze.channels.rule_call import Call, LabelledTensor, register_channel_rule
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.trace import trace_model


def coupling_of(build: Callable[[], nn.Module], inputs: Callable[[], Any]) -> Coupling:
    torch.manual_seed(0)
    return couple_channels(trace_model(build(), inputs()))


def reasons(coupling: Coupling) -> dict[str, str]:
    return {frozen.group: frozen.reason for frozen in coupling.frozen}


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
def test_groups_are_those_a_reader_would_write_down(case: Case) -> None:
    coupling = coupling_of(case.build, case.inputs)
    assert {group.name: (group.width, group.channels) for group in coupling.removable} == case.groups
    assert {group.name for group in coupling.removable if group.inexact} == case.inexact


@pytest.mark.parametrize("name", ZOO)
def test_every_layer_of_the_zoo_is_in_a_group(name: str) -> None:
    traced = trace_model(ZOO[name].build(), ZOO[name].inputs())
    coupling = couple_channels(traced)
    found = {member.layer for group in coupling.groups for member in group.members}
    assert {layer.name for layer in traced.layers} <= found
    assert not {group.name for group in coupling.removable} & {frozen.group for frozen in coupling.frozen}


def test_inputs_and_outputs_stay() -> None:
    coupling = coupling_of(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)), vectors())
    assert [group.name for group in coupling.removable] == ["0"]
    assert reasons(coupling)["2"] == "an output of the model"
    assert "fixed size" in reasons(coupling)["0.weight[1]"]


def test_an_operation_not_in_the_table_freezes_what_it_touches_and_says_where() -> None:
    net = Net(lambda m, x: m.head(torch.cummax(m.stem(x), 1)[0].mean((2, 3))), stem=conv(3, 8), head=nn.Linear(8, 4))
    coupling = coupling_of(lambda: net, images())
    assert coupling.removable == ()
    reason = reasons(coupling)["stem"]
    assert "not understood (cummax at " in reason
    assert "channels.py:" in reason


def test_a_rule_that_raises_freezes_the_channels_of_its_call_only() -> None:
    def use(m: Net, x: torch.Tensor) -> torch.Tensor:
        (places,) = torch.where((y := m.stem(x)) > 0)[1:]
        return m.head(m.inner(y)) + places.sum()

    net = Net(use, stem=nn.Linear(5, 8), inner=nn.Linear(8, 6), head=nn.Linear(6, 4))
    coupling = coupling_of(lambda: net, vectors())
    assert [group.name for group in coupling.removable] == ["inner"]
    assert "used in a way that is not understood" in reasons(coupling)["stem"]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("b i j, b j k", [(2, 3, 4), (2, 4, 5)]),
        ("...ij,...jk->...ik", [(6, 2, 3, 4), (2, 4, 5)]),
        ("...ij,jk", [(6, 2, 3, 4), (4, 5)]),
        ("zA,zb", [(3, 4), (3, 5)]),
        ("i...,i...->...", [(3, 4), (3, 4)]),
    ],
)
def test_an_einsum_spelt_out_is_the_same(equation: str, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(shape) for shape in shapes]
    spelt = parse_einsum(equation, [tensor.ndim for tensor in tensors])
    assert spelt is not None
    inputs, output = spelt
    assert not set("".join(inputs) + output) & set(". ")
    torch.testing.assert_close(
        torch.einsum(f"{','.join(inputs)}->{output}", *tensors), torch.einsum(equation, *tensors)
    )


@pytest.mark.parametrize("equation", ["ii->i", "...i->i", torch.zeros(2)])
def test_an_einsum_that_repeats_or_sums_what_it_does_not_name_is_left_alone(equation: Any) -> None:
    assert parse_einsum(equation, [2]) is None


def test_opaque_leaves_stay_with_all_they_touch() -> None:
    net = nn.Sequential(nn.Linear(5, 8), Strange(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
    traced = trace_model(net, torch.randn(2, 5))
    assert traced.graph.opaque
    coupling = couple_channels(traced)
    assert [group.name for group in coupling.removable] == ["2"]
    assert "not understood (Strange" in reasons(coupling)["0"]


def test_without_a_graph_every_layer_stays() -> None:
    class Refusing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(self.layer(x).detach().numpy())

    traced = trace_model(Refusing(), torch.randn(2, 5))
    assert traced.graph_module is None
    coupling = couple_channels(traced)
    assert coupling.removable == ()
    assert "no graph" in reasons(coupling)[traced.layers[0].name]


def test_a_users_function_is_not_taken_for_elementwise_until_it_is_registered() -> None:
    net = Net(lambda m, x: m.head(torch.special.erfcx(m.stem(x))), stem=nn.Linear(5, 8), head=nn.Linear(8, 4))
    assert "not understood (special_erfcx" in reasons(coupling_of(lambda: net, vectors()))["stem"]

    def same_place(call: Call) -> LabelledTensor:
        return call.out(call.x.families)

    register_channel_rule(torch.special.erfcx, same_place)
    assert [group.name for group in coupling_of(lambda: net, vectors()).removable] == ["stem"]


class Mixing(nn.BatchNorm1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).roll(1, 1)


class Activating(nn.BatchNorm1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


def test_a_users_batch_norm_is_tested_for_separate_channels() -> None:
    for kind, expected in ((Mixing, []), (Activating, ["0"])):
        coupling = coupling_of(lambda kind=kind: nn.Sequential(nn.Linear(5, 8), kind(8), nn.Linear(8, 4)), vectors())
        assert [group.name for group in coupling.removable] == expected


def test_slices_in_steps_stay() -> None:
    net = Net(lambda m, x: m.head(m.stem(x)[:, ::2]), stem=nn.Linear(5, 8), head=nn.Linear(4, 4))
    assert coupling_of(lambda: net, vectors()).removable == ()


def test_a_single_channel_cut_out_of_many_stays() -> None:
    net = Net(lambda m, x: m.head((y := m.stem(x))[:, 1:]) * y[:, :1], stem=nn.Linear(5, 8), head=nn.Linear(7, 4))
    groups = coupling_of(lambda: net, vectors()).removable
    assert [group.width for group in groups] == [7]


def test_constants_beside_heads_fix_the_heads_size_not_their_number() -> None:
    """Rotary embeddings: tables of fixed size meet every head."""

    def use(m: Net, x: torch.Tensor) -> torch.Tensor:
        q = m.q(x).unflatten(-1, (4, 2)).transpose(1, 2) * m.table
        k = m.k(x).unflatten(-1, (4, 2)).transpose(1, 2) * m.table
        v = m.v(x).unflatten(-1, (4, 2)).transpose(1, 2)
        return m.head(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def build() -> nn.Module:
        parts = {name: nn.Linear(6, 8) for name in "qkv"}
        return Net(use, **parts, head=nn.Linear(8, 4), table=nn.Buffer(torch.randn(5, 2)))

    groups = coupling_of(build, lambda: torch.randn(2, 5, 6)).removable
    assert [(group.width, group.channels) for group in groups] == [(4, 8)]


def test_the_coupling_has_a_table_and_a_graph() -> None:
    coupling = coupling_of(CASES["residual"].build, CASES["residual"].inputs)
    graph = coupling.graph()
    assert isinstance(graph, nx.Graph)
    assert set(graph.neighbors("group stem")) >= {"stem", "body", "head"}
    assert graph.edges["group stem", "head"]["role"] == "reads"
    table = coupling.table.set_index("group")
    assert table.loc["stem", "units"] == 8
    assert table.loc["stem", "produced by"] == "stem, body"
    assert [group.name for group in coupling.groups if "body" in group.layers("produces")] == ["stem"]


def test_large_batches_do_not_matter() -> None:
    case = CASES["residual"]
    few, many = (couple_channels(trace_model(case.build(), torch.randn(n, 3, 8, 8))) for n in (2, 9))
    assert [group.units for group in few.groups] == [group.units for group in many.groups]


def test_swin_keeps_heads_whole_and_bias_tables_with_them() -> None:
    models = torchvision_module().models
    net = models.swin_transformer.SwinTransformer(
        patch_size=[4, 4], embed_dim=8, depths=[2], num_heads=[4], window_size=[4, 4], num_classes=5
    )
    coupling = couple_channels(trace_model(net, torch.randn(2, 3, 32, 32)))
    heads = coupling.group("features.1.0.attn.qkv")
    assert (heads.width, heads.channels) == (4, 24)
    assert "features.1.0.attn.relative_position_bias_table" in {member.name for member in heads.members}
    assert coupling.group("features.0.0").inexact  # layer norms
    assert "indexed" in reasons(coupling)["features.1.0.attn.relative_position_bias_table[0]"]

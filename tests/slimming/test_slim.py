"""Slim models: the planned shapes, the right channels, forward and backward, train and eval, at other batch sizes."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from channels import CASES, Case, Net, Strange
from channels_as_written import ALL_CASES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slim_checks import first_difference, planned_shapes, zero_removed
from torch import nn
from torch.utils._pytree import tree_leaves
from zoo import ZOO

from dst_analyze import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.surgery.build import slim

Removal = dict[str, list[int]]


def some(coupling: Coupling, rng: random.Random, *, exact: bool = False) -> Removal:
    """A random number of units of every group."""
    groups = [group for group in coupling.removable if not (exact and group.inexact)]
    return {g.name: rng.sample(range(g.width), rng.randint(0, g.width - g.floor)) for g in groups}


def read(case: Case, seed: int = 0) -> tuple[TracedModel, Coupling]:
    torch.manual_seed(seed)
    traced = trace_model(case.build(), case.inputs())
    return traced, couple_channels(traced)


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
def test_any_removal_gives_the_planned_shapes_and_trains(case: Case) -> None:
    traced, coupling = read(case)
    before = {name: tensor.clone() for name, tensor in traced.model.state_dict().items()}
    for seed in range(4):
        removal = some(coupling, random.Random(seed))
        small = slim(traced, removal, coupling=coupling)
        planned = planned_shapes(coupling, removal)
        for name, tensor in (*small.named_parameters(), *small.named_buffers()):
            assert tuple(tensor.shape) == planned.get(name, tuple(tensor.shape))
        assert first_difference(small, traced, removal, coupling=coupling) == ""
        small.train()
        for repeat in (1, 2):
            inputs = [torch.cat([tensor] * repeat) for tensor in traced.inputs.tensors()]
            outputs = tensors(small(*inputs))
            assert outputs[0].shape[0] == inputs[0].shape[0]
            sum(output.square().mean() for output in outputs).backward()
        assert all(parameter.grad is not None for parameter in small.parameters())
    after = traced.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


# A weight under weight norm cannot be silent: its direction would be zero divided by zero.
AUDIBLE = {name: case for name, case in ALL_CASES.items() if name != "weight-norm"}


@pytest.mark.parametrize("case", AUDIBLE.values(), ids=AUDIBLE.keys())
def test_what_is_left_computes_what_it_computed_among_silent_channels(case: Case) -> None:
    """Shapes can be right with the wrong channels in them: values cannot."""
    traced, coupling = read(case)
    for seed in range(6):
        removal = some(coupling, random.Random(seed), exact=True)
        small = slim(traced, removal, coupling=coupling).double().eval()
        large = zero_removed(traced, removal, coupling=coupling).double().eval()
        inputs = [t.double() if t.is_floating_point() else t for t in traced.inputs.tensors()]
        with torch.no_grad():
            for ours, theirs in zip(tensors(small(*inputs)), tensors(large(*inputs)), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_is_slimmed_as_far_as_it_goes(name: str) -> None:
    torch.manual_seed(0)
    traced = trace_model(ZOO[name].build(), ZOO[name].inputs())
    coupling = couple_channels(traced)
    small = slim(traced, some(coupling, random.Random(1)), coupling=coupling).train()
    sum(output.square().mean() for output in tensors(small(*traced.inputs.tensors()))).backward()


@given(st.randoms(use_true_random=False), st.sampled_from(["slices", "channel-shuffle", "attention-packed", "mixer"]))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_removals_of_intricate_models(rng: random.Random, name: str) -> None:
    traced, coupling = read(CASES[name])
    removal = some(coupling, rng, exact=True)
    small, large = slim(traced, removal, coupling=coupling), zero_removed(traced, removal, coupling=coupling)
    inputs = traced.inputs.tensors()
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(*inputs), large.eval()(*inputs), rtol=1e-4, atol=1e-5)


def test_removing_nothing_changes_nothing() -> None:
    for name in ("transformer", "lstm", "dropout"):
        traced, coupling = read(CASES[name])
        same = slim(traced, {}, coupling=coupling).eval()
        traced.model.eval()
        with torch.no_grad():
            torch.testing.assert_close(same(*traced.inputs.tensors()), traced.inputs.call(traced.model))
        assert list(same.state_dict()) == list(traced.model.state_dict())


def test_a_device_built_into_the_trace_is_the_inputs() -> None:
    """Models are moved: a state made by ``.to(device)`` must not stay behind."""
    traced, coupling = read(ALL_CASES["tutorial-lstm"])
    small = slim(traced, {"lstm.weight_ih_l0": [1, 4]}, coupling=coupling)
    values = [leaf for node in small.graph.nodes for leaf in tree_leaves([node.args, node.kwargs])]
    assert not [value for value in values if isinstance(value, torch.device)]
    assert "device_1 = inputs_0.device" in small.code


def test_layers_say_what_they_are() -> None:
    traced, coupling = read(CASES["grouped-many"])
    small: Any = slim(traced, {"stem": [0, 2]}, coupling=coupling)
    assert (small.stem.out_channels, small.body.in_channels, small.body.out_channels, small.body.groups) == (4, 4, 6, 2)
    assert small.head.in_features == 6
    assert small.meta["was"]["body"] == {"in_channels": 8, "out_channels": 12, "groups": 4}


def test_attention_loses_heads_while_its_embedding_stays() -> None:
    traced, coupling = read(CASES["attention-module-fast"])
    small: Any = slim(traced, {"attention.in_proj_weight": [1, 2]}, coupling=coupling)
    assert isinstance(small.attention, HeadAttention)
    assert (small.attention.num_heads, small.attention.head_dim, small.attention.embed_dim) == (2, 2, 8)
    assert set(small.state_dict()) == set(traced.model.state_dict())


def test_head_attention_computes_what_torchs_attention_computes() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 4, 8), torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    mask = torch.randn(4, 5)
    for batch_first in (True, False):
        theirs = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        ours = HeadAttention(8, 2, 4, 8, batch_first=batch_first)
        ours.load_state_dict(theirs.state_dict())
        q, k = (x, y) if batch_first else (x.transpose(0, 1), y.transpose(0, 1))
        for options in (
            {},
            {"need_weights": False},
            {"key_padding_mask": padding},
            {"attn_mask": mask, "average_attn_weights": False},
            {"attn_mask": mask.repeat(4, 1, 1), "need_weights": False},
            {"attn_mask": mask > 1, "key_padding_mask": padding, "need_weights": False},
            {"attn_mask": mask[:1, :1], "is_causal": True, "need_weights": False},  # the mask is a hint
            {"attn_mask": mask > 1, "key_padding_mask": padding, "is_causal": True, "need_weights": False},
        ):
            for a, b in zip(ours(q, k, k, **options), theirs(q, k, k, **options), strict=True):
                assert (a is None) == (b is None)
                if a is not None and b is not None:
                    torch.testing.assert_close(a, b)
    torch.testing.assert_close(ours(x[0], y[0], y[0])[0], theirs(x[0], y[0], y[0])[0])


def test_a_size_used_as_a_number_stays_what_the_weights_were_trained_with() -> None:
    net = Net(lambda m, x: m.head((y := m.stem(x)) * y.shape[-1] ** -0.5), stem=nn.Linear(5, 8), head=nn.Linear(8, 4))
    traced = trace_model(net, torch.randn(3, 5))
    removal = {"stem": [0, 1, 2]}
    small, large = slim(traced, removal).eval(), zero_removed(traced, removal).eval()
    torch.testing.assert_close(small(*traced.inputs.tensors()), large(*traced.inputs.tensors()))


class HeadsBesideTheBatch(nn.Module):
    """Attention as Bloom has it: a size is the product of the batch and the heads, and another is left open."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 16) for _ in range(3))
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        parts = (layer(x).view(b, t, 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k, v = (part.reshape(b * 4, -1, 4) for part in parts)
        scores = torch.bmm(q, k.transpose(1, 2)).view(b, 4, t, -1).softmax(-1)
        y = torch.bmm(scores.view(b * 4, t, -1), v).view(b, 4, t, 4).transpose(1, 2)
        return self.out(y.reshape(b, t, 16))


def test_a_size_that_is_batch_times_heads_is_no_constant() -> None:
    torch.manual_seed(0)
    traced = trace_model(HeadsBesideTheBatch(), torch.randn(2, 3, 6))
    coupling = couple_channels(traced)
    heads = next(group for group in coupling.removable if group.width == 4)
    removal = {heads.name: [1, 2, 3]}
    small = slim(traced, removal, coupling=coupling).eval()
    large = zero_removed(traced, removal, coupling=coupling).eval()
    assert small.get_submodule("v").out_features == 4
    for shape in ((2, 3, 6), (5, 7, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(small(x), large(x))


class RowByRow(nn.Module):
    """A loop over the samples, which a graph cannot have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.last(self.first(row).relu()) for row in x])


def test_a_graph_for_one_batch_size_is_noted() -> None:
    traced = trace_model(RowByRow(), torch.randn(3, 5))
    small = slim(traced, {"first": [0, 1]})
    assert [note[:43] for note in small.meta["notes"]] == ["the slim model holds for batch size 3 only:"]


def test_functional_dropout_follows_the_mode_again() -> None:
    traced, coupling = read(CASES["dropout"])
    small: Any = slim(traced, {"stem": [0]}, coupling=coupling)
    small.drop.p = 0.0
    x = torch.randn(64, 5)
    assert torch.equal(small.eval()(x), small.eval()(x))
    assert not torch.equal(small.train()(x), small.train()(x))


def test_weights_may_come_from_another_model_of_the_same_kind() -> None:
    case = CASES["residual"]
    traced, coupling = read(case)
    other = case.build()
    small: Any = slim(traced, {"stem": [0, 5]}, coupling=coupling, weights=other)
    kept = [1, 2, 3, 4, 6, 7]
    assert torch.equal(small.head.weight, other.head.weight[:, kept])


def test_impossible_removals_are_refused_by_name() -> None:
    traced, coupling = read(CASES["chain"])
    for removal, message in (
        ({"9": [0]}, "no group of channels '9'"),
        ({"4": [0]}, "an output of the model"),
        ({"0": list(range(8))}, "1 have to stay"),
        ({"0": [8]}, "units 0 to 7"),
    ):
        with pytest.raises(OptionError, match=message):
            slim(traced, removal, coupling=coupling)


def test_without_a_graph_there_is_nothing_to_slim() -> None:
    with pytest.raises(ModelError, match="no graph"):
        slim(trace_model(Strange(5), torch.randn(2, 5)), {})


def test_the_check_names_the_first_node_that_differs() -> None:
    traced, coupling = read(CASES["chain"])
    small = slim(traced, {"0": [1]}, coupling=coupling)
    message = first_difference(small, traced, {"0": [1, 2]}, coupling=coupling)
    assert message == "_0 (call_module 0) computes (2, 7) where (2, 6) was planned"


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", "mobilenet_v3_small", "squeezenet1_1"])
def test_torchvision(name: str) -> None:
    torch.manual_seed(0)
    traced = trace_model(torchvision_module().models.get_model(name, num_classes=7), torch.randn(2, 3, 64, 64))
    coupling = couple_channels(traced)
    removal = {group.name: list(range(0, group.width - 1, 2)) for group in coupling.removable}
    small = slim(traced, removal, coupling=coupling)
    assert sum(p.numel() for p in small.parameters()) < 0.6 * sum(p.numel() for p in traced.model.parameters())
    assert small.train()(torch.randn(3, 3, 64, 64)).shape == (3, 7)

"""Exact removal: removed units, units that have to stay, and unchanged outputs."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from channels import CASES, Net
from channels_as_written import ALL_CASES
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map
from zoo import ZOO, StandardisedConv

from dst_analyze import remove_dead_channels
from dst_analyze.channels.rule_call import Effect, effect_of
from dst_analyze.channels.rules import elementwise, shapes
from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.slimming.exact.remove import ExactSlim

MODELS: dict[str, Any] = {
    **{f"zoo-{k}": v for k, v in ZOO.items()},
    **{f"channels-{k}": v for k, v in ALL_CASES.items()},
}


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


@torch.no_grad()
def riddled(model: nn.Module, inputs: Any, seed: int) -> MaskedModel:
    """A masked model with empty rows and columns, biases partly zero, and norms that have seen something."""
    rng = random.Random(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None:
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.normal_()
            module.bias.normal_().mul_(torch.rand_like(module.bias) < 0.5)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "original" not in name:
            parameter.transpose(0, 1)[torch.rand(parameter.shape[1]) < 0.2] = 0
        elif parameter.ndim == 1 and rng.random() < 0.6:
            parameter.normal_().mul_(torch.rand_like(parameter) < rng.choice([0.0, 0.5]))
    masked = mask_model(model, inputs)
    if not hasattr(model, "0") or not nn.utils.parametrize.is_parametrized(model.get_submodule("0")):
        for thresholds in masked.layer_thresholds().values():  # a row under weight norm would be zero by zero
            thresholds[torch.rand(thresholds.shape) < 1 / 3] = 1e3
    return masked


def check_equal(masked: nn.Module, found: ExactSlim, inputs: Any) -> None:
    with torch.no_grad():
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        expected, ours = tensors(masked.eval()(*given)), tensors(found.model.eval()(*given))
    for one, two in zip(expected, ours, strict=True):
        scale = float(one[one.isfinite()].abs().max()) if bool(one.isfinite().any()) else 0.0
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5 * scale, equal_nan=True)


def changed(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn_like(tensor) * 3 if tensor.is_floating_point() else tensor.flip(0)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_do_not_change(name: str) -> None:
    for seed in range(2 if name.startswith("zoo") else 1):
        torch.manual_seed(seed)
        inputs = MODELS[name].inputs()
        masked = riddled(MODELS[name].build(), inputs, seed)
        before = {key: tensor.clone() for key, tensor in masked.state_dict().items()}
        found = remove_dead_channels(masked, inputs)
        check_equal(masked, found, inputs)
        check_equal(masked, found, tree_map(changed, inputs))
        assert all(torch.equal(before[key], tensor) for key, tensor in masked.state_dict().items())


# --- nets whose answer is known ---------------------------------------------------------------------------------


@torch.no_grad()
def zero(tensor: torch.Tensor, *places: int, dim: int = 0) -> None:
    tensor.movedim(dim, 0)[list(places)] = 0


def slimmed(model: nn.Module, inputs: torch.Tensor) -> dict[str, list[int]]:
    """Return the units of the first round, after comparing the outputs."""
    found = remove_dead_channels(model, inputs)
    for scale in (1, 5):
        check_equal(model, found, torch.randn_like(inputs) * scale)
    return {name: list(places) for name, places in found.removals[0].items()} if found.removals else {}


def vectors() -> torch.Tensor:
    return torch.randn(3, 5)


def images() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6)


def chain(**options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4, **options))


def convolutions(between: nn.Module, **options: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), between, nn.ReLU(), nn.Conv2d(8, 6, 3, **options), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 4),
    )  # fmt: skip


def test_a_row_of_zeros_without_bias_is_removed():
    net = chain()
    zero(net[0].weight, 2, 5)
    zero(net[0].bias, 2, 5)
    assert slimmed(net, vectors()) == {"0": [2, 5]}


@pytest.mark.parametrize("bias", [True, False])
def test_a_constant_is_absorbed_by_the_bias_of_its_reader(bias):
    net = chain(bias=bias)
    zero(net[0].weight, 2, 5)
    with torch.no_grad():
        net[0].bias[2], net[0].bias[5] = 0.7, -0.3  # the second is zero after the ReLU
    assert slimmed(net, vectors()) == {"0": [2, 5]}
    found = remove_dead_channels(net, vectors())
    assert found.model.get_submodule("2").bias is not None
    assert found.new_params < found.params


def test_unread_units_and_units_read_only_by_those_are_removed():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    zero(net[4].weight, 1, dim=1)
    with torch.no_grad():
        net[2].weight[[0, 2, 3, 4, 5], 3] = 0  # unit 3 is read by the unread unit 1 alone
    assert slimmed(net, vectors()) == {"0": [3], "2": [1]}


def test_units_that_only_read_each_other_are_removed():
    torch.manual_seed(0)
    net = CASES["used-twice"].build()
    zero(net.head.weight, 0, 1, dim=1)
    with torch.no_grad():
        net.inner.weight[2:, :2] = 0
    assert slimmed(net, vectors()) == {"stem": [0, 1]}


def test_batch_norm_makes_a_constant_that_an_unpadded_convolution_takes_over():
    net = convolutions(nn.BatchNorm2d(8))
    with torch.no_grad():
        net[1].running_mean.normal_()
        net[1].bias.fill_(3.0)
    zero(net[0].weight, 0, 4)
    assert slimmed(net, images()) == {"0": [0, 4]}


def test_a_padded_convolution_takes_zeros_only():
    net = convolutions(nn.Identity(), padding=1)
    zero(net[0].weight, 0, 4)
    with torch.no_grad():
        net[0].bias[0], net[0].bias[4] = 0.5, -0.5
    assert slimmed(net, images()) == {"0": [4]}


def test_a_padded_border_is_not_taken_for_a_constant():
    net = convolutions(nn.Identity(), padding=1)
    zero(net[0].weight, *range(8))
    with torch.no_grad():
        net[0].bias.fill_(1.0)
    assert slimmed(net, images()) == {}


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.RMSNorm(8)])
def test_under_a_norm_over_channels_all_stay(norm):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), norm, nn.Linear(8, 4))
    zero(net[0].weight, 1, 2)
    zero(net[0].bias, 1, 2)
    assert slimmed(net, vectors()) == {}


def test_zeros_in_a_parameter_are_not_zeros_in_what_is_computed_from_it():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), StandardisedConv(8, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
    zero(net[2].weight, 3, dim=1)  # after standardisation this column is minus the mean
    assert slimmed(net, images()) == {}


def test_a_residual_unit_is_removed_only_if_both_its_makers_are_zero():
    torch.manual_seed(0)
    net = CASES["residual"].build()
    zero(net.stem.weight, 1, 2)
    zero(net.stem.bias, 1, 2)
    zero(net.body.weight, 2, 3)
    zero(net.body.bias, 2, 3)
    assert slimmed(net, torch.randn(2, 3, 8, 8)) == {"stem": [2]}


def test_one_unit_stays_of_a_group_that_is_dead():
    net = chain()
    zero(net[2].weight, *range(8), dim=1)
    assert slimmed(net, vectors()) == {"0": [*range(1, 8)]}


def test_what_is_written_over_in_place_is_not_a_constant():
    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        y = m.stem(x)
        y += m.other(x)
        return m.head(F.relu_(y))

    torch.manual_seed(0)
    net = Net(forward, stem=nn.Linear(5, 6), other=nn.Linear(5, 6), head=nn.Linear(6, 4))
    zero(net.stem.weight, 0, 1)
    zero(net.stem.bias, 0, 1)
    zero(net.other.weight, 1)
    assert slimmed(net, vectors()) == {"stem": [1]}


def test_random_operations_count_as_moving():
    net = Net(lambda m, x: m.head(F.dropout(m.stem(x), 0.5, True)), stem=nn.Linear(5, 6), head=nn.Linear(6, 4))
    zero(net.stem.weight, 0, 1)
    zero(net.stem.bias, 0, 1)
    found = remove_dead_channels(net, vectors())
    assert not found.removals


def test_sizes_the_example_does_not_have():
    """Zeros are zeros at any size; sums and borders of constants are not the same, so their units stay."""

    def forward(m: Net, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(m.stem(x))
        return m.head(m.pool(y).mean((2, 3))) + m.other(y.sum((2, 3)))

    torch.manual_seed(0)
    parts = {"head": nn.Linear(6, 4), "other": nn.Linear(6, 4), "pool": nn.AvgPool2d(3, 1, 1)}
    net = Net(forward, stem=nn.Conv2d(3, 6, 3), **parts)
    zero(net.stem.weight, 0, 1, 2)
    with torch.no_grad():
        net.stem.bias[:3] = torch.tensor([0.5, -0.5, 0.5])
    zero(net.other.weight, 2, dim=1)
    assert slimmed(net, images()) == {"stem": [1]}
    found = remove_dead_channels(net, images())
    check_equal(net, found, torch.randn(1, 3, 11, 9))


def test_unread_hidden_units_of_a_recurrent_layer_are_removed():
    torch.manual_seed(0)
    net = CASES["gru"].build()
    zero(net.head.weight, 1, 7, dim=1)  # both directions of unit 1
    for name, weight in net.layer.named_parameters():
        if name.startswith("weight_hh"):
            zero(weight, 1, dim=1)
        elif name.startswith("weight_ih_l1"):
            zero(weight, 1, 7, dim=1)
    assert slimmed(net, torch.randn(2, 5, 6)) == {"layer.weight_ih_l0": [1]}


def test_unread_heads_are_removed():
    torch.manual_seed(0)
    net = CASES["attention-module-fast"].build()
    zero(net.attention.out_proj.weight, 2, 3, dim=1)  # of four heads of two channels the second
    assert slimmed(net, CASES["attention-module-fast"].inputs()) == {"attention.in_proj_weight": [1]}


def test_the_module_of_a_rule_does_not_matter(monkeypatch):
    """Rules say themselves what they mean to the proof: units leave as before when all are said to be elsewhere."""
    silent = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        silent[0].weight[1:3] = 0
        silent[1].bias[1:3] = 0
    x = torch.randn(2, 1, 4, 4)
    before = remove_dead_channels(silent.eval(), x)
    for rule in (elementwise.elementwise, shapes.reshaped):
        assert effect_of(rule) is not Effect.UNKNOWN
        monkeypatch.setattr(rule, "__module__", "somewhere.else")
    after = remove_dead_channels(silent, x)
    assert before.new_params == after.new_params < before.params


def test_units_below_a_users_rule_stay():
    assert effect_of(lambda call: call.x) is Effect.UNKNOWN
    assert effect_of(None) is Effect.UNKNOWN


def test_a_model_without_dead_units_is_unchanged():
    found = remove_dead_channels(chain(), vectors())
    assert not found.removals
    assert found.params == found.new_params

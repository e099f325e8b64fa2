"""Thresholds counted in the magnitude of their layer's weights."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from zoo import ZOO

from dst_analyze.errors import OptionError
from dst_analyze.masking.layer import units_of
from dst_analyze.masking.masked import mask_model
from dst_analyze.sweep.planning.estimates.forecast import Travel
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_sweep

X, Y = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3


def net(*scales: float) -> nn.Module:
    """Batch norm behind the first two layers: how large their weights are changes nothing that the net computes."""
    torch.manual_seed(0)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)]
    with torch.no_grad():
        for layer, scale in zip((layers[0], layers[2]), scales, strict=False):
            layer.weight.mul_(scale)
            layer.bias.mul_(scale)
    return nn.Sequential(*layers)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 100), min_size=3, max_size=3))
def test_units_are_in_proportion_to_magnitudes_and_one_on_average(scales):
    model = net()
    masked = mask_model(model, X[:2])
    weights = [scale * weight.detach() for scale, weight in zip(scales, masked.layer_weights().values(), strict=True)]
    units = units_of(masked.layers, weights)
    for (one, first), (other, second) in itertools.combinations(zip(units, weights, strict=True), 2):
        assert torch.isclose(one / other, first.abs().mean() / second.abs().mean(), rtol=1e-4)
    counts = torch.tensor([layer.count for layer in masked.layers])
    assert torch.isclose((units * counts).sum() / counts.sum(), torch.tensor(1.0))


def test_a_layer_of_zeros_has_unit_one():
    model = net()
    nn.init.zeros_(model[4].weight)
    masked = mask_model(model, X[:2], threshold_scale="layer")
    assert masked.layer_thresholds()["4"].shape == (3, 1)
    assert (masked.units[-3:] == 1).all()
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[2].weight)
    assert (mask_model(model, X[:2], threshold_scale="layer").units == 1).all()


@pytest.mark.parametrize("name", sorted(ZOO))
@pytest.mark.filterwarnings("ignore:LSTM with projections", "ignore:.*[nN]ested.[tT]ensor.*")
def test_thresholds_with_units_give_the_same_masks_as_their_products(name):
    torch.manual_seed(0)
    model, x = ZOO[name].build(), ZOO[name].inputs()
    counted, plain = mask_model(model, x, threshold_scale="layer").eval(), mask_model(model, x).eval()
    with torch.no_grad():
        counted.thresholds.uniform_(-0.05, 0.2)
        plain.thresholds.copy_(counted.effective_thresholds())
    assert counted.remaining() == plain.remaining()
    for mine, theirs in zip(counted.masks().values(), plain.masks().values(), strict=True):
        assert torch.equal(mine, theirs)
    torch.sin(counted(x)).sum().backward()
    torch.sin(plain(x)).sum().backward()
    torch.testing.assert_close(counted.thresholds.grad, plain.thresholds.grad * counted.units)


def test_copies_and_devices_keep_their_units():
    masked = mask_model(net(), X[:2], threshold_scale="layer")
    assert torch.equal(copy.deepcopy(masked).units, masked.units)
    assert masked.to("meta").units.device.type == "meta"
    assert "units" not in masked.state_dict()


def test_an_unknown_unit():
    with pytest.raises(OptionError, match="unknown threshold scale 'metre'"):
        mask_model(net(), X[:2], threshold_scale="metre")


def test_a_sweep_uses_units_by_default(tmp_path):
    options = {"alphas": [1e-2, 1e-1], "steps": 30, "jobs": 1}
    records = {
        unit: run_sweep(net(0.2, 5.0), (X, Y), **options, threshold_scale=unit, out=tmp_path / unit)
        for unit in ("layer", "one")
    }
    default = run_sweep(net(0.2, 5.0), (X, Y), **options, out=tmp_path / "default")
    assert (records["layer"].manifest.unit, records["one"].manifest.unit) == ("layer", "one")
    assert default.manifest.unit == "layer"
    assert default.frame.equals(records["layer"].frame)
    assert not default.frame.equals(records["one"].frame)


def test_the_reach_of_thresholds_is_given_in_their_unit(tmp_path):
    def within_reach(unit):
        plan = plan_sweep(net(0.1, 10.0), (X, Y), alphas=[1e-5], steps=200, threshold_scale=unit, out=tmp_path / "r")
        return plan.manifest.forecast[0], plan.task

    plain, _ = within_reach("one")
    counted, task = within_reach("layer")
    assert counted.travel == plain.travel == Travel(task.recipe).farthest(1e-5)
    assert plain.layers["0"] - plain.layers["2"] > 0.3  # small weights lie within reach, large ones do not
    assert abs(counted.layers["0"] - counted.layers["2"]) < 0.2

"""Collapsed layers: the selection on a device does what the loop on the host does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dst_analyze import mask_model
from dst_analyze.masking.kernels.grouped_backend import GROUPED

values = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-3, 3, width=32))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize("on_collapse", ["reset", "hold"])
@settings(deadline=None, max_examples=40)
@given(
    thresholds=st.lists(values, min_size=15, max_size=15), counts=st.lists(st.integers(0, 3), min_size=3, max_size=3)
)
def test_the_selection_on_a_device_equals_the_loop(on_collapse: Any, thresholds: Any, counts: Any) -> None:
    masked = mask_model(net(), torch.randn(2, 20), on_collapse=on_collapse, form="modules")
    found = []
    for on_device in (False, True):
        own, at = copy.deepcopy(masked.masking.collapse), torch.tensor(thresholds)
        for _ in range(2):
            if on_device:
                own.set_back_on_device(at, torch.tensor(counts))
            else:
                own.set_back(at, counts)
        found.append((at, own.resets, own.holds))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_training_on_a_device_takes_the_same_steps_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way through the code that a GPU takes, on tensors of the CPU: layers collapse, and are reset and counted."""
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(0))
    found = []
    for on_device in (False, True):
        torch.manual_seed(0)
        masked = mask_model(net(), x, backend="eager", form="modules")
        if on_device:
            monkeypatch.setattr("dst_analyze.masking.masks.on_host", lambda thresholds: False)
            monkeypatch.setattr("dst_analyze.masking.masks.kernels_on", lambda device, backend: GROUPED)
        optimizer = torch.optim.SGD(masked.parameters(), lr=0.1)
        for _ in range(12):
            optimizer.zero_grad()
            masked(x).square().sum().backward()
            masked.add_sparsity_gradient(1.0)
            optimizer.step()
        found.append((masked.thresholds.detach(), dict(masked.resets), masked.remaining()))
    assert sum(found[0][1].values()) > 3
    assert found[0][1:] == found[1][1:]
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)


def test_counts_survive_a_copy_and_a_checkpoint() -> None:
    masked = mask_model(net(), torch.randn(2, 20), form="modules")
    with torch.no_grad():
        masked.thresholds.fill_(100.0)
    masked.masking.collapse.set_back_on_device(masked.thresholds, torch.zeros(3, dtype=torch.int64))
    assert copy.deepcopy(masked).resets == {"0": 1, "2": 1, "4": 1}
    assert masked.resets == {"0": 1, "2": 1, "4": 1}
    assert masked.resets == {"0": 1, "2": 1, "4": 1}  # read once

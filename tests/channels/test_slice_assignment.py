"""Tables that forward fills by slice assignment in steps: their channels can leave, and the rest computes the same."""

from __future__ import annotations

import math

import pytest
import torch
from slim_checks import zero_removed
from torch import nn

from dst_analyze import couple_channels
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.slimming.surgery.build import slim


class Table(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.embed, self.head = nn.Linear(6, width), nn.Linear(width, 4)

    def table(self, length: int) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.embed(x) + self.table(x.shape[1])).mean(1))


class Sinusoids(Table):
    """The positions of PyTorch's tutorial, computed anew in each forward."""

    def table(self, length: int) -> torch.Tensor:
        place = torch.arange(length).unsqueeze(1).float()
        rates = torch.exp(torch.arange(0, self.width, 2).float() * (-math.log(10000.0) / self.width))
        table = torch.zeros(length, self.width)
        table[:, 0::2] = torch.sin(place * rates)
        table[:, 1::2] = torch.cos(place * rates)
        return table


class EveryThird(Table):
    """Every third channel has a value of its own, which leaves the others to go alone."""

    def table(self, length: int) -> torch.Tensor:
        table = torch.ones(length, self.width)
        table[:, 1::3] = 0.25
        table[1:, -2:] = 3.0
        return table


@pytest.mark.parametrize(("kind", "per_unit"), [(Sinusoids, 2), (EveryThird, 1)])
def test_channels_written_in_steps_can_leave(kind: type[Table], per_unit: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 6)
    traced = trace_model(kind(), x)
    coupling = couple_channels(traced)
    (group,) = coupling.removable
    assert (group.per_unit, group.width * group.per_unit) == (per_unit, 16)
    removal = {group.name: [0, 3, 4]}
    small = slim(traced, removal, coupling=coupling).eval()
    assert small.get_submodule("embed").out_features == 16 - 3 * per_unit
    expected = zero_removed(traced, removal, coupling=coupling).eval()
    for length in (5, 7):
        x = torch.randn(3, length, 6)
        torch.testing.assert_close(small(x), expected(x))

"""Gradient checkpointing: what runs again in the backward pass computes with masked weights, too."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import checkpoint

import dst_analyze as dst

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)


class Net(nn.Module):
    """A part of it is checkpointed: one that calls its layers, or one that takes their weights by hand."""

    def __init__(self, reentrant, by_hand):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 4)
        self.drop = nn.Dropout(0.1)
        self.reentrant, self.by_hand = reentrant, by_hand

    def part(self, x):
        if self.by_hand:
            return nn.functional.linear(x, self.second.weight, self.second.bias).relu()
        return self.drop(self.second(x)).relu()

    def forward(self, x):
        x = self.first(x).relu()
        if self.reentrant is None:
            return self.last(self.part(x))
        return self.last(checkpoint.checkpoint(self.part, x, use_reentrant=self.reentrant))


def net(reentrant, by_hand):
    torch.manual_seed(0)
    return Net(reentrant, by_hand)


def attached(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    with dst.attach(model, X[:2], optimizer, alpha=3e-2) as masks:
        for _ in range(12):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
    assert 0.05 < masks.model_remaining() < 0.95
    return {"thresholds": masks.masked.thresholds.detach()} | dict(model.named_parameters())


def one_step(model, form):
    masked = dst.mask_model(model, X[:2], form=form)
    with torch.no_grad():
        masked.thresholds.fill_(0.05)
    torch.manual_seed(1)
    nn.functional.cross_entropy(masked(X), Y).backward()
    return {name: parameter.grad for name, parameter in masked.named_parameters()}


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
def test_it_changes_nothing_to_the_bit(reentrant, by_hand):
    with_it, without = (attached(net(how, by_hand)) for how in (reentrant, None))
    assert all(map(torch.equal, with_it.values(), without.values()))
    for form in ("modules", "auto"):
        with_it, without = (one_step(net(how, by_hand), form) for how in (reentrant, None))
        assert all(map(torch.equal, with_it.values(), without.values()))


def test_torch_is_left_as_it_was():
    generator, function = checkpoint._checkpoint_without_reentrant_generator, checkpoint.CheckpointFunction
    attached(net(False, False))
    assert checkpoint._checkpoint_without_reentrant_generator is generator
    assert checkpoint.CheckpointFunction is function

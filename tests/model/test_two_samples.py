"""A batch cut to two samples, and what is no batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.inputs.two_samples import two_samples


class Calls(nn.Module):
    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.use, self.layer = use, nn.Linear(6, 6)
        self.attention = nn.MultiheadAttention(6, 2)

    def forward(self, *inputs: Any) -> Any:
        return self.use(self, *inputs)


SAMPLES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "features": (lambda m, x: m.layer(x), (torch.randn(8, 6),)),
    "two inputs and a table": (lambda m, x, y, table: m.layer(x + y) * table, (*torch.randn(2, 8, 6), torch.randn(6))),
    "all pairs of a batch": (lambda m, x: m.layer(x) @ m.layer(x).T, (torch.randn(8, 6),)),
    "random numbers": (lambda m, x: m.layer(x) + torch.randn(x.shape), (torch.randn(8, 6),)),
}
OTHERS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a graph": (lambda m, x, adjacency: adjacency @ m.layer(x), (torch.randn(8, 6), torch.rand(8, 8))),
    "a square graph": (lambda m, x, adjacency: adjacency @ m.layer(x), (torch.randn(6, 6), torch.rand(6, 6))),
    "edges": (lambda m, x, e: m.layer(x)[e[0]] + x[e[1]], (torch.randn(8, 6), torch.randint(8, (2, 30)))),
    "steps": (lambda m, x: m.attention(x, x, x)[0], (torch.randn(8, 3, 6),)),
    "one sample": (lambda m, x: m.layer(x.T.flatten()[:6]), (torch.randn(8, 2),)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_cut(name: str) -> None:
    use, args = SAMPLES[name]
    cut = two_samples(Calls(use), Inputs(args))
    assert [tuple(t.shape) for t in cut.tensors()] == [(2, *t.shape[1:]) if len(t) == 8 else t.shape for t in args]


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_stays_whole(name: str) -> None:
    use, args = OTHERS[name]
    inputs = Inputs(args)
    assert two_samples(Calls(use), inputs) is inputs


def test_of_a_detectors_list_of_images_the_first_two_are_kept_whole() -> None:
    images = [torch.randn(3, size, size) for size in (5, 6, 7)]
    few = two_samples(nn.Identity(), Inputs((images,)), listed=True)
    assert [tuple(image.shape) for image in few.args[0]] == [(3, 5, 5), (3, 6, 6)]
    other = Inputs((images,))
    assert two_samples(nn.Identity(), other) is other  # what a model takes beside each other

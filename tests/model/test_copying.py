"""Deep copies: closures follow the copy, computed tensors are kept, and the original stays as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dst_analyze.model.copying import deep_copied


class Model(nn.Module):
    def __init__(self, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.run = made(self)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)  # type: ignore[no-any-return, operator]


def recursive(m: Any) -> Any:
    def once(x: torch.Tensor) -> torch.Tensor:
        return m.helper(x)  # type: ignore[no-any-return]

    def often(x: torch.Tensor, times: int = 2) -> torch.Tensor:
        return x if times == 0 else other(x, times)

    def other(x: torch.Tensor, times: int) -> torch.Tensor:
        return often(once(x), times - 1)

    return often


def hooked(m: Any) -> Any:
    m.up.register_forward_hook(lambda module, args, output: output + m.down.bias.sum())
    return m.helper


FORMS: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda m: lambda x: m.down(m.up(x)),
    "method": lambda m: m.helper,
    "a layer's method": lambda m: m.up.forward,
    "partial": lambda m: functools.partial(lambda model, x: model.helper(x), m),
    "partial of a closure": lambda m: functools.partial(lambda x, scale: m.helper(x) * scale, scale=2),
    "default": lambda m: lambda x, layer=m.up: layer(x),
    "parameter": lambda m: lambda x, weight=m.up.weight: x @ weight.T,
    "decorated": lambda m: functools.wraps(m.helper)(lambda x: m.helper(x)),
    "recursive": recursive,
    "hook": hooked,
}


@pytest.mark.parametrize("name", FORMS)
def test_closures_follow_the_copy(name: str) -> None:
    torch.manual_seed(0)
    model, x = Model(FORMS[name]), torch.randn(2, 4)
    with torch.no_grad():
        expected = model(x)
        twin = deep_copied(deep_copied(model))
        assert torch.equal(twin(x), expected)
        for parameter in model.parameters():
            parameter.zero_()
        assert torch.equal(twin(x), expected)
        assert not model(x).any()
        for parameter in twin.parameters():
            parameter.zero_()
        assert not twin(x).any()


def test_closures_in_containers_follow_too() -> None:
    model = Model(lambda m: {"all": [lambda x: m.up(x), (lambda x: m.down(x),)]})
    twin = deep_copied(model)
    first, (second,) = twin.run["all"]  # type: ignore[index, misc]
    assert first.__closure__[0].cell_contents is twin
    assert second.__closure__[0].cell_contents is twin


def test_what_does_not_reach_the_model_is_shared() -> None:
    scale = 2
    model = Model(lambda m: lambda x: x * scale)
    assert deep_copied(model).run is model.run


def test_a_computed_tensor_is_detached_and_a_view_of_a_weight_stays_a_view() -> None:
    model = Model(lambda m: m.helper)
    model.kept, model.turned = model.up.weight * 2, model.up.weight.t()
    twin = deep_copied(model)
    assert twin.kept.grad_fn is None
    assert torch.equal(twin.kept, model.kept)
    with torch.no_grad():
        twin.up.weight.fill_(3)
    assert torch.equal(twin.turned, twin.up.weight.t())
    assert not torch.equal(twin.turned, model.turned)

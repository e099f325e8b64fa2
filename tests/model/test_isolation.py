"""What a look at a model must leave as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from dst_analyze.model.isolation import preserved, preserved_modes, preserved_randomness, preserved_settings


class StopError(Exception):
    pass


def disturb(model: nn.Module) -> None:
    """Change all there is to change, then fail."""
    draws()
    torch.manual_seed(2)
    model.eval()
    torch.set_grad_enabled(False)
    raise StopError


def draws() -> tuple[float, float, float]:
    return float(torch.rand(())), random.random(), float(np.random.rand())


def test_every_submodule_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)))
    model[1][1].eval()
    with preserved_modes(model):
        model.eval()
        assert not model.training
    assert [module.training for module in model.modules()] == [True, True, True, True, False]


def test_modes_come_back_after_an_error() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(StopError), preserved_modes(model), torch.enable_grad():
        disturb(model)
    assert model.training


def test_random_numbers_continue_as_if_nothing_was_drawn() -> None:
    with preserved_randomness():
        inside = draws()
    assert draws() == inside


def test_random_numbers_come_back_after_an_error_and_a_new_seed() -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with pytest.raises(StopError), preserved_randomness(), torch.enable_grad():
        disturb(nn.Linear(2, 2))
    assert torch.equal(torch.get_rng_state(), state)


def test_grad_mode_and_default_dtype_come_back() -> None:
    with preserved_settings():
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32


def test_all_at_once_after_an_error() -> None:
    model, state = nn.Dropout(), torch.get_rng_state()
    with pytest.raises(StopError), preserved(model):
        disturb(model)
    assert model.training
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_is_not_needed() -> None:
    with preserved():
        inside = draws()
    assert draws() == inside

"""A module's parameters and buffers by name."""

from __future__ import annotations

import torch
from torch import nn


def canonical_names(module: nn.Module) -> dict[str, str]:
    """Return one name for every name of a tensor: the names of tied weights map to the first."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(module)}


def named_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return all parameters and buffers, tied ones by each of their names."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]

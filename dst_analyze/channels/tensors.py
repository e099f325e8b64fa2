"""A module's parameters and buffers by name."""

from __future__ import annotations

import torch
from torch import nn


def canonical_names(module: nn.Module) -> dict[str, str]:
    """One name for each tensor, whatever it goes by: tied weights are one."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named_tensors(module)}


def named_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]

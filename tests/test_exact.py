"""Exact removal: what leaves, what has to stay, and outputs that do not change."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from channels import CASES, Net
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from zoo import ZOO, StandardisedConv

from dst_analyze import exact_slim
from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.slimming.exact import ExactSlim

MODELS: dict[str, Any] = {**{f"zoo-{k}": v for k, v in ZOO.items()}, **{f"channels-{k}": v for k, v in CASES.items()}}


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
            parameter.transpose(0, 1)[torch.rand(parameter.shape[1]) < 0.3] = 0
        elif parameter.ndim == 1 and rng.random() < 0.6:
            parameter.normal_().mul_(torch.rand_like(parameter) < rng.choice([0.0, 0.5]))
    masked = mask_model(model, inputs)
    for name, thresholds in masked.layer_thresholds().items():
        if not name.startswith("0.parametrizations"):
            thresholds[torch.rand(thresholds.shape) < rng.choice([0.3, 0.6])] = 1e3
    return masked


def check_equal(masked: nn.Module, found: ExactSlim, inputs: Any) -> None:
    with torch.no_grad():
        expected, ours = tensors(masked.eval()(inputs)), tensors(found.model.eval()(inputs))
    for one, two in zip(expected, ours, strict=True):
        scale = float(one[one.isfinite()].abs().max()) if bool(one.isfinite().any()) else 0.0
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5 * scale, equal_nan=True)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_stay(name: str) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = MODELS[name].inputs()
        masked = riddled(MODELS[name].build(), inputs, seed)
        found = exact_slim(masked, inputs)
        check_equal(masked, found, inputs)
        other = torch.randn_like(inputs) * 3 if inputs.is_floating_point() else inputs.flip(0)
        check_equal(masked, found, other)

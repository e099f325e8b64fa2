"""The optimizer and learning rate of a model whose user asks for none (docs/experiments/default-optimizer.md)."""

from __future__ import annotations

from torch import nn

from dst_analyze.run.record import DefaultOptimizer
from dst_analyze.sweep.training.recipe import LEARNING_RATES

LARGE = 30_000_000
"""Parameters from which a model gets the smaller rate."""
LARGE_RATE = 3e-4


def default_optimizer(model: nn.Module, *, accuracy: bool, detects: bool = False) -> DefaultOptimizer:
    """Return AdamW for models that SGD trains badly or not at all at one rate for all, else SGD.

    Args:
        model: The model.
        accuracy: True if its score is an accuracy.
        detects: True if it returns losses in training mode only, as detectors do.
    """
    reason = _reason(model, accuracy=accuracy) or ("the model computes its own losses" if detects else "")
    if not reason:
        return DefaultOptimizer(family="sgd", lr=LEARNING_RATES["sgd"])
    large = sum(parameter.numel() for parameter in model.parameters()) >= LARGE
    return DefaultOptimizer(
        family="adamw", lr=LARGE_RATE if large else LEARNING_RATES["adamw"], rises=True, reason=reason
    )


def _reason(model: nn.Module, *, accuracy: bool) -> str:
    modules = list(model.modules())
    names = [type(module).__name__.lower() for module in modules]
    batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
    if any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in modules):
        return "the model is recurrent"
    if any(
        isinstance(m, nn.LayerNorm) or "layernorm" in n or "rmsnorm" in n for m, n in zip(modules, names, strict=True)
    ):
        return "the model has layer norms"
    if not batch_norm and any(isinstance(m, nn.MultiheadAttention) for m in modules):
        return "the model has attention"
    if not batch_norm and any("attention" in name or "attn" in name for name in names):
        return "the model has attention"
    if any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in modules):
        return "the model has an embedding"
    return "" if accuracy or batch_norm else "the task is no classification and the model has no batch norm"

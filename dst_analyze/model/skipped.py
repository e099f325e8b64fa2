"""What is not measured, each with the reason: "could not measure" is never shown as "redundant"."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from dst_analyze.model.audit import Audit

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True)
class Skipped:
    """A weight left alone."""

    name: str
    reason: str
    shape: tuple[int, ...]
    place: str = ""

    @property
    def params(self) -> int:
        return math.prod(self.shape)


def skipped_parameters(model: nn.Module, audit: Audit, masked: set[str]) -> list[Skipped]:
    """Every parameter that reached no matmul or convolution; biases of masked layers go without saying."""
    owners = {name.rpartition(".")[0] for name in masked}
    reached = {use.parameter for use in audit.uses.values()}
    result = []
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        if name in masked or name in reached or (parameter.ndim < 2 and owner in owners):
            continue
        reason = _reason(model.get_submodule(owner), parameter, read=name in audit.read)
        result.append(Skipped(name, reason, tuple(parameter.shape)))
    return result


def _reason(owner: nn.Module, parameter: nn.Parameter, *, read: bool) -> str:
    if isinstance(owner, _EMBEDDINGS):
        return "embedding: rows are looked up, not multiplied"
    if "norm" in type(owner).__name__.lower():
        return "normalisation: a scale and a shift per channel"
    if not read:
        return "not reached by the example's forward pass"
    if parameter.ndim < 2 or parameter.numel() == max(parameter.shape):
        return "bias or scale: one value per channel"
    return "reaches no matmul or convolution: it is added, multiplied element-wise or looked up"

"""The weights that are not measured, each with the reason; none is ever shown as redundant."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from dst_analyze.model.families import family_of_layer
from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.model.tracing.weight_audit import Audit

_EXPLAINED = {
    SkipCause.EMBEDDING: "rows are looked up, not multiplied",
    SkipCause.NORM: "a scale and a shift per channel",
    SkipCause.PER_CHANNEL: "one value per channel",
    SkipCause.NO_PRODUCT: "it is added, multiplied element-wise or looked up",
}


@dataclass(frozen=True)
class Skipped:
    """A weight that is not measured, and why."""

    name: str
    cause: SkipCause
    shape: tuple[int, ...]
    place: str = ""
    dtype: str = ""  # if that is the cause

    @property
    def reason(self) -> str:
        """The cause in words."""
        if self.cause is SkipCause.DTYPE:
            return f"dtype {self.dtype} has no order of magnitudes to threshold"
        explained = _EXPLAINED.get(self.cause)
        return f"{self.cause}: {explained}" if explained else str(self.cause)

    @property
    def params(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)


def skipped_parameters(model: nn.Module, audit: Audit, masked: set[str]) -> list[Skipped]:
    """Return every parameter that reached no matmul or convolution, except biases of masked layers."""
    owners = {name.rpartition(".")[0] for name in masked}
    reached = {use.parameter for use in audit.uses.values()}
    result = []
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]
        if name in masked or name in reached or (parameter.ndim < 2 and owner in owners):
            continue
        cause = _cause(model.get_submodule(owner), parameter, read=name in audit.read)
        result.append(Skipped(name, cause, tuple(parameter.shape)))
    return result


def _cause(owner: nn.Module, parameter: nn.Parameter, *, read: bool) -> SkipCause:
    family = family_of_layer(type(owner))
    if family is not None and family.skipped is not None:
        return family.skipped
    if "norm" in type(owner).__name__.lower():
        return SkipCause.NORM
    if not read:
        return SkipCause.UNREACHED
    if parameter.ndim < 2 or parameter.numel() == max(parameter.shape):
        return SkipCause.PER_CHANNEL
    return SkipCause.NO_PRODUCT

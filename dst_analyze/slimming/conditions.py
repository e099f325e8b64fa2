"""What a slim model does in one mode only, or only with an optional input: as functions and modules of its graph.

torch.fx has no branches. So a value that depends on a condition is a call of `choose`, and operations that run under a
condition are a graph of their own, called by a `Branch`. The written source has conditional expressions and methods.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import fx, nn


class Condition(Enum):
    """What the first argument of `choose` and `Branch` is tested for, with its text in the written source."""

    TRAINING = "{}"
    EVAL = "not {}"
    GIVEN = "{} is not None"
    MISSING = "{} is None"

    def holds(self, value: Any) -> bool:
        """Return True if a value meets the condition."""
        if self in (Condition.TRAINING, Condition.EVAL):
            return bool(value) is (self is Condition.TRAINING)
        return (value is not None) is (self is Condition.GIVEN)

    @property
    def opposite(self) -> Condition:
        """The condition that holds where this one does not."""
        pairs = (Condition.TRAINING, Condition.EVAL), (Condition.GIVEN, Condition.MISSING)
        return next(a if b is self else b for a, b in pairs if self in (a, b))


def choose(condition: str, value: Any, then: Any, otherwise: Any) -> Any:
    """Return ``then`` if the value meets the condition of this name, else ``otherwise``."""
    return then if Condition[condition].holds(value) else otherwise


class Branch(nn.Module):
    """Operations that run under a condition only; they have no parameters."""

    def __init__(self, condition: Condition, part: fx.GraphModule) -> None:
        super().__init__()
        self.condition, self.part = condition, part

    def forward(self, value: Any, otherwise: Any, *args: torch.Tensor) -> Any:
        """Return what the operations give for ``args`` if the value meets the condition, else ``otherwise``."""
        return self.part(*args) if self.condition.holds(value) else otherwise

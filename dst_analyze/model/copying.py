"""The user's model is never touched: everything that changes or runs it works on a deep copy."""

from __future__ import annotations

import copy

from torch import nn

from dst_analyze.errors import ModelError


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, or an error that says why there can be none."""
    refuse_lazy(model)
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            hint="modules must survive copy.deepcopy; a tensor computed in __init__ from parameters needs .detach()",
        ) from error


def refuse_lazy(model: nn.Module) -> None:
    lazy = [name for name, p in model.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ModelError(
            f"the model has parameters without a shape yet: {', '.join(lazy[:3])}{' ...' if len(lazy) > 3 else ''}",
            hint="lazy modules get their shape from a first forward pass: run the model once before handing it over",
        )

"""Being called after each step of the optimizer that trains a model, whoever made it and whoever steps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dst_analyze.errors import ModelError

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]


class OptimizerSteps:
    """Calls back after each step of the optimizer that holds most of some parameters.

    Without an optimizer given, the steps of all optimizers are watched until one is found that holds any of them.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        optimizers: Optimizers | None,
        after_step: Callable[[torch.optim.Optimizer], None],
    ) -> None:
        self._sizes = {id(parameter): parameter.numel() for parameter in parameters}
        self._after_step = after_step
        self._handles: list[Any] = []
        self.optimizer: torch.optim.Optimizer | None = None
        if optimizers is None:
            self._handles.append(register_optimizer_step_post_hook(self._watch))
        else:
            found = max(map(unwrapped, _as_list(optimizers)), key=self._held)
            if not self._held(found):
                raise ModelError(
                    f"the {type(found).__name__} given holds none of the weights that are to be masked",
                    place="optimizer",
                    hint="make it from the parameters of this very model, before it is copied or moved",
                )
            self._choose(found)
            self._handles.append(found.register_step_post_hook(lambda optimizer, *_: self._after_step(optimizer)))

    def stop(self) -> None:
        """Call back no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer is not self.optimizer and self._held(optimizer) > self._held(self.optimizer):
            self._choose(optimizer)
        if optimizer is self.optimizer:
            self._after_step(optimizer)

    def _choose(self, optimizer: torch.optim.Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ModelError(
                "LBFGS evaluates the loss several times in a step, and thresholds cannot be trained beside it",
                place="optimizer",
                hint="train with an optimizer that takes one gradient a step, such as SGD or AdamW",
            )
        self.optimizer = optimizer

    def _held(self, optimizer: torch.optim.Optimizer | None) -> int:
        """How many of the numbers in the parameters an optimizer holds."""
        groups = () if optimizer is None else optimizer.param_groups
        return sum(self._sizes.get(id(parameter), 0) for group in groups for parameter in group["params"])


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """Return torch's optimizer inside what accelerate, Lightning and others put around it."""
    for name in ("optimizer", "_optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer):
            return unwrapped(inner)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"{type(optimizer).__name__} is no torch.optim.Optimizer, so its steps cannot be followed",
            place="optimizer",
            hint="derive it from torch.optim.Optimizer, as optimizers of other packages are",
        )
    return optimizer


def _as_list(optimizers: Any) -> list[Any]:
    return list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]

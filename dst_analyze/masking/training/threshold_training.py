"""Training the thresholds of a masked model beside the optimizer of its weights, whichever optimizer that is.

The regulariser's gradient, −α · exp(−t), touches thresholds alone, so no loss and no training loop needs to know of
it. The thresholds take a step of their own after each step of the weights' optimizer: its learning rate times a clock,
its momentum, no weight decay.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dst_analyze.masking.masked import MaskedModel
from dst_analyze.masking.masks import on_host

LARGEST_SHARE = 0.02
"""How far a threshold on a faster clock may move in one step, as a share of its row's mean magnitude."""

REFRESHED_EVERY = 50  # steps: magnitudes change slowly, and reading them is a pass over all weights

DECAYS = ("weight_decay", "lambd")
"""What optimizers call a pull towards zero; none of it on thresholds, where it would undo what alpha asks for."""

_SCALER_FRAMES = 16  # callers of a hook that are looked at for a gradient scaler


class ThresholdTraining:
    """Trains the thresholds of one masked model.

    Args:
        masked: The model; its thresholds collect gradients in every backward pass.
        alpha: Strength of the regulariser; the objective is loss + α · L_s.
        clock: The thresholds' learning rate over the weights'; other than 1, each step is held to `LARGEST_SHARE`.
    """

    def __init__(self, masked: MaskedModel, alpha: float, *, clock: float = 1.0) -> None:
        self.masked, self.alpha, self.clock = masked, alpha, clock
        self.steps = 0
        self._share = None if clock == 1 else LARGEST_SHARE
        self._optimizer: torch.optim.Optimizer | None = None
        self._limit: torch.Tensor | None = None
        self._loaded: dict[str, Any] | None = None  # of the thresholds' optimizer, which is made at the next step
        with torch.no_grad():
            self._measure_limit()

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Take a step of the thresholds after every step of this optimizer."""
        optimizer.register_step_post_hook(self.after_step)

    @torch.no_grad()
    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Move the thresholds by the gradients that they have collected and the regulariser's."""
        thresholds = self.masked.thresholds
        scaler = calling_scaler()
        if thresholds.grad is None:  # the model took no part in this step
            return
        settle_gradient(thresholds.grad, scaler)
        own, group = self._prepared(optimizer)
        overflow = None if scaler is None else (~thresholds.grad.isfinite().all()).float()
        on_device = overflow is not None and self._skips_on_device(optimizer)
        if overflow is not None and not on_device and bool(overflow):
            thresholds.grad = None
            return
        self.masked.add_sparsity_gradient(self.alpha)
        for name, value in group.items():
            if name in own and name not in ("params", "lr", *DECAYS):
                own[name] = value
        own["lr"] = group["lr"] * self.clock
        before = None if self._limit is None else thresholds.detach().clone()
        # As torch's scaler does with the weights' optimizer: a fused step looks at this on the device.
        stop = torch.maximum(overflow, optimizer.found_inf) if on_device else None  # type: ignore[attr-defined, arg-type]
        with _skipping(self.optimizer, stop):
            self.optimizer.step()
        if before is not None and self._limit is not None:
            moved = thresholds - before
            thresholds.copy_(before.add_(moved.clamp_(-self._limit, self._limit)))
        thresholds.grad = None
        self.steps += 1
        if self.steps % REFRESHED_EVERY == 0:
            self._measure_limit()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The thresholds' own optimizer, made at the first step."""
        assert self._optimizer is not None
        return self._optimizer

    def _skips_on_device(self, optimizer: torch.optim.Optimizer) -> bool:
        """True if both optimizers leave out a step by what a tensor says, without waiting for it."""
        fused = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        told = getattr(optimizer, "found_inf", None) is not None
        return fused and told and not on_host(self.masked.thresholds)

    def _prepared(self, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of the thresholds' optimizer, and those of the weights' that they follow."""
        group = leading_group(optimizer, self.masked)
        if self._optimizer is None:
            self._optimizer = optimizer_like(optimizer, group, self.masked.thresholds)
            if self._loaded is not None:
                self._optimizer.load_state_dict(self._loaded)
        return self._optimizer.param_groups[0], group

    def _measure_limit(self) -> None:
        """Find how far each threshold may go in a step, by the weights as they are now."""
        if self._share is not None:
            most = self._share * self.masked.typical_magnitudes()
            self._limit = most if self.masked.units is None else most / self.masked.units

    def weights(self) -> Sequence[torch.Tensor]:
        """Return what the model computes with in place of its weights."""
        return self.masked.masked_weights()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to go on from here."""
        return {
            "steps": self.steps,
            "thresholds": self.masked.thresholds.detach().clone(),
            "gradient": self.masked.thresholds.grad,  # of an accumulation that has begun
            "optimizer": self._loaded if self._optimizer is None else self._optimizer.state_dict(),
            "limit": self._limit,
            "units": self.masked.units,
            "resets": dict(self.masked.resets),
            "holds": dict(self.masked.holds),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.steps, self._limit, self._loaded = state["steps"], state["limit"], state["optimizer"]
        self.masked.thresholds.copy_(state["thresholds"])
        self.masked.thresholds.grad = state["gradient"]
        self.masked.masking.units = state["units"]
        self.masked.resets.update(state["resets"])
        self.masked.holds.update(state["holds"])
        self._optimizer = None


@contextmanager
def _skipping(optimizer: Any, stop: torch.Tensor | None) -> Iterator[None]:
    """Let a fused optimizer leave out its step if this is not zero, as torch's gradient scaler does."""
    if stop is None:
        yield
        return
    optimizer.grad_scale, optimizer.found_inf = None, stop
    try:
        yield
    finally:
        del optimizer.grad_scale, optimizer.found_inf


def settle_gradient(gradient: torch.Tensor, scaler: torch.amp.GradScaler | None) -> None:
    """Bring the thresholds' gradient into the state that the weights' have in this step.

    The scale of a gradient scaler is taken off, and processes that train together share their mean.
    """
    if scaler is not None:
        scale = getattr(scaler, "_scale", None)  # get_scale() would wait for the device
        gradient.div_(scaler.get_scale() if scale is None else scale)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(gradient)
        gradient.div_(torch.distributed.get_world_size())


def leading_group(optimizer: torch.optim.Optimizer, masked: MaskedModel) -> dict[str, Any]:
    """Return the parameter group that holds most of the masked weights: the one whose options thresholds follow."""
    weights = {id(weight): weight.numel() for weight in masked.layer_weights().values()}
    groups: list[dict[str, Any]] = optimizer.param_groups
    return max(groups, key=lambda group: sum(weights.get(id(parameter), 0) for parameter in group["params"]))


def optimizer_like(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], thresholds: nn.Parameter
) -> torch.optim.Optimizer:
    """Return an optimizer of the same kind for the thresholds, without weight decay.

    A kind that cannot be built for them (it takes matrices only, or other arguments) is replaced by Adam, or by plain
    SGD if it keeps no squares of gradients.
    """
    kind = type(optimizer)
    known = inspect.signature(kind.__init__).parameters
    options = {name: group.get(name, value) for name, value in optimizer.defaults.items() if name in known}
    options |= {name: 0.0 for name in DECAYS if name in options}
    try:
        made = kind([thresholds], **options)
    except Exception:
        adaptive = any("sq" in key for state in optimizer.state.values() for key in state)
        made = (torch.optim.Adam if adaptive else torch.optim.SGD)([thresholds], lr=float(group.get("lr", 1e-3)))
    return made


def calling_scaler() -> torch.amp.GradScaler | None:
    """The gradient scaler that takes the present step, if one does: thresholds' gradients still carry its scale.

    It unscales the gradients of the optimizer's parameters alone and passes nothing on, so it is found as a caller.
    """
    code = torch.amp.GradScaler.step.__code__
    frame = sys._getframe(1)
    for _ in range(_SCALER_FRAMES):
        if frame.f_code is code:
            found: torch.amp.GradScaler = frame.f_locals["self"]
            return found
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None

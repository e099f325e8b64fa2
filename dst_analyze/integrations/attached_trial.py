"""A study's trial in the hands of a trainer that calls back: attached at its start, told at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from dst_analyze.errors import OptionError
from dst_analyze.masking.training.attach import AttachedMasks


class Trial(Protocol):
    """What a callback needs of a study's trial."""

    ended: bool
    told: bool

    @property
    def label(self) -> str:
        """The trial in words."""

    def attach(
        self, model: nn.Module, example_inputs: Any, optimizer: Any = None, *, methods: Sequence[str] = ()
    ) -> AttachedMasks:
        """Attach the trial to a model."""

    def log(self, loss: float) -> None:
        """Note the loss of the present step."""

    def tell(self, score: float, *, loss: float | None = None, higher_is_better: bool = True) -> None:
        """Tell how well the trained model does."""

    def failed(self, reason: str) -> None:
        """Tell that the training did not end well."""


class AttachedTrial:
    """A trial, the model that it is attached to, and the score that the trainer measured last.

    Args:
        trial: The study's trial.
        metric: The score's name in the trainer's metrics.
        loss: The name of the loss on the same data; used if the trainer measures it.
        higher_is_better: False if the score is a loss or an error.
    """

    def __init__(self, trial: Trial, metric: str, loss: str, *, higher_is_better: bool) -> None:
        self.trial, self.metric, self.loss, self.higher_is_better = trial, metric, loss, higher_is_better
        self.masks: AttachedMasks | None = None
        self._untrained: dict[str, torch.Tensor] | None = None
        self._measured: tuple[int, float, float | None] | None = None  # step, score, loss

    def remember(self, model: nn.Module) -> None:
        """Keep the weights that training starts from, which a checkpoint is going to replace."""
        self._untrained = {name: value.detach().clone() for name, value in model.state_dict().items()}

    def attach(
        self,
        model: nn.Module,
        example_inputs: Any,
        optimizers: Any,
        methods: Sequence[str] = (),
        *,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        """Attach the trial to a model; where the trainer resumed it, as it was when the checkpoint was written."""
        self.abandon()
        self._measured = None
        loaded = None
        if resumed is not None:
            # The trial is planned by the weights that it started from, and may put trained ones in their place.
            loaded = {name: value.detach().clone() for name, value in model.state_dict().items()}
            if self._untrained is not None:
                model.load_state_dict(self._untrained, strict=False)  # some layers may have been made since
        self._untrained = None
        self.masks = self.trial.attach(model, example_inputs, optimizers, methods=tuple(methods))
        if resumed is not None and loaded is not None:
            model.load_state_dict(loaded)
            self.masks.load_state_dict(resumed["masks"])
            measured = resumed["measured"]
            self._measured = None if measured is None else (measured[0], measured[1], measured[2])

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs; empty where nothing is attached."""
        if self.masks is None:
            return {}
        return {"masks": self.masks.state_dict(), "measured": None if self._measured is None else [*self._measured]}

    def measure(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take the score from metrics that the trainer measured after a step."""
        if self.metric not in metrics:
            raise OptionError(
                f"the trainer measures no {self.metric!r}",
                place=type(self).__name__,
                hint=f"it measures {', '.join(sorted(metrics)) or 'nothing'}",
            )
        loss = float(metrics[self.loss]) if self.loss in metrics and self.higher_is_better else None
        self._measured = step, float(metrics[self.metric]), loss
        if self.masks is None and self.trial.ended and not self.trial.told:  # measured after the training
            self.tell()

    def finish(self, step: int) -> None:
        """Take the last readings, write the zeros and tell the score, if it was measured after the last step."""
        masks, self.masks = self.masks, None
        if masks is None:
            return
        masks.__exit__(None, None, None)
        if self._measured is not None and self._measured[0] == step:
            self.tell()

    def tell(self) -> None:
        """Tell the score that was measured last."""
        assert self._measured is not None
        _, score, loss = self._measured
        if math.isfinite(score):
            finite = loss if loss is not None and math.isfinite(loss) else None
            self.trial.tell(score, loss=finite, higher_is_better=self.higher_is_better)
        else:
            self.trial.failed(f"{self.metric} was {score}")

    def abandon(self) -> None:
        """Give the model back as it is, its zeros not written: the training was broken off."""
        masks, self.masks = self.masks, None
        if masks is not None:
            masks.detach(write_zeros=False)

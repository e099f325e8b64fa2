"""The objective of training: a batch's inputs and target, the loss, and the score on test data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dst_analyze.errors import DataError
from dst_analyze.model.inputs.infer import batch_inputs
from dst_analyze.model.inputs.inputs import Inputs

_TARGETS = ("labels", "label", "targets", "target", "y")
"""Keys of a dict batch that hold the target."""

LossHook = Callable[[Any, Any], torch.Tensor]


def split_batch(batch: Any, model: nn.Module) -> tuple[Inputs, Any]:
    """Return the model's arguments and the target of a batch: ``(inputs, target)``, ``(a, b, target)`` or a dict."""
    if isinstance(batch, Mapping):
        # A forward that takes labels gets them: such models compute their loss themselves.
        known = inspect.signature(model.forward).parameters
        by_name = {key: value for key, value in batch.items() if key in known}
        target = next((batch[key] for key in _TARGETS if key in batch and key not in known), None)
        return (Inputs((), by_name) if by_name else Inputs((batch,))), target
    target = batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    return batch_inputs(batch, model), target


@dataclass(frozen=True)
class Objective:
    """The loss and score of a task; ``custom`` is the user's ``loss(outputs, batch)``, if there is one."""

    model: nn.Module  # its forward's signature decides how a batch is passed
    custom: LossHook | None = None
    accuracy: bool = False
    shuffled: bool = False  # a control: samples get the targets of other samples of their batch

    def inputs(self, batch: Any) -> Inputs:
        """Return the model's arguments of a batch, shuffled for a control."""
        inputs = split_batch(batch, self.model)[0]
        return _shuffled(inputs) if self.shuffled else inputs

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        """Return the user's loss, else cross entropy for integer targets and mean squared error for others."""
        if self.custom is not None:
            return self.custom(outputs, batch)
        scores, target = main_output(outputs), split_batch(batch, self.model)[1]
        own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if target is None and isinstance(own, torch.Tensor):  # the model got the labels and has computed its loss
            return own
        if not isinstance(scores, torch.Tensor) or not isinstance(target, torch.Tensor):
            raise DataError(
                f"no loss is known for outputs of {_kind(outputs)} and a target of {_kind(target)}",
                hint="define loss(outputs, batch) in the model file",
            )
        if not target.is_floating_point():
            return F.cross_entropy(class_scores(scores, target), target.long())
        if scores.numel() != target.numel():
            raise DataError(
                f"outputs of shape {list(scores.shape)} cannot be compared with targets of shape {list(target.shape)}",
                hint="class labels must be integers; for anything else define loss(outputs, batch)",
            )
        return F.mse_loss(scores, target.view_as(scores).to(scores.dtype))

    def hits(self, outputs: Any, batch: Any) -> tuple[int, int]:
        """Return the numbers of correct predictions and of labels; zeros if there are no labels."""
        scores, target = main_output(outputs), split_batch(batch, self.model)[1]
        if not is_classification(scores, target):
            return 0, 0
        known = target != IGNORED
        right = class_scores(scores, target).argmax(1) == target
        return int((right & known).sum()), int(known.sum())


def _shuffled(inputs: Inputs) -> Inputs:
    """Return the inputs with their samples in random order; targets among them keep theirs."""
    size = inputs.batch_size
    order = torch.randperm(size)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[order.to(tensor.device)] if tensor.ndim and len(tensor) == size else tensor

    targets = {name: value for name, value in inputs.kwargs.items() if name in _TARGETS}
    mixed = inputs.map(moved)
    return Inputs(mixed.args, {**mixed.kwargs, **targets})


IGNORED = -100
"""The label that cross entropy ignores."""


def main_output(outputs: Any) -> Any:
    """Return the tensor of predictions: a dict's ``logits`` or ``out``, or the first of several outputs."""
    if isinstance(outputs, Mapping):
        return next((outputs[key] for key in ("logits", "out") if key in outputs), next(iter(outputs.values()), None))
    if isinstance(outputs, tuple | list) and outputs:
        return main_output(outputs[0])
    return getattr(outputs, "logits", outputs)


def is_classification(scores: Any, target: Any) -> bool:
    """Return True if the target holds one class label for each vector of scores."""
    if not (isinstance(scores, torch.Tensor) and isinstance(target, torch.Tensor)) or target.is_floating_point():
        return False
    return scores.ndim == target.ndim + 1 and class_scores(scores, target).shape[2:] == target.shape[1:]


def class_scores(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the scores with classes in dimension 1, as torch expects; sequence models have them last."""
    if scores.ndim > 2 and scores.shape[2:] != target.shape[1:] and scores.shape[:-1] == target.shape:
        return scores.movedim(-1, 1)
    return scores


def _kind(value: Any) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"type {type(value).__name__}"

"""The objective of training: a batch's inputs and target, the loss, and the score on test data."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dst_analyze.errors import DataError, ModelError
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.model.inputs.describe import BATCH_FORMS, describe_batch
from dst_analyze.model.inputs.infer import batch_inputs, has_annotations
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.sweep.training.device import to_device

_TARGETS = ("labels", "label", "targets", "target", "y")
"""Keys of a dict batch that hold the target."""

LossHook = Callable[[Any, Any], torch.Tensor]
"""``loss(outputs, batch)``, or ``loss(model, batch)`` if its attribute ``takes_model`` is true."""


def split_batch(batch: Any, model: nn.Module) -> tuple[Inputs, Any]:
    """Return the model's arguments and the target of a batch: ``(inputs, target)``, ``(a, b, target)`` or a dict."""
    if isinstance(batch, Mapping):
        # A forward that takes labels gets them: such models compute their loss themselves.
        known = inspect.signature(model.forward).parameters
        by_name = {key: value for key, value in batch.items() if key in known}
        target = next((batch[key] for key in _TARGETS if key in batch), None)
        return (Inputs((), by_name) if by_name else Inputs((batch,))), target
    if has_annotations(batch):
        return batch_inputs(batch, model), None  # the model computes its loss from them, or a loss() does
    target = batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None
    return batch_inputs(batch, model), target


@dataclass(frozen=True)
class Objective:
    """The loss and score of a task; ``custom`` is the user's ``loss(outputs, batch)``, if there is one."""

    model: nn.Module  # its forward's signature decides how a batch is passed
    custom: LossHook | None = None
    accuracy: bool = False
    shuffled: bool = False  # a control: samples get the targets of other samples of their batch
    losses_in_training: bool = False  # the model returns losses in training mode only

    @property
    def takes_model(self) -> bool:
        """True if the user's loss calls the model itself."""
        return bool(getattr(self.custom, "takes_model", False))

    def inputs(self, batch: Any) -> Inputs:
        """Return the model's arguments of a batch, shuffled for a control."""
        inputs = split_batch(batch, self.model)[0]
        return _shuffled(inputs, listed=has_annotations(batch)) if self.shuffled else inputs

    def step(self, model: nn.Module | MaskedModel, batch: Any) -> tuple[Any, torch.Tensor]:
        """Return the outputs for a batch and the loss; the outputs are None if the loss calls the model itself."""
        if not self.takes_model:
            outputs = self.inputs(batch).call(model)
            return outputs, self.loss(outputs, batch)
        assert self.custom is not None
        if isinstance(model, MaskedModel):  # the user's own module, with masked weights in place of its parameters
            with model.running.on(model.masked_weights):
                return None, self.custom(model.model, batch)
        if type(model) is type(self.model):
            return None, self.custom(model, batch)
        calls: list[None] = []
        loss = self.custom(_in_place_of(self.model, model, calls), batch)
        if not calls:
            raise ModelError(
                "the loss calls parts of the model, which a slim model does not have",
                hint="call the model itself in the loss, or define loss(outputs, batch)",
            )
        return None, loss

    def loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        """Return the user's or the model's loss, else cross entropy for integer targets, squared error for others."""
        if self.custom is not None and not self.takes_model:
            return self.custom(outputs, batch)
        inputs, target = split_batch(batch, self.model)
        own = own_loss(outputs)
        if own is not None and (target is None or not inputs.kwargs.keys().isdisjoint(_TARGETS)):
            return own  # given labels, the model has computed it already
        scores = main_output(outputs)
        if not isinstance(scores, torch.Tensor) or not isinstance(target, torch.Tensor):
            raise DataError(
                f"no loss is known for outputs of {_kind(outputs)} and a target of {_kind(target)}; "
                f"a batch is {describe_batch(batch)}",
                hint=f"define loss(outputs, batch) or loss(model, batch) in the model file; batches are {BATCH_FORMS}",
            )
        if not target.is_floating_point():
            return F.cross_entropy(class_scores(scores, target), target.long())
        if scores.numel() != target.numel():
            raise DataError(
                f"outputs of shape {list(scores.shape)} cannot be compared with targets of shape {list(target.shape)}",
                hint="class labels must be integers; for anything else define loss(outputs, batch)",
            )
        return F.mse_loss(scores, target.view_as(scores).to(scores.dtype))

    def hits(self, outputs: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the numbers of correct predictions and of labels; None if there are no labels."""
        scores, target = main_output(outputs), split_batch(batch, self.model)[1]
        if not is_classification(scores, target):
            return None
        known = target != IGNORED
        right = class_scores(scores, target).argmax(1) == target
        return (right & known).sum(), known.sum()


def _in_place_of(original: nn.Module, rebuilt: nn.Module, calls: list[None]) -> nn.Module:
    """Return a module with the original's attributes and methods whose call is that of the rebuilt one."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return rebuilt(*args, **kwargs)

    stand_in = copy.copy(original)
    stand_in.training = rebuilt.training
    stand_in.forward = forward
    return stand_in


def _shuffled(inputs: Inputs, *, listed: bool = False) -> Inputs:
    """Return the inputs with their samples in random order; targets among them keep theirs."""
    size = inputs.batch_size
    order = torch.randperm(size)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[to_device(order, tensor.device)] if tensor.ndim and len(tensor) == size else tensor

    if listed and isinstance(inputs.args[0], list):  # of samples, beside a list of their annotations
        return Inputs(([inputs.args[0][at] for at in order.tolist()], *inputs.args[1:]), inputs.kwargs)
    targets = {name: value for name, value in inputs.kwargs.items() if name in _TARGETS}
    mixed = inputs.map(moved)
    return Inputs(mixed.args, {**mixed.kwargs, **targets})


IGNORED = -100
"""The label that cross entropy ignores."""


def own_loss(outputs: Any) -> torch.Tensor | None:
    """Return the loss that a model has computed itself: its ``loss``, or the sum of a dict of losses."""
    if isinstance(outputs, Mapping):
        own = outputs.get("loss")
        if own is None and outputs and all(map(_is_number, outputs.values())):
            own = sum(outputs.values())
        return own if _is_number(own) else None
    if isinstance(outputs, tuple | list):
        outputs = outputs[0] if outputs else None
    own = outputs if isinstance(outputs, torch.Tensor) else getattr(outputs, "loss", None)
    return own if _is_number(own) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == 0 and value.is_floating_point()


def main_output(outputs: Any) -> Any:
    """Return the tensor of predictions: a dict's ``logits`` or ``out``, or the first of several outputs."""
    if isinstance(outputs, Mapping):
        found = (outputs[key] for key in ("logits", "out") if key in outputs)
        return next(found, next((value for value in outputs.values() if not _is_number(value)), None))
    if isinstance(outputs, tuple | list) and outputs:
        return next((main_output(output) for output in outputs if not _is_number(output)), outputs[0])
    return getattr(outputs, "logits", outputs)


def is_language_model(model: nn.Module, outputs: Any) -> bool:
    """True if the model has computed a loss itself and scores the tokens that it reads."""
    scores = main_output(outputs)
    if own_loss(outputs) is None or not isinstance(scores, torch.Tensor) or scores.ndim < 3:
        return False
    return any(isinstance(m, nn.Embedding) and m.num_embeddings == scores.shape[-1] for m in model.modules())


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

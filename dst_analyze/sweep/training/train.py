"""Training: one loop for dense and masked models."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from dst_analyze.masking.masked import MaskedModel
from dst_analyze.model.isolation import preserved_buffers, preserved_modes, preserved_randomness
from dst_analyze.sweep.training.device import READ_EVERY, Device, read_all
from dst_analyze.sweep.training.objective import Objective

OnStep = Callable[[int, float], bool]
"""Called with each step and its loss; returns True to end training. On a GPU it may be called some steps later."""


class DivergedError(Exception):
    """The loss is not finite at ``step``."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"the loss is not finite at step {step}")


def train(
    model: nn.Module | MaskedModel,
    batches: Iterable[Any],
    objective: Objective,
    optimizer: torch.optim.Optimizer,
    schedule: LRScheduler,
    device: Device,
    *,
    steps: int,
    on_step: OnStep,
    looks_every: int = 1,
) -> int:
    """Train a model in place; the thresholds of a masked one move in the optimizer's steps.

    On a CPU, each loss is read before the step that it leads to. On other devices losses are read together, so that
    no step waits for the device: at least every `READ_EVERY` steps. A divergence is dated to its step all the same.

    Args:
        model: The model or masked model.
        batches: Its batches, on any device.
        objective: The loss.
        optimizer: The optimizer of its weights.
        schedule: The schedule of the learning rate.
        device: The device of the model.
        steps: The number of steps.
        on_step: Called for each step in order.
        looks_every: Steps between those after which ``on_step`` looks at the model, or may end the training.

    Returns:
        The number of steps taken; fewer than ``steps`` if ``on_step`` ended the training.
    """
    model.train()
    scaler, unread = device.scaler(), list[torch.Tensor]()
    with nullcontext() if scaler is None else _skipped_steps():
        for step, batch in zip(range(1, steps + 1), device.batches(batches), strict=False):
            with device.precision():
                _, loss = objective.step(model, batch)
            if device.on_host:
                value = loss.item()
                if not math.isfinite(value):
                    raise DivergedError(step)
            optimizer.zero_grad()
            if scaler is None:
                torch.autograd.backward(loss)
                optimizer.step()
            else:
                if isinstance(model, MaskedModel):
                    model.thresholds.grad = None  # of a step that the scaler has left out
                torch.autograd.backward(scaler.scale(loss))
                scaler.step(optimizer)
                scaler.update()
            schedule.step()
            if device.on_host:
                if on_step(step, value):
                    return step
                continue
            unread.append(loss.detach())
            if step % looks_every == 0 or len(unread) == READ_EVERY or step == steps:
                first, values = step - len(unread) + 1, read_all(unread)
                unread.clear()
                for at, value in enumerate(values, first):
                    if not math.isfinite(value):
                        raise DivergedError(at)
                    if on_step(at, value):
                        return at
    return steps


@contextmanager
def _skipped_steps() -> Iterator[None]:
    """Silence the scheduler's warning about a first step that a gradient scaler skips to find its scale."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler.step\(\)` before", UserWarning)
        yield


class Scores(NamedTuple):
    """The mean loss of a model on test data, its score, and the score's standard error (None if unknown)."""

    loss: float
    score: float
    error: float | None


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Any], objective: Objective, device: Device) -> Scores:
    """Return the scores of a model on all samples, in eval mode; its mode is restored afterwards.

    A model that returns losses in training mode only is scored by them, see `_training_losses`.
    """
    if objective.losses_in_training:
        with _training_losses(model) as called:
            return _evaluated(called, batches, objective, device)
    training = model.training
    model.eval()
    scores = _evaluated(model, batches, objective, device)
    model.train(training)
    return scores


@contextmanager
def _training_losses(model: nn.Module) -> Iterator[Any]:
    """Return the model's call in training mode, but with batch norm and dropout as in eval mode.

    Nothing is left changed: neither buffers nor modes nor random numbers, and the masks do not reset layers.
    """
    own = model.model if isinstance(model, MaskedModel) else model
    with preserved_modes(model), preserved_buffers(own), preserved_randomness():
        torch.manual_seed(0)  # detectors draw the samples of their losses: the same in every score
        model.eval()
        for module in own.modules():
            module.training = not isinstance(module, _FOR_TRAINING_ONLY)
        yield model.run_modules if isinstance(model, MaskedModel) else model


_FOR_TRAINING_ONLY = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


def _evaluated(called: Any, batches: Iterable[Any], objective: Objective, device: Device) -> Scores:
    values, sizes, hits, labels = list[torch.Tensor](), list[int](), list[torch.Tensor](), list[torch.Tensor]()
    for batch in device.batches(batches):
        inputs = objective.inputs(batch)
        with device.precision():
            outputs, value = objective.step(called, batch)
            if outputs is None and objective.accuracy:
                outputs = inputs.call(called)
        values.append(value.detach())
        sizes.append(inputs.batch_size)
        if objective.accuracy and (found := objective.hits(outputs, batch)):
            hits.append(found[0])
            labels.append(found[1])
    losses = read_all(values)
    loss = sum(each * size for each, size in zip(losses, sizes, strict=True)) / sum(sizes)
    if objective.accuracy:
        known = sum(read_all(labels))
        share = sum(read_all(hits)) / known
        return Scores(loss, share, math.sqrt(share * (1 - share) / known))
    return Scores(loss, loss, _standard_error(losses, sizes))


def _standard_error(means: Sequence[float], sizes: Sequence[int]) -> float | None:
    """Return the standard error of the mean over samples, from the means of batches; None for one batch."""
    if len(means) < 2 or not all(map(math.isfinite, means)):
        return None
    whole = sum(sizes)
    mean = sum(each * size for each, size in zip(means, sizes, strict=True)) / whole
    spread = sum((size / whole * (each - mean)) ** 2 for each, size in zip(means, sizes, strict=True))
    return math.sqrt(spread * len(means) / (len(means) - 1))

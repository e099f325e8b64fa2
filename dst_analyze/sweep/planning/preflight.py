"""Checks before training: find in seconds what would make a sweep fail or its results meaningless."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dst_analyze.errors import DataError, DstError, ModelError, at
from dst_analyze.masking.masked import MaskedModel, refuse_masked
from dst_analyze.model.inputs.infer import has_annotations
from dst_analyze.model.inputs.inputs import Inputs, first_samples
from dst_analyze.model.isolation import deep_copy, refuse_lazy
from dst_analyze.model.loading.load import LoadedModel, load_model
from dst_analyze.model.user_errors import is_out_of_memory, user_code
from dst_analyze.sweep.data.batches import Batches, TensorBatches, first_batch
from dst_analyze.sweep.engines.gpus import forget_locals, free_gpu_memory, peak_gpu_memory
from dst_analyze.sweep.engines.resources import BYTES_PER_PARAMETER, free_memory, gigabytes, peak_memory
from dst_analyze.sweep.training.objective import (
    IGNORED,
    class_scores,
    is_classification,
    is_language_model,
    main_output,
    own_loss,
    split_batch,
)
from dst_analyze.sweep.training.own_loop.loop import NOISE_BATCHES, SETTLING, gradient_size
from dst_analyze.sweep.training.recipe import NORMALISED
from dst_analyze.sweep.training.train import DivergedError, evaluate, train
from dst_analyze.sweep.training.trial import ModelSource, Task, seeded
from dst_analyze.text import short

# --- the model ------------------------------------------------------------------------------------------------------


def load_trainable(source: ModelSource) -> LoadedModel:
    """Return the loaded model after checking that it can be trained; on lack of memory, say what would fit."""
    try:
        loaded = source.load()
    except ModelError as error:
        if is_out_of_memory(error.__cause__):
            error.hint = _models_that_fit(source)
        raise
    with at(loaded.spec):
        refuse_lazy(loaded.model)
        refuse_masked(loaded.model)
        trainable = [p.requires_grad for p in loaded.model.parameters() if p.is_floating_point()]
        if trainable and not any(trainable):
            raise ModelError(
                "every parameter of the model is frozen, so a sweep cannot train it",
                hint="remove requires_grad_(False), or unfreeze the layers to analyse: layer.requires_grad_(True)",
            )
    return loaded


def _models_that_fit(source: ModelSource) -> str:
    free = free_memory()
    fits = f"{gigabytes(free)} are free, enough to train up to {short(free / BYTES_PER_PARAMETER)} parameters"
    try:
        model = load_model(source.spec, model_args=source.args, device="meta").model
    except DstError:
        return fits
    return f"{fits}; the model has {short(sum(parameter.numel() for parameter in model.parameters()))}"


_ONE_SAMPLE = "more than 1 value per channel"  # part of the message of torch's batch norm

# --- the data -------------------------------------------------------------------------------------------------------


def _available_samples(batches: Batches, batch: Any) -> Any:
    """Return all samples as one batch if they are in memory, else the given batch."""
    return batches.tensors if isinstance(batches, TensorBatches) else batch


def _refuse_nan(samples: Any, place: str) -> None:
    for leaf in tree_leaves(samples):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and bool(leaf.isnan().any()):
            rows = leaf.isnan().flatten(1).any(1) if leaf.ndim > 1 else leaf.isnan().reshape(-1)
            raise DataError(
                f"there are NaN in {int(rows.sum()):,} of {len(rows):,} samples, "
                f"the first of them in sample {int(rows.nonzero()[0])}",
                place=place,
                hint="remove these samples, or replace the values with torch.nan_to_num",
            )


def _refuse_labels(scores: torch.Tensor, labels: torch.Tensor, all_labels: torch.Tensor, place: str) -> None:
    """Raise if there are labels that the model has no score for."""
    classes, known = class_scores(scores, labels).shape[1], all_labels[all_labels != IGNORED]
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < classes:
        raise DataError(
            f"labels run from {int(known.min())} to {int(known.max())}, the model has scores for {classes} classes, "
            f"0 to {classes - 1}",
            place=place,
            hint="count labels from 0, and give the model's last layer one output per class",
        )


def run_preflight(task: Task, loaded: LoadedModel, place: str) -> Task:
    """Return the task after taking one step on it, in channels-last format if the model supports that.

    If the step in channels-last format fails, it is taken again in the usual format before an error is reported.
    """
    if task.device.name != "cuda":
        return _stepped(task, loaded, place)
    stepped: list[Task] = []
    needed = peak_gpu_memory(lambda: stepped.append(_stepped(task, loaded, place)))
    return replace(stepped[0], gpu_memory=needed)


def _stepped(task: Task, loaded: LoadedModel, place: str) -> Task:
    if any(loaded.model.get_parameter(layer.parameter).ndim == 4 for layer in task.traced.layers):
        innermost = replace(task, device=replace(task.device, channels_last=True))
        with suppress(DataError):
            return step_once(innermost, loaded, place)
    return step_once(task, loaded, place)


def step_once(task: Task, loaded: LoadedModel, place: str) -> Task:
    """Train a masked copy on the first batch and score it on one.

    Returns:
        The task, with ``accuracy`` (is it a classification?) and ``runs_as`` (the form it is trained in) set.
    """
    with user_code("the training data", DataError, file=loaded.file):
        batch = task.device.moved(first_batch(task.train_data, place=place))
    _refuse_nan(_available_samples(task.train_data, batch), place)
    masked = task.mask(loaded.model).to(task.device.name)
    inputs = task.objective(loaded.model).inputs(batch)
    doing = "a training step on the first batch"
    try:
        with at(place), user_code(doing, DataError, file=loaded.file, hint=_expected(inputs, task.traced.inputs)):
            outputs = _step(task, loaded, masked, batch, place)
    except DataError as error:
        if is_out_of_memory(error.__cause__):
            forget_locals(error.__cause__)
            error.hint = _batches_that_fit(task, loaded, masked, batch)
        elif _ONE_SAMPLE in str(error.__cause__):
            error.hint = "batch norm needs two samples or more per batch: give --batch-size 2 or more"
        raise
    task = replace(task, losses_in_training=_losses_in_training(task, loaded, masked, batch, outputs))
    task = replace(task, accuracy=_scores_labels(task, loaded, masked, batch, outputs))
    hint = "check that test data have the form of training data"
    with at(place), user_code("scoring the first test batch", DataError, file=loaded.file, hint=hint):
        test = first_batch(task.test_data, place="test_data()")
        if task.test_data is not task.train_data:
            _refuse_nan(_available_samples(task.test_data, test), "test_data()")
        evaluate(masked, [test], task.objective(loaded.model), task.device)
    return replace(task, runs_as=_runs_as(task, masked.train(), inputs))


def _losses_in_training(task: Task, loaded: LoadedModel, masked: MaskedModel, batch: Any, outputs: Any) -> bool:
    """True if the model returns its losses in training mode, and in eval mode only predictions, as detectors do."""
    objective = task.objective(loaded.model)
    if objective.custom is not None or own_loss(outputs) is None:
        return False
    try:
        with torch.no_grad(), task.device.precision():
            return own_loss(objective.inputs(batch).call(masked.eval())) is None
    except Exception:  # predictions may need what this machine lacks; the losses do not
        return True


def _scores_labels(task: Task, loaded: LoadedModel, masked: MaskedModel, batch: Any, outputs: Any) -> bool:
    """True if the score is an accuracy: there is a label for each vector of scores, and no language model."""
    objective, target = task.objective(loaded.model), split_batch(batch, loaded.model)[1]
    if not objective.takes_model:
        labelled = objective.custom is not None or not is_language_model(loaded.model, outputs)
        return labelled and is_classification(main_output(outputs), target)
    try:  # a loss that the user computes may be of anything: labels count where it is their cross entropy
        with torch.no_grad(), task.device.precision():
            outputs = objective.inputs(batch).call(masked.eval())
            _, loss = objective.step(masked, batch)
            return is_classification(main_output(outputs), target) and bool(
                torch.isclose(loss.float(), objective.loss(outputs, batch).float(), rtol=1e-2)
            )
    except Exception:
        return False


def _runs_as(task: Task, masked: MaskedModel, inputs: Inputs) -> str:
    """Return the form that batches are trained in, with the reason if it is not the graph."""
    if task.objective(task.traced.model).takes_model:
        return "modules: the loss calls the model itself"
    with task.device.precision():
        if masked.form.train == "graph" and not inputs.call(masked.uses_graph):
            return "modules: batches are passed in another way than the example, or the graph differs for them"
    return str(masked.form)


def _step(task: Task, loaded: LoadedModel, masked: MaskedModel, batch: Any, place: str) -> Any:
    objective = task.objective(loaded.model)
    optimizer, _ = task.recipe.start(masked)
    with task.device.precision():
        if objective.takes_model:
            outputs, loss = objective.step(masked.train(), batch)
        else:
            outputs = objective.inputs(batch).call(masked.train())
            scores, labels = main_output(outputs), split_batch(batch, loaded.model)[1]
            if objective.custom is None and is_classification(scores, labels):
                every = split_batch(_available_samples(task.train_data, batch), loaded.model)[1]
                _refuse_labels(scores, labels, every, place)
            loss = objective.loss(outputs, batch)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise DataError(
            f"the loss of the first batch cannot be differentiated: {type(loss).__name__}",
            place=f"loss({'model' if objective.takes_model else 'outputs'}, batch) of {loaded.spec}",
            hint="return one tensor with one value, computed from the outputs",
        )
    if not torch.isfinite(loss):
        raise DataError(
            f"the loss of the first batch is {loss.item()} before any training",
            place=place,
            hint="check the scale of inputs and targets; images are best from 0 to 1",
        )
    torch.autograd.backward(loss)
    optimizer.step()
    return outputs


def gradient_noise(task: Task, model: nn.Module) -> float | None:
    """Return the size of the loss's gradient on thresholds after a few steps; None if the optimizer ignores it.

    Optimizers like Adam divide each step by the size of its gradients, so the distance that alpha moves a threshold
    depends on the gradient noise of the data. It is the RMS of each layer, averaged over layers by their weights.
    """
    if task.recipe.family not in NORMALISED:
        return None
    seed = task.config.seeds[0]
    with seeded(seed):
        settled, objective = deep_copy(model).to(task.device.name), task.objective(model)
        with suppress(DivergedError):  # the trials will report it
            train(
                settled, task.train_data.stream(seed), objective, *task.recipe.start(settled), task.device,
                steps=min(SETTLING, task.steps), on_step=lambda step, loss: False,
            )  # fmt: skip
        masked = task.mask(settled, form="modules").to(task.device.name).train()
        squares = torch.zeros_like(masked.thresholds, dtype=torch.float64)
        batches = islice(task.train_data.stream(seed), NOISE_BATCHES)
        for number, batch in enumerate(task.device.batches(batches), 1):
            masked.zero_grad()
            with task.device.precision():
                _, loss = objective.step(masked, batch)
            torch.autograd.backward(loss * task.device.loss_scale)
            if masked.thresholds.grad is not None:
                gradient = masked.thresholds.grad.double() / task.device.loss_scale
                squares += (gradient.square() - squares) / number
    return gradient_size(masked, squares)


def _expected(inputs: Inputs, example: Inputs) -> str:
    return f"given {inputs.describe()}; the example inputs are {example.describe()}"


def _batches_that_fit(task: Task, loaded: LoadedModel, masked: MaskedModel, batch: Any) -> str:
    """Return a hint with the largest batch that fits, extrapolated from steps on two and on four samples."""
    gpu = task.device.name == "cuda"
    size, free = task.objective(loaded.model).inputs(batch).batch_size, free_gpu_memory() if gpu else free_memory()

    def taken(samples: int) -> int:
        few = first_samples(batch, size, samples, listed=has_annotations(batch))
        return (peak_gpu_memory if gpu else peak_memory)(lambda: _step(task, loaded, masked, few, ""))

    try:
        two, four = taken(2), taken(4)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return f"four samples need more than the {gigabytes(free)} that are free: use smaller inputs or a smaller model"
    each = max(1, (four - two) // 2)
    fits = max(0, free - two) // each + 2
    return f"{gigabytes(free)} are free, and a sample takes {gigabytes(each)}: --batch-size {min(fits, size // 2)} fits"

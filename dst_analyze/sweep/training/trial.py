"""Run one trial: build a model, train it at one alpha and seed, and measure what remains of each layer."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from dst_analyze.masking.layer import flat_layout, units_of
from dst_analyze.masking.masked import AskedForm, MaskedModel, mask_model
from dst_analyze.model.isolation import deep_copy, preserved_randomness
from dst_analyze.model.loading.load import LoadedModel, load_model
from dst_analyze.model.loading.weights import Weights, put_weights, reinitialize_modules
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import on_collapse_of
from dst_analyze.run.events import Emit, TrialStep
from dst_analyze.run.files.masks import pack_masks
from dst_analyze.run.record import ScoreKind, TrialKey, TrialOutput, TrialResult
from dst_analyze.sweep.data.batches import Batches
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.training.device import READ_EVERY, Device
from dst_analyze.sweep.training.learning import FEWEST_STEPS, guessing_loss, why_not_learned
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.measurements import PULSE, Readings
from dst_analyze.sweep.training.objective import LossHook, Objective
from dst_analyze.sweep.training.recipe import Recipe
from dst_analyze.sweep.training.train import DivergedError, OnStep, Scores, evaluate, train
from dst_analyze.sweep.training.warm_start import Origin, Warmed, origin, pack_weights, restore_weights

ModelSpec = str | os.PathLike[str] | nn.Module | Callable[..., Any]
SCORED_BATCHES = 2  # test batches per score during training


@dataclass(frozen=True)
class ModelSource:
    """The source of each trial's model: a spec is loaded again, so that each seed draws other weights.

    With ``weights``, read from the file ``weights_from``, all trials start with these.
    """

    spec: ModelSpec
    args: Mapping[str, Any]
    weights: Weights | None = None
    weights_from: str = ""

    def load(self) -> LoadedModel:
        """Return the loaded model with its starting weights."""
        loaded = load_model(self.spec, model_args=self.args)
        if self.weights is not None:
            put_weights(loaded.model, self.weights, self.weights_from)
        return loaded

    def build(self) -> nn.Module:
        """Return the module with its starting weights."""
        return self.load().model

    def untrained(self) -> nn.Module:
        """Return a copy with untrained weights, drawn from the current seed.

        They are drawn by the model's code or, if the spec is a module that exists already, by its reset_parameters().
        """
        model = deep_copy(replace(self, weights=None).build())
        if isinstance(self.spec, nn.Module):
            reinitialize_modules(model)
        return model


@dataclass(frozen=True)
class Task:
    """Everything that the trials of a sweep share."""

    source: ModelSource
    traced: TracedModel
    train_data: Batches
    test_data: Batches
    config: SweepConfig
    steps: int
    accuracy: bool
    recipe: Recipe
    device: Device = field(default_factory=Device)
    threads: int = 1
    warm_up_threads: int = 1
    loss: LossHook | None = None
    losses_in_training: bool = False  # see `Objective`
    warmed: Warmed = field(default_factory=dict)
    form: AskedForm = "auto"
    told: ScoreKind | None = None  # what the model file's evaluate(model) returns
    own_loop: bool = False  # the model file's fit(model) trains, and its evaluate(model) scores
    gpu_memory: int = 0  # bytes of a trial on a GPU, measured in the preflight
    runs_as: str = ""  # the form that trials are trained in, and why; set by the preflight

    @property
    def score(self) -> ScoreKind:
        """What trials are scored by."""
        return self.told or ("accuracy" if self.accuracy else "loss")

    def effective_alpha(self, key: TrialKey) -> float:
        """Return the factor of a trial's regulariser; zero for the dense trial."""
        return (key.alpha or 0.0) * self.config.factor

    def objective(self, model: nn.Module) -> Objective:
        """Return the loss and score for a model."""
        return Objective(model, self.loss, self.accuracy, losses_in_training=self.losses_in_training)

    def initial(self, model: nn.Module) -> Magnitudes:
        """Return the weight magnitudes of an untrained model."""
        return Magnitudes(self._weights(model))

    def initial_in_scale(self, model: nn.Module) -> Magnitudes:
        """Return the weight magnitudes of an untrained model in the scale of its thresholds."""
        weights = self._weights(model)
        if self.recipe.threshold_scale == "one":
            return Magnitudes(weights)
        units = units_of(flat_layout(self.traced.layers, self.config.threshold), list(weights.values()))
        return Magnitudes({name: weight / unit for (name, weight), unit in zip(weights.items(), units, strict=True)})

    def _weights(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {layer.name: model.get_parameter(layer.parameter) for layer in self.traced.layers}

    def mask(self, model: nn.Module, *, form: AskedForm | None = None) -> MaskedModel:
        """Return a masked copy of a model, using the trace that all models of one source share."""
        return mask_model(
            replace(self.traced, model=model),
            threshold=self.config.threshold,
            estimator=self.config.estimator,
            backend=self.config.backend,
            threshold_scale=self.recipe.threshold_scale,
            on_collapse=on_collapse_of(self.config),
            steps=self.steps,
            form=form or self.form,
        )


def run_trial(
    task: Task, key: TrialKey, emit: Emit, *, keep: Callable[[MaskedModel], None] | None = None
) -> TrialOutput:
    """Run one trial and return its result, its measurements and the final masks.

    ``keep`` is called with the trained masked model, if training ended well.

    All trials of a seed start from the weights of the same warm-up, so the dense trial differs from the masked ones
    in pruning only.
    """
    started = time.perf_counter()
    step, scores, why = task.steps, None, ""
    with seeded(key.seed):
        built = task.source.build()
        objective = task.objective(built)
        initial = None if key.alpha is None else task.initial(built)
        few = list(islice(task.test_data.once(), SCORED_BATCHES))

        def read(model: nn.Module | MaskedModel) -> Readings:
            return Readings(
                key,
                model,
                task.steps,
                lambda: evaluate(model, few, objective, task.device).score,
                emit,
                initial=initial,
                until_stable=task.config.until_stable,
            )

        # A module given as an object is the same object in every trial: train a copy.
        model: nn.Module | MaskedModel = deep_copy(built).to(task.device.name)
        readings = read(model)
        try:
            warm_start(task, model, key, objective, emit)
            if key.alpha is not None:
                model = task.mask(model).to(task.device.name)
                readings = read(model)
            step = _train(task, model, key, objective, task.steps, readings.on_step, looks_every=readings.every)
            scores = evaluate(model, task.test_data.once(), objective, task.device)
            if not math.isfinite(scores.loss):
                raise DivergedError(task.steps)
        except DivergedError as diverged:
            step, scores = diverged.step, None
            why = f"the loss was no longer finite at step {step}"
    if isinstance(model, MaskedModel) and keep is not None and not why:
        keep(model)
    return output_of(readings, model, scores, started, steps=step, stable=not why and step < task.steps, diverged=why)


def output_of(
    readings: Readings,
    model: nn.Module | MaskedModel,
    scores: Scores | None,
    started: float,
    *,
    steps: int,
    stable: bool = False,
    diverged: str = "",
) -> TrialOutput:
    """Return what a trial leaves, which began at ``started``; ``diverged`` says why it did not end well."""
    key = readings.key
    result = TrialResult(
        alpha=key.alpha,
        seed=key.seed,
        control=key.control,
        status="diverged" if diverged else "done",
        steps=steps,
        stable=stable,
        loss=scores and scores.loss,
        score=scores and scores.score,
        error=scores and scores.error,
        remaining=readings.remaining(),
        lowest=readings.lowest(),
        resets=readings.resets(),
        held=readings.held(),
        reason=diverged,
    )
    masks = None
    if isinstance(model, MaskedModel) and not diverged:
        masks = pack_masks({name: mask.cpu().numpy() for name, mask in model.masks().items()})
    seconds = time.perf_counter() - started
    return TrialOutput(result, readings.layer_frame(), readings.step_frame(), masks, seconds)


def warm_start(task: Task, model: nn.Module, key: TrialKey, objective: Objective, emit: Emit) -> None:
    """Give a trial's model the weights of its seed's warm-up, trained here if they were not handed over."""
    if task.recipe.warm_up:
        if not restore_weights(model, task.warmed.get(origin(key))):
            _warm_up(task, model, key, objective, _heartbeat(key, task.steps, emit))
        seed_all(key.seed)  # the random state must not depend on where the warm-up ran


@dataclass(frozen=True)
class WarmUpResult:
    """Weights that all trials of a seed start from; None if they diverged, or cannot be handed on.

    ``not_learned`` says why the training counts as one that has learned nothing; else "".
    """

    weights: bytes | None
    not_learned: str = ""


def train_warm_up(task: Task, start: Origin, on_step: OnStep) -> WarmUpResult:
    """Return the packed weights that all trials of a seed start from; None in it if training diverges."""
    key = TrialKey(None, *start)
    with seeded(key.seed):
        built = task.source.build()
        model, objective = deep_copy(built).to(task.device.name), task.objective(built)
        losses = list[float]()

        def followed(step: int, loss: float) -> bool:
            losses.append(loss)
            return on_step(step, loss)

        try:
            _warm_up(task, model, key, objective, followed)
        except DivergedError:
            return WarmUpResult(None)
        judged = not key.control and len(losses) >= FEWEST_STEPS
        why = why_not_learned(losses, guessing_loss(objective, task.train_data)) if judged else ""
        return WarmUpResult(pack_weights(model), why)


def _warm_up(task: Task, model: nn.Module, key: TrialKey, objective: Objective, on_step: OnStep) -> None:
    with torch_threads(task.warm_up_threads):
        _train(task, model, replace(key, alpha=None), objective, task.recipe.warm_up, on_step)


def _heartbeat(key: TrialKey, steps: int, emit: Emit) -> OnStep:
    """Return a callback that emits a trial's progress during its warm-up, as step 0."""
    last_event = time.monotonic()

    def on_step(step: int, loss: float) -> bool:
        nonlocal last_event
        if time.monotonic() - last_event >= PULSE:
            last_event = time.monotonic()
            emit(TrialStep(key, 0, steps, loss))
        return False

    return on_step


def trained_model(task: Task, build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a model trained without masks on the task's budget; ``build`` is called after seeding."""
    with seeded(seed):
        model = build().to(task.device.name)
        objective = task.objective(task.traced.model)
        _train(task, model, TrialKey(None, seed), objective, task.steps, lambda step, loss: False)
        return model


def _train(
    task: Task,
    model: nn.Module | MaskedModel,
    key: TrialKey,
    objective: Objective,
    steps: int,
    on_step: OnStep,
    *,
    looks_every: int = READ_EVERY,
) -> int:
    """Train in place by the task's recipe, with its schedule over ``steps``; return the number of steps taken."""
    return train(
        model, task.train_data.stream(key.seed), replace(objective, shuffled=key.control),
        *task.recipe.start(model, steps, alpha=task.effective_alpha(key)), task.device, steps=steps, on_step=on_step,
        looks_every=looks_every,
    )  # fmt: skip


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Temporarily seed all random generators that a model or its data may use."""
    with preserved_randomness():
        seed_all(seed)
        yield


def seed_all(seed: int) -> None:
    """Seed the generators of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)

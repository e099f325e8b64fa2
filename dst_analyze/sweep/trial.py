"""One trial: one alpha, one seed, from a fresh model to how much of each layer remains."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.model.copying import copied
from dst_analyze.model.loading import LoadedModel, load_model
from dst_analyze.model.preserve import preserved_randomness
from dst_analyze.model.tracing import TracedModel
from dst_analyze.model.weights import Weights, put_weights
from dst_analyze.sweep.data import Batches
from dst_analyze.sweep.device import Device
from dst_analyze.sweep.events import Emit
from dst_analyze.sweep.magnitudes import Magnitudes
from dst_analyze.sweep.masks import pack_masks
from dst_analyze.sweep.objective import LossHook, Objective
from dst_analyze.sweep.readings import Readings
from dst_analyze.sweep.recipe import Recipe
from dst_analyze.sweep.record import SweepConfig, TrialKey, TrialOutput, TrialResult
from dst_analyze.sweep.train import DivergedError, evaluate, train

ModelSpec = str | os.PathLike[str] | nn.Module | Callable[..., Any]
SCORED_BATCHES = 2  # of the test data, while training goes on


@dataclass(frozen=True)
class ModelSource:
    """Where each trial gets its model: a spec is loaded anew, so that every seed starts elsewhere.

    Unless there are ``weights``, from the file ``weights_from``: then all start with them.
    """

    spec: ModelSpec
    args: Mapping[str, Any]
    weights: Weights | None = None
    weights_from: str = ""

    def load(self) -> LoadedModel:
        loaded = load_model(self.spec, model_args=self.args)
        if self.weights is not None:
            put_weights(loaded.model, self.weights, self.weights_from)
        return loaded

    def build(self) -> nn.Module:
        return self.load().model


@dataclass(frozen=True)
class Task:
    """What all trials of a sweep share."""

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
    loss: LossHook | None = None

    def objective(self, model: nn.Module) -> Objective:
        return Objective(model, self.loss, self.accuracy)

    def initial(self, model: nn.Module) -> Magnitudes:
        """How large the weights of a model are that has not been trained yet."""
        return Magnitudes({layer.name: model.get_parameter(layer.parameter) for layer in self.traced.layers})

    def mask(self, model: nn.Module) -> MaskedModel:
        """A masked copy. Models of one source have the same layers: they are traced once for all trials."""
        return mask_model(
            replace(self.traced, model=model),
            threshold=self.config.threshold,
            estimator=self.config.estimator,
            operator=self.config.operator,
            steps=self.recipe.masked_steps,
        )


def run_trial(task: Task, key: TrialKey, emit: Emit) -> TrialOutput:
    """One training from a fresh model: how it ended, what was read meanwhile, the final masks.

    The weights of a masked trial are trained alone first, for as long as the recipe says, as those of the dense one.
    """
    started = time.perf_counter()
    status: Literal["done", "diverged"] = "done"
    step, loss, score = task.steps, None, None
    warm_up = 0 if key.alpha is None else task.recipe.warm_up
    with seeded(key.seed):
        built = task.source.build()
        objective = task.objective(built)
        few = list(islice(task.test_data.once(), SCORED_BATCHES))
        readings = Readings(
            key,
            task.steps,
            lambda model: evaluate(model, few, objective, task.device)[1],
            emit,
            initial=None if key.alpha is None else task.initial(built),
            warm_up=warm_up,
            until_stable=task.config.until_stable,
        )

        def trained(model: nn.Module | MaskedModel, steps: int, alpha: float) -> int:
            readings.follow(model)
            return train(
                model, task.train_data.stream(key.seed), replace(objective, shuffled=key.control),
                *task.recipe.start(model, steps), task.device, steps=steps, alpha=alpha, on_step=readings.on_step,
            )  # fmt: skip

        # A model that its file or its caller built once is the same object every time: train a copy of it.
        model: nn.Module | MaskedModel = copied(built).to(task.device.name)
        try:
            if warm_up:
                trained(model, warm_up, 0.0)
            if key.alpha is not None:
                model = task.mask(model).to(task.device.name)
            step = warm_up + trained(model, task.steps - warm_up, key.alpha or 0.0)
            loss, score = evaluate(model, task.test_data.once(), objective, task.device)
            if not math.isfinite(loss):
                raise DivergedError(task.steps)
        except DivergedError as diverged:
            status, step, loss, score = "diverged", readings.before + diverged.step, None, None
    result = TrialResult(
        alpha=key.alpha,
        seed=key.seed,
        control=key.control,
        status=status,
        steps=step,
        stable=status == "done" and step < task.steps,
        loss=loss,
        score=score,
        remaining=readings.remaining(),
        lowest=readings.lowest(),
        resets=readings.resets(),
        reason="" if status == "done" else f"the loss was no longer finite at step {step}",
    )
    masks = None
    if isinstance(model, MaskedModel) and status == "done":
        masks = pack_masks({name: mask.cpu().numpy() for name, mask in model.masks().items()})
    seconds = time.perf_counter() - started
    return TrialOutput(result, readings.layer_frame(), readings.step_frame(), masks, seconds)


def trained_model(task: Task, build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model as it is, nothing masked, trained on the task's budget; ``build`` makes it, the seed being set."""
    with seeded(seed):
        model = build().to(task.device.name)
        optimizer, schedule = task.recipe.start(model)
        train(
            model, task.train_data.stream(seed), task.objective(task.traced.model), optimizer, schedule, task.device,
            steps=task.steps, alpha=0.0, on_step=lambda step, loss: False,
        )  # fmt: skip
        return model


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Every generator that a model or its data may draw from starts at the seed, and is put back afterwards."""
    with preserved_randomness():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield

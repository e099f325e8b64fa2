"""One trial: one alpha, one seed, from a fresh model to how much of each layer remains."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR

from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import MaskedModel, mask_model
from dst_analyze.model.copying import copied
from dst_analyze.model.loading import load_model
from dst_analyze.model.preserve import preserved_randomness
from dst_analyze.model.tracing import TracedModel
from dst_analyze.sweep.data import Batches
from dst_analyze.sweep.events import Emit, TrialStep
from dst_analyze.sweep.masks import pack_masks
from dst_analyze.sweep.objective import LossHook, Objective
from dst_analyze.sweep.record import DEFAULT_LR, SweepConfig, TrialKey, TrialOutput, TrialResult, late
from dst_analyze.sweep.train import DivergedError, evaluate, train

ModelSpec = str | os.PathLike[str] | nn.Module | Callable[..., Any]
OptimizerHook = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

MOMENTUM = 0.9
DECAY, DECAY_AT = 0.1, (1 / 2, 3 / 4)
READINGS = 40
"""How many times a trial looks at its masks: ten of them in the quarter that counts."""


PULSE = 0.5
"""Seconds after which a trial says where it stands, between two readings too."""


@dataclass(frozen=True)
class ModelSource:
    """Where each trial gets its model: a spec is loaded anew, so that every seed starts elsewhere."""

    spec: ModelSpec
    args: Mapping[str, Any]

    def build(self) -> nn.Module:
        return load_model(self.spec, model_args=self.args).model


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
    threads: int = 1
    loss: LossHook | None = None
    optimizer: OptimizerHook | None = None

    def objective(self, model: nn.Module) -> Objective:
        return Objective(model, self.loss, self.accuracy)

    def mask(self, model: nn.Module) -> MaskedModel:
        """A masked copy. Models of one source have the same layers: they are traced once for all trials."""
        return mask_model(
            replace(self.traced, model=model),
            threshold=self.config.threshold,
            estimator=self.config.estimator,
            operator=self.config.operator,
            steps=self.steps,
        )


class Readings:
    """What is read off a model while it trains, at regular steps."""

    def __init__(self, task: Task, key: TrialKey, model: nn.Module | MaskedModel, emit: Emit) -> None:
        self.task, self.key, self.model, self.emit = task, key, model, emit
        self.told = time.monotonic()
        self.every = max(1, task.steps // READINGS)
        self.layers: list[tuple[int, str, float]] = []
        self.totals: list[tuple[int, float]] = []

    def on_step(self, step: int, loss: float) -> None:
        due = step % self.every == 0 or step == self.task.steps
        if due and isinstance(self.model, MaskedModel):
            self.layers.extend((step, layer, ratio) for layer, ratio in self.model.remaining().items())
            self.totals.append((step, self.model.model_remaining()))
        now = time.monotonic()
        if due or now - self.told >= PULSE:
            self.told = now
            remaining = self.totals[-1][1] if self.totals else None
            self.emit(TrialStep(self.key, step, self.task.steps, loss, remaining))

    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.layers, columns=["step", "layer", "remaining"])

    def remaining(self) -> float | None:
        """The model's ratio at the end, read as every ratio is."""
        if not self.totals:
            return None
        return float(late(pd.DataFrame(self.totals, columns=["step", "remaining"]))["remaining"].median())

    def resets(self) -> dict[str, int]:
        counts = self.model.resets if isinstance(self.model, MaskedModel) else {}
        return {layer: count for layer, count in counts.items() if count}

    def masks(self) -> bytes | None:
        """The final masks, packed."""
        if not isinstance(self.model, MaskedModel):
            return None
        return pack_masks({layer: mask.cpu().numpy() for layer, mask in self.model.masks().items()})


def run_trial(task: Task, key: TrialKey, emit: Emit) -> TrialOutput:
    """One training from a fresh model: how it ended, what was read meanwhile, the final masks."""
    started = time.perf_counter()
    status: Literal["done", "diverged"] = "done"
    step, loss, score = task.steps, None, None
    with seeded(key.seed):
        built = task.source.build()
        # A model that its file or its caller built once is the same object every time: train a copy of it.
        model = copied(built) if key.alpha is None else task.mask(built)
        objective = task.objective(built)
        optimizer = make_optimizer(model, task.config.lr, task.optimizer)
        readings = Readings(task, key, model, emit)
        try:
            train(
                model,
                task.train_data.stream(key.seed),
                objective,
                optimizer,
                make_schedule(optimizer, task.steps),
                steps=task.steps,
                alpha=key.alpha or 0.0,
                on_step=readings.on_step,
            )
            loss, score = evaluate(model, task.test_data.once(), objective)
            if not math.isfinite(loss):
                raise DivergedError(task.steps)
        except DivergedError as diverged:
            status, step, loss, score = "diverged", diverged.step, None, None
    result = TrialResult(
        alpha=key.alpha,
        seed=key.seed,
        status=status,
        steps=step,
        loss=loss,
        score=score,
        remaining=readings.remaining(),
        resets=readings.resets(),
        reason="" if status == "done" else f"the loss was no longer finite at step {step}",
    )
    masks = readings.masks() if status == "done" else None
    return TrialOutput(result, readings.frame(), masks, time.perf_counter() - started)


def make_optimizer(
    model: nn.Module | MaskedModel, lr: float | None = None, hook: OptimizerHook | None = None
) -> torch.optim.Optimizer:
    """SGD as in the paper, or the user's own; thresholds stand in a group of their own, without weight decay."""
    masked = model if isinstance(model, MaskedModel) else None
    weights = [w for w in (masked.weight_parameters() if masked else model.parameters()) if w.requires_grad]
    thresholds = list(masked.threshold_parameters()) if masked else []
    if hook is None:
        groups = [{"params": params} for params in (weights, thresholds) if params]
        return torch.optim.SGD(groups, lr=lr or DEFAULT_LR, momentum=MOMENTUM)
    optimizer = hook(weights)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"optimizer(parameters) returned {type(optimizer).__name__}",
            hint="return a torch.optim.Optimizer over the parameters it is given",
        )
    if thresholds:
        decay = {"weight_decay": 0.0} if "weight_decay" in optimizer.defaults else {}
        optimizer.add_param_group({"params": thresholds, **decay})
    return optimizer


def make_schedule(optimizer: torch.optim.Optimizer, steps: int) -> LRScheduler:
    return MultiStepLR(optimizer, [max(1, int(steps * part)) for part in DECAY_AT], DECAY)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Every generator that a model or its data may draw from starts at the seed, and is put back afterwards."""
    with preserved_randomness():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield

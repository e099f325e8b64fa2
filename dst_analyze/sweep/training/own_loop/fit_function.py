"""Trials of a model file that brings its own training: ``fit(model)``, and ``evaluate(model)`` for the score."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dst_analyze.masking.training.attach import attachable
from dst_analyze.model.isolation import deep_copy, in_mode
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import Emit
from dst_analyze.run.record import ScoreKind, TrialKey, TrialOutput
from dst_analyze.sweep.training.own_loop.loop import LoopMeter
from dst_analyze.sweep.training.own_loop.loop_trial import LoopTrial, Pace, ToldScore, untrained_weights
from dst_analyze.sweep.training.train import Scores
from dst_analyze.sweep.training.trial import ModelSource, Task, seed_all, seeded, trained_model
from dst_analyze.sweep.training.warm_start import Origin, origin, pack_weights


@dataclass(frozen=True)
class FunctionSource(ModelSource):
    """A model in memory, with functions in place of the ``fit`` and ``evaluate`` of a model file."""

    fit: Callable[[nn.Module], Any] | None = None
    evaluate: Callable[[nn.Module], Any] | None = None

    def load(self) -> LoadedModel:
        """Return the model with its functions."""
        return replace(super().load(), fit=self.fit, evaluate=self.evaluate)


@dataclass(frozen=True)
class FirstTraining:
    """What the first training has shown, in which nothing is pruned."""

    meter: LoopMeter
    untrained: dict[str, torch.Tensor]
    weights: bytes | None
    kind: ScoreKind
    output: TrialOutput
    seconds: float


def train_first(source: ModelSource, traced: TracedModel, config: SweepConfig, emit: Emit) -> FirstTraining:
    """Train a model file's model once by its own loop, and watch how it does that."""
    seed, started = config.seeds[0], time.perf_counter()
    with seeded(seed):
        loaded = source.load()
        model = deep_copy(loaded.model)
        seed_all(seed)
        trial, here = LoopTrial("first", seed), replace(traced, model=attachable(model))
        untrained = untrained_weights(here)
        with trial.start(here, config, None, emit=emit) as attached:
            fit(loaded, model)
        told = told_score(loaded, model)
    trial.told_score = told
    meter = attached.training
    assert isinstance(meter, LoopMeter)
    seconds = time.perf_counter() - started
    return FirstTraining(meter, untrained, trial.weights, told.kind, trial.output(), seconds)


def run_own_trial(task: Task, key: TrialKey, emit: Emit) -> TrialOutput:
    """Train one model of a sweep by its file's own loop, as `run_trial` does by the tool's."""
    with seeded(key.seed):
        loaded = task.source.load()
        model = deep_copy(loaded.model)
        start = task.warmed.get(origin(key))
        if task.recipe.warm_up and start is None:
            start = _warm_up(loaded, deep_copy(model), key.seed)
        seed_all(key.seed)
        trial = LoopTrial("reference" if key.alpha is None else "masked", key.seed, key.alpha)
        pace = Pace(task.steps, task.recipe.clock, task.recipe.threshold_scale)
        here = replace(task.traced, model=attachable(model))
        with trial.start(here, task.config, pace, weights=start, emit=emit):
            fit(loaded, model)
        trial.told_score = told_score(loaded, model, task.score)
    return trial.output()


def train_own_warm_up(task: Task, start: Origin) -> bytes | None:
    """Return the weights that all trials of a seed start from; None if they cannot be handed on."""
    with seeded(start[0]):
        loaded = task.source.load()
        return _warm_up(loaded, deep_copy(loaded.model), start[0])


def train_plain(task: Task, build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a model trained as the sweep's are, nothing masked; ``build`` makes it, the seed being set."""
    if not task.own_loop:
        return trained_model(task, build, seed)
    with seeded(seed):
        loaded, model = task.source.load(), build()
        seed_all(seed)
        fit(loaded, model)
    return model


def own_scores(task: Task, model: nn.Module) -> Scores:
    """Return what the model file's ``evaluate`` says of a model."""
    told = told_score(task.source.load(), model, task.score)
    return Scores(told.score if told.loss is None else told.loss, told.score, told.error)


def fit(loaded: LoadedModel, model: nn.Module) -> None:
    """Train a model by its file's own loop."""
    assert loaded.fit is not None
    model.train()
    loaded.fit(model)


def told_score(loaded: LoadedModel, model: nn.Module, before: ScoreKind | None = None) -> ToldScore:
    """Return what the file's ``evaluate`` says of a model, which is left in the mode it was in.

    ``before`` is the kind of score that it has returned so far.
    """
    assert loaded.evaluate is not None
    training = model.training
    try:
        return ToldScore.of_hook(
            loaded.evaluate(in_mode(model, training=False)), f"evaluate() of {loaded.spec}", before
        )
    finally:
        model.train(training)


def _warm_up(loaded: LoadedModel, model: nn.Module, seed: int) -> bytes | None:
    seed_all(seed)
    fit(loaded, model)
    return pack_weights(model)

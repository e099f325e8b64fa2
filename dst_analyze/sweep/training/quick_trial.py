"""A trial of a quick run: the trained dense model, and nothing trained after it; its smallest weights go at once."""

from __future__ import annotations

import math
import time

import torch

from dst_analyze.masking.masked import MaskedModel
from dst_analyze.model.isolation import deep_copy
from dst_analyze.run.events import Emit
from dst_analyze.run.record import TrialKey, TrialOutput
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.measurements import Readings
from dst_analyze.sweep.training.train import DivergedError, evaluate
from dst_analyze.sweep.training.trial import Task, output_of, seeded, warm_start


def run_quick_trial(task: Task, key: TrialKey, emit: Emit) -> TrialOutput:
    """Score the dense model of a seed, pruned by magnitude to what a trial's strength leaves.

    The strength, in place of an alpha, is the share of all weights that goes. One threshold for all layers decides
    which, so that thresholds that nobody trained give masks, readings and scores as a sweep's do.
    """
    started = time.perf_counter()
    scores, why = None, ""
    with seeded(key.seed):
        built = task.source.build()
        objective = task.objective(built)
        initial = None if key.alpha is None else task.initial(built)
        model: torch.nn.Module | MaskedModel = deep_copy(built).to(task.device.name)
        readings = Readings(key, model, 1, None, emit)
        try:
            warm_start(task, model, key, objective, emit)
            if key.alpha is not None:
                model = pruned(task, model, key.alpha)
                readings = Readings(key, model, 1, None, emit, initial=initial)
            readings.on_step(1, None)
            scores = evaluate(model, task.test_data.once(), objective, task.device)
            if not math.isfinite(scores.loss):
                raise DivergedError(1)
        except DivergedError:
            scores, why = None, "the loss is not finite"
    return output_of(readings, model, scores, started, steps=0, diverged=why)


@torch.no_grad()
def pruned(task: Task, dense: torch.nn.Module, strength: float) -> MaskedModel:
    """Return a trained model whose smallest weights, this share of all layers' together, are masked."""
    model = task.mask(dense).to(task.device.name)
    model.thresholds.fill_(Magnitudes(model.layer_weights()).threshold_keeping(1 - strength))
    return model

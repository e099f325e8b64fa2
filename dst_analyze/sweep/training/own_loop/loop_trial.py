"""One trial whose training is a loop of the user's: masks attached, readings taken, a score told."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.masked import masked_in_place
from dst_analyze.masking.training.attach import AttachedMasks
from dst_analyze.masking.training.optimizer_steps import Optimizers
from dst_analyze.masking.training.threshold_training import ThresholdTraining
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.config import SweepConfig, ThresholdScale
from dst_analyze.run.defaults import on_collapse_of
from dst_analyze.run.events import Emit
from dst_analyze.run.files.masks import pack_masks
from dst_analyze.run.record import ScoreKind, TrialKey, TrialOutput, TrialResult
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.measurements import Readings, without_readings
from dst_analyze.sweep.training.own_loop.loop import LoopMeter, Untouched
from dst_analyze.sweep.training.warm_start import pack_weights, restore_weights

Role = Literal["first", "warm-up", "reference", "masked"]

UNKNOWN = 10**9
"""Steps of a training that has not been seen yet: it is read at its end only."""


@dataclass(frozen=True)
class Pace:
    """What the first training of a sweep decides for the others."""

    steps: int
    clock: float
    unit: ThresholdScale


@dataclass(frozen=True)
class ToldScore:
    """How well a trained model does, checked."""

    score: float
    kind: ScoreKind
    loss: float | None = None
    error: float | None = None

    @classmethod
    def of(
        cls,
        score: float,
        *,
        loss: float | None = None,
        error: float | None = None,
        higher_is_better: bool = True,
        share: bool | None = None,
        place: str = "trial.tell()",
        before: ScoreKind | None = None,
    ) -> ToldScore:
        """Return the score, or raise an `OptionError` if it is none, or of another kind than those ``before``."""
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise OptionError(
                f"{score!r} is no score",
                place=place,
                hint='give a finite number; in a Study a training that diverged is told with trial.failed("...")',
            )
        kind = _kind(float(score), higher_is_better, share, before)
        if kind == "accuracy" and not 0 <= score <= 1:
            raise OptionError(
                f"a score of {score} is no share between 0 and 1{'' if share else ', as the scores before it are'}",
                place=place,
                hint="tell all scores of a sweep in one unit; share=False from the first on, if they are no shares",
            )
        if before not in (None, kind):
            raise OptionError(
                f"this score is {_KINDS[kind]}, and the sweep's others are {_KINDS[before]}",
                place=place,
                hint="tell the same kind of score for every trial",
            )
        if loss is None and kind == "loss":
            loss = float(score)
        return cls(float(score), kind, loss, error)

    @classmethod
    def of_hook(cls, value: Any, place: str, before: ScoreKind | None = None) -> ToldScore:
        """Return what a model file's ``evaluate(model)`` has returned: a number, or a dict with ``score``."""
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, Mapping):
            return cls.of(value, place=place, before=before)
        known = ("score", "loss", "error", "higher_is_better", "share")
        if "score" not in value or any(name not in known for name in value):
            raise OptionError(
                f"evaluate(model) returned a dict with {', '.join(map(str, value)) or 'nothing'}",
                place=place,
                hint=f"it needs score, and may have {', '.join(known[1:])}",
            )
        options = {name: value[name] for name in known[1:] if name in value}
        return cls.of(value["score"], place=place, before=before, **options)


_KINDS: dict[ScoreKind | None, str] = {
    "accuracy": "a share between 0 and 1",
    "loss": "a loss",
    "score": "a number of which higher is better",
}


def _kind(score: float, higher_is_better: bool, share: bool | None, before: ScoreKind | None) -> ScoreKind:
    """Return what kind of score this is; unless it is said, the first one of a sweep decides it."""
    if not higher_is_better:
        return "loss"
    if share is None and before in ("accuracy", "score"):
        return before
    return "accuracy" if share or (share is None and 0 <= score <= 1) else "score"


def untrained_weights(traced: TracedModel) -> dict[str, torch.Tensor]:
    """Return copies of the layers' weights by name."""
    return {layer.name: traced.model.get_parameter(layer.parameter).detach().clone() for layer in traced.layers}


class LoopTrial:
    """What is read of one training while masks are attached, and what is kept of it."""

    def __init__(self, role: Role, seed: int, alpha: float | None = None) -> None:
        self.role, self.seed, self.alpha = role, seed, alpha
        self.key = TrialKey(alpha, seed)
        self.readings: Readings | None = None
        self.masks: bytes | None = None
        self.weights: bytes | None = None  # after a training that others start from
        self.attached: AttachedMasks | None = None
        self.ended = False
        self.told_score: ToldScore | None = None
        self.reason = ""
        self._loss: float | None = None
        self._started = time.perf_counter()

    @property
    def label(self) -> str:
        """The trial in words."""
        return f"warm-up, seed {self.seed}" if self.role == "warm-up" else self.key.label

    def start(
        self,
        traced: TracedModel,
        config: SweepConfig,
        pace: Pace | None,
        *,
        weights: bytes | None = None,
        optimizers: Optimizers | None = None,
        methods: Sequence[str] = (),
        written: bool = True,
        emit: Emit,
    ) -> AttachedMasks:
        """Attach masks to a traced model, or only look on where nothing is to be pruned.

        Args:
            traced: The model, freshly built.
            config: The sweep's configuration, with the factor of its alphas once that is known.
            pace: What the first training has decided; None in that training.
            weights: Trained weights to start from.
            optimizers: The optimizer of the model's weights, if it is known.
            methods: Methods beside ``forward`` that the loop calls.
            written: Leaving writes the zeros of the masks into the weights.
            emit: Gets the events.
        """
        self.ended, self.masks, self._started = False, None, time.perf_counter()
        model, pruned = traced.model, self.role == "masked"
        initial = Magnitudes({layer.name: model.get_parameter(layer.parameter) for layer in traced.layers})
        if weights is not None and not restore_weights(model, weights):
            raise ModelError(
                "the weights that were trained first do not fit this model",
                place="trial.attach()",
                hint="build the same model for every trial",
            )
        masked = masked_in_place(
            traced,
            threshold=config.threshold,
            estimator=config.estimator,
            backend=config.backend,
            threshold_scale=pace.unit if pace and pruned else "one",
            on_collapse=on_collapse_of(config),
            steps=pace.steps if pace else None,
        )
        training: ThresholdTraining | LoopMeter
        if pruned:
            assert pace is not None
            training = ThresholdTraining(masked, (self.alpha or 0.0) * config.factor, clock=pace.clock)
        else:
            training = LoopMeter(masked) if self.role == "first" else Untouched(masked)
        read: nn.Module = masked if pruned else model
        self.readings = Readings(self.key, read, pace.steps if pace else UNKNOWN, None, emit, initial=initial)
        self.attached = AttachedMasks(
            model, masked, training, optimizers, methods=methods, written=written and pruned, observer=self
        )
        return self.attached

    def log(self, loss: float) -> None:
        """Note the loss of the present step, for the report's curves; optional."""
        self._loss = loss

    def on_step(self, step: int) -> None:
        """Take a reading after a step, where it is time to."""
        if self.readings is not None:
            self.readings.on_step(step, self._loss)
            self._loss = None

    def end(self, attached: AttachedMasks) -> None:
        """Take the last readings, while the model still has its masks."""
        if self.readings is not None:
            self.readings.finish(attached.training.steps)
        if self.role == "masked":
            self.masks = pack_masks({name: mask.cpu().numpy() for name, mask in attached.masks().items()})
        if self.role in ("first", "warm-up"):
            self.weights = pack_weights(attached.model)
        self.ended = True

    def state_dict(self) -> dict[str, Any]:
        """Return the readings so far, for a checkpoint: it is a part of the masks' `state_dict`."""
        return {} if self.readings is None else self.readings.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        if self.readings is not None:
            self.readings.load_state_dict(state)

    def output(self) -> TrialOutput:
        """Return what is kept of the trial."""
        readings, told = self.readings, None if self.reason else self.told_score
        if readings is None:
            return without_readings(self.key, "diverged", self.reason, 0.0)
        result = TrialResult(
            alpha=self.alpha,
            seed=self.seed,
            status="diverged" if self.reason else "done",
            reason=self.reason,
            steps=self.attached.training.steps if self.attached else 0,
            loss=None if told is None else told.loss,
            score=None if told is None else told.score,
            error=None if told is None else told.error,
            remaining=readings.remaining(),
            lowest=readings.lowest(),
            resets=readings.resets(),
            held=readings.held(),
        )
        seconds = time.perf_counter() - self._started
        masks = None if self.reason else self.masks
        return TrialOutput(result, readings.layer_frame(), readings.step_frame(), masks, seconds)

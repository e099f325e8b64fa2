"""`StudyTrial`: one training that a study asks for, and what its trials share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.training.attach import AttachedMasks, attachable, same_layers
from dst_analyze.masking.training.optimizer_steps import Optimizers
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import Emit, ignore_event
from dst_analyze.run.record import Manifest, ScoreKind
from dst_analyze.study.processes import share_weights
from dst_analyze.sweep.training.own_loop.loop_trial import LoopTrial, Pace, Role, ToldScore, untrained_weights


@dataclass
class StudyState:
    """What the trials of a study share.

    Attributes:
        config: The configuration, with the factor of its alphas once the first training has ended.
        emit: Gets the events.
        known_layers: Returns the weights of each layer by name, as the run folder has them; None without a folder.
        manifest: What the first training has decided; None before it.
        kind: What scores are, once one has been told.
        warm: Weights that trials start from, by seed.
        traced: The model that was attached to last.
        untrained: Its weights before the first training.
    """

    config: SweepConfig
    emit: Emit = ignore_event
    known_layers: Callable[[], dict[str, int] | None] = lambda: None
    manifest: Manifest | None = None
    kind: ScoreKind | None = None
    warm: dict[int, bytes | None] = field(default_factory=dict)
    traced: TracedModel | None = None
    untrained: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def pace(self) -> Pace | None:
        """What the first training has decided for the others."""
        made = self.manifest
        return None if made is None else Pace(made.steps, made.clock, made.unit)

    def start_of(self, trial: LoopTrial) -> bytes | None:
        """Return the trained weights that a trial starts from; None if it starts untrained."""
        warmed = self.manifest is not None and self.manifest.warm_up > 0 and trial.role in ("reference", "masked")
        return self.warm.get(trial.seed) if warmed else None

    def trace(self, model: nn.Module, example_inputs: Any) -> TracedModel:
        """Return the model's trace; models built alike are traced once."""
        known = self.traced
        if known is not None and same_layers(known, model):
            self.traced = replace(known, model=model)
            return self.traced
        traced = trace_model(model, example_inputs, include=self.config.include, exclude=self.config.exclude)
        now = {layer.name: layer.params for layer in traced.layers}
        before = {layer.name: layer.params for layer in known.layers} if known else self.known_layers()
        if before is not None and before != now:
            differ = next(name for name in {**before, **now} if before.get(name) != now.get(name))
            raise ModelError(
                f"this model is another one than the study's: {differ} has {now.get(differ, 'no')} weights, "
                f"and had {before.get(differ, 'none')}",
                place="trial.attach()",
                hint="build the same model for every trial, or begin another study",
            )
        self.traced = traced
        return traced


class StudyTrial(LoopTrial):
    """One training that a study asks for: attach it to a model, train that, tell its score.

    Attributes:
        key: What it is kept under; None for a training that only makes weights to start from.
        role: "first" (its length decides what it is), "warm-up", "reference" or "masked".
        seed: What to make the model and its data with.
        alpha: Strength of pruning, as it was given; None where nothing is pruned.
    """

    def __init__(self, state: StudyState, role: Role, seed: int, alpha: float | None = None) -> None:
        super().__init__(role, seed, alpha)
        self._state = state
        self.told = False

    def __repr__(self) -> str:
        return f"StudyTrial({self.role}, {self.label})"

    def attach(
        self,
        model: nn.Module,
        example_inputs: Any,
        optimizer: Optimizers | None = None,
        *,
        methods: Sequence[str] = (),
        write_zeros: bool = True,
    ) -> AttachedMasks:
        """Attach the trial to a model, for the ``with`` block in which your loop trains it.

        Args:
            model: A model built for this trial; where the study starts from trained weights, they are put into it.
            example_inputs: A tensor, a tuple of arguments or a dict of keywords.
            optimizer: The optimizer of its weights, or several; without one, it is found by its first step.
            methods: Methods beside ``forward`` that the loop calls.
            write_zeros: Leaving the block writes the zeros of the masks into the weights.

        Returns:
            A context manager with `remaining`, `masks`, `state_dict` and `load_state_dict`.

        Raises:
            ModelError: The model cannot be attached to, or is another one than the trials before had.
            OptionError: The trial has been told already.
        """
        if self.told:
            raise OptionError(f"the trial is over: {self.label}", place="trial.attach()", hint="take the study's next")
        state = self._state
        traced = state.trace(attachable(model), example_inputs)
        share_weights(traced.model)
        if self.role == "first":
            state.untrained = untrained_weights(traced)
        return self.start(
            traced,
            state.config,
            state.pace,
            weights=state.start_of(self),
            optimizers=optimizer,
            methods=methods,
            written=write_zeros,
            emit=state.emit,
        )

    def end(self, attached: AttachedMasks) -> None:
        """Take the last readings, and keep weights that other trials start from."""
        super().end(attached)
        if self.role in ("first", "warm-up"):
            self._state.warm[self.seed] = self.weights

    def tell(
        self,
        score: float,
        *,
        loss: float | None = None,
        error: float | None = None,
        higher_is_better: bool = True,
        share: bool | None = None,
    ) -> None:
        """Tell how well the trained model does on data that it was not trained on.

        Where several processes train the study, the first one's score counts.

        Args:
            score: Any finite number: accuracy as a share, a loss, points, a reward.
            loss: The loss on the same data, if the score is none.
            error: The score's standard error, if it is known.
            higher_is_better: False if the score is a loss or an error.
            share: False if it is no share between 0 and 1; without it, the first score decides.

        Raises:
            OptionError: Nothing was trained, the score is not finite, or of another kind than those before.
        """
        if self.told:
            raise OptionError(f"told twice: {self.label}", place="trial.tell()", hint="take the study's next trial")
        if not self.ended:
            raise OptionError(
                f"nothing was trained for {self.label}",
                place="trial.tell()",
                hint="train a model inside `with trial.attach(...)`, then tell its score",
            )
        told = ToldScore.of(
            score, loss=loss, error=error, higher_is_better=higher_is_better, share=share, before=self._state.kind
        )
        self._state.kind, self.told_score, self.told = told.kind, told, True

    def failed(self, reason: str) -> None:
        """Tell that the training did not end well; the trial is left out of the ranking."""
        self.told, self.reason = True, reason or "it failed"

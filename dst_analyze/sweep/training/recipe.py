"""The training recipe of a run: optimizer, learning rate, schedule, weight decay, thresholds' clock and length.

The paper trains for 160 epochs, a sweep for some thousand steps. The thresholds' learning rate is therefore a multiple
of the weights' (the clock), and a cap bounds each of their steps. docs/experiments/thresholds.md has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.masking.masks import ThresholdScale
from dst_analyze.masking.training.threshold_training import LARGEST_SHARE, ThresholdTraining
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import AskedPace
from dst_analyze.run.record import DefaultOptimizer

OptimizerHook = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

MOMENTUM = 0.9
NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
LEARNING_RATES = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}

RISE, LONGEST_RISE = 0.05, 500
"""The share of a training, and the most steps, over which a rate rises that is chosen for a model."""

PAPER_RATES = {**LEARNING_RATES, "sgd": 0.1}
PAPER_EPOCHS = 160
"""Defaults of ``--recipe paper``: the paper's CIFAR-10 runs; schedule and momentum are those of the short recipe."""


def _step_decay(done: float) -> float:
    return 0.1 ** ((done >= 1 / 2) + (done >= 3 / 4))


def _cosine(done: float) -> float:
    return (1 + math.cos(math.pi * done)) / 2


def _one_cycle(done: float) -> float:
    rise = 0.3
    return 0.04 + 0.96 * done / rise if done < rise else _cosine((done - rise) / (1 - rise))


SCHEDULES: dict[str, tuple[Callable[[float], float], str]] = {
    "step": (_step_decay, "times 0.1 at half and at three quarters"),
    "cosine": (_cosine, "falling to zero along a cosine"),
    "onecycle": (_one_cycle, "rising for three tenths, then falling to zero along a cosine"),
    "constant": (lambda done: 1.0, "constant"),
}

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda groups, **options: torch.optim.SGD(groups, momentum=MOMENTUM, **options),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}

_FAMILIES: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    **dict.fromkeys(
        (torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.RMSprop), "adam"
    ),
}

NORMALISED = ("adam", "adamw")
"""Optimizer families that divide each step by the size of the gradients."""


@dataclass(frozen=True)
class Recipe:
    """The training recipe of a sweep's trials; ``family`` of the optimizer is "sgd", "adam", "adamw" or "other"."""

    family: str
    lr: float
    momentum: float
    schedule: str
    weight_decay: float
    steps: int
    clock: float  # the thresholds' learning rate over the weights'
    warm_up: int  # steps of dense training before a masked trial
    threshold_scale: ThresholdScale
    asked: AskedPace  # those of the last three that were set, not derived from the length of the run
    hook: OptimizerHook | None = None
    rises: bool = False  # the rate, over the first steps
    reason: str = ""  # why this optimizer was chosen; "" if it was asked for

    @classmethod
    def of(
        cls,
        config: SweepConfig,
        steps: int,
        asked: AskedPace | None = None,
        default: DefaultOptimizer | None = None,
    ) -> Recipe:
        """Return the recipe of a configuration; ``asked`` replaces its pace when an earlier run is reloaded.

        ``default`` is the optimizer of this model where the options name none.
        """
        chosen = default if config.optimizer is None and config.recipe != "paper" else None
        family = config.optimizer or (chosen.family if chosen else "sgd")
        rates = PAPER_RATES if config.recipe == "paper" else LEARNING_RATES
        lr = config.lr or (chosen.lr if chosen else rates[family])
        momentum = MOMENTUM if family == "sgd" else 0.0
        decay = config.weight_decay or 0.0
        pace = _resolve_pace(asked or AskedPace.of(config), steps, family)
        made = cls(family, lr, momentum, config.schedule, decay, *pace)
        return replace(made, rises=chosen.rises, reason=chosen.reason) if chosen else made

    @classmethod
    def of_hook(
        cls,
        config: SweepConfig,
        steps: int,
        hook: OptimizerHook,
        model: nn.Module,
        *,
        place: str,
        asked: AskedPace | None = None,
    ) -> Recipe:
        """Return the recipe with the user's ``optimizer(parameters)``; raise on options that it would ignore."""
        given = {"--lr": config.lr, "--optimizer": config.optimizer, "--weight-decay": config.weight_decay}
        for option, value in given.items():
            if value is not None:
                raise OptionError(
                    f"{option} has no effect: the model file has its own optimizer",
                    place=place,
                    hint="set it there, or remove optimizer() from the file",
                )
        own = _call_hook(hook, [w for w in model.parameters() if w.requires_grad])
        family = family_of(own)
        first = own.param_groups[0]
        lr, momentum = float(first.get("lr", 1.0)), float(first.get("momentum", 0.0))
        return cls(
            family,
            lr,
            momentum,
            config.schedule,
            0.0,
            *_resolve_pace(asked or AskedPace.of(config), steps, family),
            hook,
        )

    def lasting(self, steps: int) -> Recipe:
        """Return the recipe of a run of another length; what was not set explicitly is derived from it."""
        steps, clock, warm_up, threshold_scale, _ = _resolve_pace(self.asked, steps, self.family)
        return replace(self, steps=steps, clock=clock, warm_up=warm_up, threshold_scale=threshold_scale)

    @property
    def rates(self) -> np.ndarray:
        """The thresholds' learning rate at every step."""
        return self.lr * self.clock * np.array([self.rate_at(step, self.steps) for step in range(self.steps)])

    def rate_at(self, step: int, steps: int) -> float:
        """The share of the learning rate that a step of a training has, counted from 0."""
        risen = min((step + 1) / max(1, min(RISE * steps, LONGEST_RISE)), 1.0) if self.rises else 1.0
        return SCHEDULES[self.schedule][0](min(step / steps, 1.0)) * risen

    @property
    def farthest(self) -> float:
        """The largest distance of a threshold in the whole run, as a multiple of its row's mean magnitude."""
        return math.inf if self.clock == 1 else LARGEST_SHARE * self.steps

    def start(
        self, model: nn.Module | MaskedModel, steps: int | None = None, *, alpha: float = 0.0
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        """Return an optimizer and its schedule; thresholds are trained beside the weights, in the optimizer's steps.

        The schedule spans ``steps``, by default those of a trial; ``alpha`` is the regulariser's strength.
        """
        masked, whole = model if isinstance(model, MaskedModel) else None, steps or self.steps
        weights = [w for w in (masked.weight_parameters() if masked else model.parameters()) if w.requires_grad]
        optimizer = self.make_optimizer(weights)
        if masked is not None:
            self.train_thresholds(masked, alpha).follow(optimizer)
        return optimizer, LambdaLR(optimizer, lambda step: self.rate_at(step, whole))

    def train_thresholds(self, masked: MaskedModel, alpha: float) -> ThresholdTraining:
        """Return the training of a model's thresholds on this recipe's clock."""
        return ThresholdTraining(masked, alpha, clock=self.clock)

    def make_optimizer(self, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of these weights."""
        if self.hook is not None and weights:
            return _call_hook(self.hook, weights)
        make = OPTIMIZERS.get(self.family, OPTIMIZERS["sgd"])
        # Where all weights are frozen, an empty one carries the learning rate that the thresholds follow.
        # On a GPU a fused step reads the gradient scaler's verdict there; others wait for it.
        options = {"fused": True} if weights and all(weight.is_cuda for weight in weights) else {}
        return make(weights or [nn.Parameter(torch.empty(0))], lr=self.lr, weight_decay=self.weight_decay, **options)

    def describe(self) -> str:
        """Return the recipe in words, for a report."""
        what = "the optimizer of the model file" if self.hook else NAMES[self.family]
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        warm = f"; every trial starts from weights trained for {self.warm_up:,} steps" if self.warm_up else ""
        rise = f" that rises over the first {RISE:.0%} of a training" if self.rises else ""
        why = f" (chosen because {self.reason})" if self.reason else ""
        return f"{what}{why}, learning rate {self.lr:g}{rise}{momentum}{decay}, {SCHEDULES[self.schedule][1]}{warm}"


def family_of(optimizer: torch.optim.Optimizer) -> str:
    """Return how an optimizer steps: "sgd", "adam" or "other"."""
    return next((family for kind, family in _FAMILIES.items() if isinstance(optimizer, kind)), "other")


def _resolve_pace(asked: AskedPace, steps: int, family: str) -> tuple[int, float, int, ThresholdScale, AskedPace]:
    return steps, asked.clock_in(steps, family), asked.warm_up_in(steps), asked.threshold_scale_in(steps), asked


def _call_hook(hook: OptimizerHook, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = hook(weights)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"optimizer(parameters) returned {type(optimizer).__name__}",
            hint="return a torch.optim.Optimizer over the parameters it is given",
        )
    return optimizer

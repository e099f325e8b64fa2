"""The recipe of a run: optimizer, learning rate, schedule, decay, the thresholds' clock, length. All of it is here.

The paper trains for 160 epochs; a sweep has some thousand steps. Thresholds therefore run on a clock of their own:
their learning rate is a multiple of the weights'. Measured without warm-up, with SGD, lr 0.05, batch 64, one seed (tau:
Kendall's, of the layers' order with that of a run of 7,200 steps at clock 1, for VGG of 9,400 steps):

    600 steps                           clock     1     5    15    50   300
    demo net on digits, alpha 3e-4
        no cap                      remaining   .76   .64   .25   .48   .30   (the long run: .08)
                                     accuracy   .99   .98   .99   .08   .08
        cap of 2 %                  remaining     -   .62   .56   .50   .52
                                     accuracy     -   .99   .98   .99   .99
                                          tau   .95   1.0   .80   .80   .80   (clock 1: without a cap)
    LeNet-300-100 on MNIST, alpha 1e-4
        no cap                      remaining   .64   .60   .60   .55   .16   (the long run: .26)
                                     accuracy   .95   .95   .95   .94   .21
        cap of 2 %                  remaining     -   .61   .56   .56   .56   (accuracy .95 throughout)
    VGG-16 of quarter width on CIFAR-10, 500 steps, alpha 1e-5
        clock 15: without cap tau .44, accuracy .33, 17 flips of rows; with a cap of 2 % .48, .44, 0
        clock 60: without cap tau .27, accuracy .22, 144 flips;        with a cap of 2 % .46, .39, 1

So it is the cap that keeps the pattern: with it no clock destroys anything, beyond 15 little changes. A cap of 0.5 %
holds thresholds back (LeNet keeps .76 at clock 15); one of 5 % lets 300 steps at clock 30 fail (the demo net's accuracy
is .08, with 2 % .96). FULL_LENGTH / steps is the rule: it carries thresholds as far as 9,000 steps would, in which the
paper's figure for VGG is seen, and gives the 10 for 900 and the 30 for 300 steps that had worked before. Alphas 1e-4,
3e-4, 1e-3 then leave .70, .56, .25 of the demo net, .56, .35, .12 of LeNet. Holding thresholds still for the first 10
or 30 % of the run made them prune less (.66, .61 for .56) in no better order; to train weights with a schedule of their
own before they are masked, as long as afterwards, is another matter (warm_up.py). The cap costs 1.7 % of a step on
LeNet, nothing on VGG. With Adam nothing was measured: its thresholds travel far at any alpha (see forecast.py), so its
clock is 1. What sweeps of other lengths, rates, batches and alphas see is in docs/evidence.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.masking.masks import ThresholdScale
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import (
    asked_clock,
    asked_unit,
    asked_warm_up,
    default_clock,
    unit_of,
    warm_up_of,
)
from dst_analyze.sweep.training.threshold_limit import ThresholdCap

OptimizerHook = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

MOMENTUM = 0.9
NAMES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
LEARNING_RATES = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3}

PAPER_RATES = {**LEARNING_RATES, "sgd": 0.1}
PAPER_EPOCHS = 160
"""What ``--recipe paper`` has for defaults: the paper's CIFAR-10 runs, whose schedule and momentum are ours."""

LARGEST_SHARE = 0.02
"""How far a threshold on a faster clock may move in one step, as a share of its row's mean magnitude."""


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

_DECAYS = ("weight_decay", "lambd")
"""What optimizers call a pull towards zero; none of it on thresholds, where it would undo what alpha asks for."""

_FAMILIES: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    **dict.fromkeys(
        (torch.optim.Adam, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.RMSprop), "adam"
    ),
}

NORMALISED = ("adam", "adamw")
"""Families whose steps are divided by the size of the gradients."""


@dataclass(frozen=True)
class Recipe:
    """How the trials of a sweep are trained. ``family`` is how the optimizer steps: "sgd", "adam", "adamw", "other"."""

    family: str
    lr: float
    momentum: float
    schedule: str
    weight_decay: float
    asked_clock: float | None
    asked_warm_up: int | None
    asked_unit: ThresholdScale | None
    steps: int
    hook: OptimizerHook | None = None

    @classmethod
    def of(cls, config: SweepConfig, steps: int) -> Recipe:
        """The recipe that the options ask for."""
        family = config.optimizer or "sgd"
        lr = config.lr or (PAPER_RATES if config.recipe == "paper" else LEARNING_RATES)[family]
        momentum = MOMENTUM if family == "sgd" else 0.0
        decay = config.weight_decay or 0.0
        return cls(family, lr, momentum, config.schedule, decay, *_asked(config), steps)

    @classmethod
    def of_hook(cls, config: SweepConfig, steps: int, hook: OptimizerHook, model: nn.Module, *, place: str) -> Recipe:
        """The same around the user's ``optimizer(parameters)``; options that it would ignore are refused."""
        given = {"--lr": config.lr, "--optimizer": config.optimizer, "--weight-decay": config.weight_decay}
        for option, value in given.items():
            if value is not None:
                raise OptionError(
                    f"{option} has no effect: the model file brings its own optimizer",
                    place=place,
                    hint="set it there, or take optimizer() out of the file",
                )
        own = _made_by(hook, [w for w in model.parameters() if w.requires_grad])
        family = next((family for kind, family in _FAMILIES.items() if isinstance(own, kind)), "other")
        first = own.param_groups[0]
        lr, momentum = float(first.get("lr", 1.0)), float(first.get("momentum", 0.0))
        return cls(family, lr, momentum, config.schedule, 0.0, *_asked(config), steps, hook)

    @property
    def warm_up(self) -> int:
        """How many steps the weights of a masked trial are trained as a dense model's are, before its own."""
        return warm_up_of(self.asked_warm_up, self.steps)

    @property
    def unit(self) -> ThresholdScale:
        """What thresholds are counted in."""
        return unit_of(self.asked_unit, self.steps)

    @property
    def clock(self) -> float:
        """How many times faster than the weights' the thresholds' learning rate is."""
        return self.asked_clock or default_clock(self.family, self.steps)

    @property
    def rates(self) -> np.ndarray:
        """The thresholds' learning rate at every step."""
        factor = SCHEDULES[self.schedule][0]
        return self.lr * self.clock * np.array([factor(step / self.steps) for step in range(self.steps)])

    @property
    def farthest(self) -> float:
        """How far a threshold may go in the whole run, as a multiple of its row's mean magnitude."""
        return math.inf if self.clock == 1 else LARGEST_SHARE * self.steps

    def start(
        self, model: nn.Module | MaskedModel, steps: int | None = None
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        """An optimizer and its schedule for one model; thresholds stand in a group of their own, without decay.

        The schedule is for so many ``steps``, else for those of a trial.
        """
        masked, whole = model if isinstance(model, MaskedModel) else None, steps or self.steps
        weights = [w for w in (masked.weight_parameters() if masked else model.parameters()) if w.requires_grad]
        thresholds = list(masked.threshold_parameters()) if masked else []
        optimizer = self.make_optimizer(weights, thresholds)
        if masked is not None and self.clock != 1:
            ThresholdCap(masked, LARGEST_SHARE).attach(optimizer)
        factor = SCHEDULES[self.schedule][0]
        return optimizer, LambdaLR(optimizer, lambda step: factor(min(step / whole, 1.0)))

    def make_optimizer(self, weights: list[nn.Parameter], thresholds: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer of these weights and thresholds, each in a group of its own."""
        if self.hook is None or not weights:
            make = OPTIMIZERS.get(self.family, OPTIMIZERS["sgd"])  # nothing but thresholds to train: any will do
            groups: list[dict[str, Any]] = [{"params": weights, "weight_decay": self.weight_decay}] if weights else []
            if thresholds:
                groups.append({"params": thresholds, "weight_decay": 0.0, "lr": self.lr * self.clock})
            return make(groups, lr=self.lr)
        optimizer = _made_by(self.hook, weights)
        if thresholds:
            still = {name: 0.0 for name in _DECAYS if name in optimizer.defaults}
            rate = {"lr": optimizer.param_groups[0]["lr"] * self.clock} if "lr" in optimizer.param_groups[0] else {}
            optimizer.add_param_group({"params": thresholds, **still, **rate})
        return optimizer

    def describe(self) -> str:
        """In words, for a report."""
        what = "the optimizer of the model file" if self.hook else NAMES[self.family]
        momentum = f", momentum {self.momentum:g}" if self.momentum else ""
        decay = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        warm = f"; every trial starts from weights trained for {self.warm_up:,} steps" if self.warm_up else ""
        return f"{what}, learning rate {self.lr:g}{momentum}{decay}, {SCHEDULES[self.schedule][1]}{warm}"


def _asked(config: SweepConfig) -> tuple[float | None, int | None, ThresholdScale | None]:
    return asked_clock(config), asked_warm_up(config), asked_unit(config)


def _made_by(hook: OptimizerHook, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = hook(weights)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ModelError(
            f"optimizer(parameters) returned {type(optimizer).__name__}",
            hint="return a torch.optim.Optimizer over the parameters it is given",
        )
    return optimizer

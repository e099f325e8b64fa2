"""Defaults that depend on the length of a run."""

from __future__ import annotations

from dataclasses import dataclass

from dst_analyze.run.config import OnCollapse, SweepConfig, ThresholdScale

FULL_LENGTH = 9_000
"""Steps that show the paper's pattern at clock 1; shorter runs use a faster clock."""
DEFAULT_STEPS = 2_250
"""A quarter of `FULL_LENGTH`; docs/evidence.md compares sweeps of a tenth, a quarter and half."""
FASTEST = 30
"""The fastest default clock."""
PAPER_CLOCK = 1.0


def default_clock(family: str, steps: int) -> float:
    """Return the clock that moves thresholds as far as a full-length run does (docs/training.md)."""
    return min(max(FULL_LENGTH / steps, 1.0), FASTEST) if family == "sgd" else 1.0


def default_warm_up(steps: int) -> int:
    """Return the steps of warm-up: as many as a trial has, none in a full-length run."""
    return steps if steps < FULL_LENGTH else 0


def default_unit(steps: int) -> ThresholdScale:
    """Return the unit of thresholds: their layer's magnitude, or one unit in a full-length run."""
    return "layer" if steps < FULL_LENGTH else "one"


@dataclass(frozen=True)
class AskedPace:
    """Clock, warm-up and unit as set by the user or the paper's recipe; None for defaults."""

    clock: float | None
    warm_up: int | None
    unit: ThresholdScale | None

    @classmethod
    def of(cls, config: SweepConfig) -> AskedPace:
        """Return a configuration's settings; trained weights need no warm-up."""
        paper = config.recipe == "paper"
        no_warm_up = config.warm_up is None and (paper or bool(config.weights))
        return cls(
            clock=config.threshold_clock or (PAPER_CLOCK if paper else None),
            warm_up=0 if no_warm_up else config.warm_up,
            unit=config.threshold_scale or ("one" if paper else None),
        )

    def warm_up_in(self, steps: int) -> int:
        """Return the warm-up of a run of ``steps`` steps."""
        return default_warm_up(steps) if self.warm_up is None else self.warm_up

    def unit_in(self, steps: int) -> ThresholdScale:
        """Return the unit of thresholds in a run of ``steps`` steps."""
        return self.unit or default_unit(steps)

    def clock_in(self, steps: int, family: str) -> float:
        """Return the clock of a run of ``steps`` steps with an optimizer of this family."""
        return self.clock or default_clock(family, steps)


def on_collapse_of(config: SweepConfig) -> OnCollapse:
    """Return what happens to collapsed layers: held by default, as short runs cannot prune them again."""
    return config.on_collapse or ("reset" if config.recipe == "paper" else "hold")


def asked_scale(config: SweepConfig) -> float | None:
    """Return the alphas' factor set by the user or the paper's recipe; None to compute it."""
    return config.alpha_scale or (1.0 if config.recipe == "paper" else None)

"""What a run is trained by unless it is told otherwise, where that depends on its length; without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from dst_analyze.run.config import OnCollapse, SweepConfig, ThresholdScale

FULL_LENGTH = 9_000
"""Steps in which thresholds on the weights' own clock bring the paper's pattern out; a shorter run makes up for it."""
DEFAULT_STEPS = 2_250
"""A quarter of it: docs/evidence.md has what sweeps of a tenth, a quarter and half of it see."""
FASTEST = 30
"""The largest clock that is chosen without being asked for."""
PAPER_CLOCK = 1.0


def default_clock(family: str, steps: int) -> float:
    """As fast as it takes to carry thresholds as far as a full-length run would (docs/training.md)."""
    return min(max(FULL_LENGTH / steps, 1.0), FASTEST) if family == "sgd" else 1.0


def default_warm_up(steps: int) -> int:
    """How many steps weights are trained before trials start: as many as a trial has, and none in a full-length run."""
    return steps if steps < FULL_LENGTH else 0


def default_unit(steps: int) -> ThresholdScale:
    """What thresholds are counted in: the magnitudes of their layer, and in a full-length run all alike."""
    return "layer" if steps < FULL_LENGTH else "one"


@dataclass(frozen=True)
class AskedPace:
    """The thresholds' clock and unit and the warm-up, where the user or the paper has a say; else None."""

    clock: float | None
    warm_up: int | None
    unit: ThresholdScale | None

    @classmethod
    def of(cls, config: SweepConfig) -> AskedPace:
        """No warm-up for weights that are trained already."""
        paper = config.recipe == "paper"
        no_warm_up = config.warm_up is None and (paper or bool(config.weights))
        return cls(
            clock=config.threshold_clock or (PAPER_CLOCK if paper else None),
            warm_up=0 if no_warm_up else config.warm_up,
            unit=config.threshold_scale or ("one" if paper else None),
        )

    def warm_up_in(self, steps: int) -> int:
        """The warm-up of a run of so many steps."""
        return default_warm_up(steps) if self.warm_up is None else self.warm_up

    def unit_in(self, steps: int) -> ThresholdScale:
        return self.unit or default_unit(steps)

    def clock_in(self, steps: int, family: str) -> float:
        return self.clock or default_clock(family, steps)


def on_collapse_of(config: SweepConfig) -> OnCollapse:
    """What becomes of layers that collapse: they are held, as a short run has no time to prune them once more."""
    return config.on_collapse or ("reset" if config.recipe == "paper" else "hold")


def asked_scale(config: SweepConfig) -> float | None:
    """The factor of the alphas that the user or the paper asks for; None to take it from how far thresholds travel."""
    return config.alpha_scale or (1.0 if config.recipe == "paper" else None)

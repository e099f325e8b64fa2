"""The defaults of a run that depend on its length or recipe. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from dst_analyze.run.config import OnCollapse, SweepConfig, ThresholdScale

FULL_LENGTH = 9_000
"""Steps in which thresholds with the weights' learning rate show the paper's pattern; shorter runs use more."""
DEFAULT_STEPS = 1_500
"""A sixth of a full-length run; docs/experiments/short-sweeps.md compares lengths."""
FASTEST = 30
"""The largest default clock."""
PAPER_CLOCK = 1.0


def default_clock(family: str, steps: int) -> float:
    """Return the clock that moves thresholds as far as a full-length run would (docs/experiments/thresholds.md)."""
    return min(max(FULL_LENGTH / steps, 1.0), FASTEST) if family == "sgd" else 1.0


def default_warm_up(steps: int) -> int:
    """Return the steps of the warm-up: as many as a trial has, and none in a full-length run."""
    return steps if steps < FULL_LENGTH else 0


def quick_warm_up(steps: int) -> int:
    """Return the steps of a quick run's one training: as many as a sweep's dense trial has with its warm-up."""
    return steps + default_warm_up(steps)


def default_threshold_scale(steps: int) -> ThresholdScale:
    """Return the scale of thresholds: that of their layer's weights, or 1 for all in a full-length run."""
    return "layer" if steps < FULL_LENGTH else "one"


@dataclass(frozen=True)
class AskedPace:
    """The thresholds' clock and scale and the warm-up as the user or the paper's recipe sets them; else None."""

    clock: float | None
    warm_up: int | None
    threshold_scale: ThresholdScale | None
    quick: bool = False

    @classmethod
    def of(cls, config: SweepConfig) -> AskedPace:
        """Return what a configuration sets; trained weights and the paper's recipe get no warm-up by default."""
        paper = config.recipe == "paper"
        no_warm_up = config.warm_up is None and (paper or bool(config.weights))
        return cls(
            clock=config.threshold_clock or (PAPER_CLOCK if paper else None),
            warm_up=0 if no_warm_up else config.warm_up,
            threshold_scale=config.threshold_scale or ("one" if paper or config.quick else None),
            quick=config.quick,
        )

    def warm_up_in(self, steps: int) -> int:
        """Return the warm-up of a run of so many steps."""
        if self.warm_up is not None:
            return self.warm_up
        return quick_warm_up(steps) if self.quick else default_warm_up(steps)

    def threshold_scale_in(self, steps: int) -> ThresholdScale:
        """Return the scale of thresholds in a run of so many steps."""
        return self.threshold_scale or default_threshold_scale(steps)

    def clock_in(self, steps: int, family: str) -> float:
        """Return the clock of a run of so many steps with an optimizer of this family."""
        return self.clock or default_clock(family, steps)


def on_collapse_of(config: SweepConfig) -> OnCollapse:
    """Return what to do with collapsed layers: hold them by default, as a short run has no time to prune them again."""
    return config.on_collapse or ("reset" if config.recipe == "paper" else "hold")


def asked_scale(config: SweepConfig) -> float | None:
    """Return the factor of the alphas that the user or the paper's recipe sets; None to derive it from the recipe."""
    return config.alpha_scale or (1.0 if config.recipe == "paper" or config.quick else None)

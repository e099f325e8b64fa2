"""Early stopping of trials: a trial may end once the order of its layers has been stable for a third of its steps.

The order is that of the remaining ratios at each measurement, compared by Kendall's tau. The window grows with the
run, so that an order that drifts slowly is still seen to change. Before anything is pruned all orders are equal and
carry no evidence. A trial runs for at least three fifths of its budget: the learning rate falls at half, and much of
the order emerges after that. docs/experiments/short-sweeps.md has the measurements behind these values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dst_analyze.run.record import UNPRUNED

AGREEING = 0.9
"""The smallest Kendall's tau at which two orders count as the same."""
WINDOW = 1 / 3
"""The share of the steps so far over which the order must have been stable."""
EARLIEST = 3 / 5
"""The share of the budget that every trial runs for."""


class Stability:
    """The early-stopping rule of one trial of at most ``steps`` steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.readings: list[tuple[int, np.ndarray]] = []

    def reached(self, step: int, remaining: float, layers: Sequence[float]) -> bool:
        """Add the remaining ratios of the model and its layers at a step; return True if the trial may end."""
        now = np.array(layers)
        self.readings.append((step, now))
        if remaining > UNPRUNED or step < EARLIEST * self.steps or len(now) < 2:
            return False
        window = [then for at, then in self.readings[:-1] if at >= (1 - WINDOW) * step]
        return len(window) > 1 and all(agreement(then, now) >= AGREEING for then in window)


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """Return Kendall's tau-b of two measurements; -1 if all layers of one are tied, as it then has no order."""
    from scipy.stats import kendalltau  # imported late: it costs every worker a second, and few trials need it

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return -1.0
    return float(kendalltau(one, other).statistic)

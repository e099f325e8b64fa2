"""When a trial may end before its budget: the layers' order has stood still for a third of the way.

The order is that of the remaining ratios at a reading, compared by Kendall's tau. A window that grows with the run
asks for the more standing still the longer a run has gone on moving: an order that still drifts, however slowly, has
changed over a third of its way. Before anything is pruned all orders are equal and say nothing. Nor may a trial end
before three fifths of its budget: the learning rate falls at half, and much of the order comes out after that.

On 36 trials of run folders in reports/ (VGG, ResNet-14, LeNets, the demo net; `experiments/until_stable.py`), tau of
the order where the rule would have ended a trial to that of its end:

    earliest end    mean length    smallest tau    tau in nine of ten
    1/5                     .28             .53                   .67
    1/2                     .61             .67                   .81
    3/5                     .71             .80                   .94
    7/10                    .78             .92                   .97

From three fifths on, a window of a quarter or a tau of 0.95 to count as the same moves these by less than a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dst_analyze.run.record import UNPRUNED

AGREEING = 0.9
"""Kendall's tau from which two orders count as the same."""
WINDOW = 1 / 3
"""The share of the steps so far over which the order must have stood still."""
EARLIEST = 3 / 5
"""The share of the budget that every trial gets."""


class Stability:
    """Follows the readings of one trial of at most ``steps`` steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.readings: list[tuple[int, np.ndarray]] = []

    def reached(self, step: int, remaining: float, layers: Sequence[float]) -> bool:
        """Take one more reading of the model and its layers; whether the order has stood still for long enough."""
        now = np.array(layers)
        self.readings.append((step, now))
        if remaining > UNPRUNED or step < EARLIEST * self.steps or len(now) < 2:
            return False
        window = [then for at, then in self.readings[:-1] if at >= (1 - WINDOW) * step]
        return len(window) > 1 and all(agreement(then, now) >= AGREEING for then in window)


def agreement(one: np.ndarray, other: np.ndarray) -> float:
    """Kendall's tau-b of two readings; -1 where all layers of one are tied, as there is no order to agree with."""
    from scipy.stats import kendalltau  # here, as it takes every worker a second to import, and few trials ask

    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return -1.0
    return float(kendalltau(one, other).statistic)

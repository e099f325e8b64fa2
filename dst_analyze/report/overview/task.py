"""Whether a narrower network, trained like the dense one, still does the task: the rule behind the headline."""

from __future__ import annotations

import math
from enum import StrEnum

from dst_analyze.run.record import WORKING
from dst_analyze.slimming.proof.result import DENSE, Verification

_ALLOWED = 1 - WORKING  # share of the dense model's score that a network may lose and still do its task


class Task(StrEnum):
    """Whether the narrower network does the task, by the proof's mean and interval."""

    KEPT = "kept"
    KEPT_AT_A_COST = "kept at a cost"  # it does the task, and is measurably worse
    PERHAPS_KEPT = "perhaps kept"  # on average it does; too few seeds to exclude that it does not
    PERHAPS_LOST = "perhaps lost"  # on average it does not; too few seeds to exclude that it does
    LOST = "lost"


def task_of(proof: Verification) -> Task | None:
    """Return whether the slim model does the task; None if no seed has a finished training of both models.

    The means say on which side of the limit the network is, the interval says whether that is certain. A score may
    fall by a tenth of the dense model's score, a loss may rise by as much.
    """
    lead, low, high = proof.lead(DENSE)
    if math.isnan(lead):
        return None
    least = -_ALLOWED * abs(proof.entry(DENSE).mean)
    if low >= least:
        return Task.KEPT_AT_A_COST if proof.standing(DENSE) == "worse" else Task.KEPT
    if high < least:
        return Task.LOST
    return Task.PERHAPS_KEPT if lead >= least else Task.PERHAPS_LOST

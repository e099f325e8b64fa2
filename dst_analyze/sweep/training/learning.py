"""Whether a training without masks has learned anything: else there is nothing to rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch

from dst_analyze.sweep.data.batches import Batches
from dst_analyze.sweep.training.objective import IGNORED, Objective, split_batch

FEWEST_STEPS = 150
"""A shorter training is not judged."""
_LEARNED = 0.97  # a model has learned if its loss falls below this share of what it is compared with
_BATCHES, _LABELS_PER_CLASS = 50, 10
_START = 5  # losses that are taken for the loss before training


def why_not_learned(losses: Sequence[float], guessing: float | None) -> str:
    """Return why a training counts as one that has learned nothing, else "".

    Args:
        losses: The loss of every step.
        guessing: The loss of guessing by the frequencies of the labels; None if unknown.
    """
    if len(losses) < FEWEST_STEPS:
        return ""
    first, last = _mean(losses[:_START]), _mean(losses[-(len(losses) // 4) :])
    if guessing is not None:
        told = f"after {len(losses):,} steps the training loss is {last:.3g}, and guessing gives {guessing:.3g}"
        return told if last > _LEARNED * guessing else ""
    told = f"the training loss went from {first:.3g} to {last:.3g} in {len(losses):,} steps"
    return told if last > first - (1 - _LEARNED) * abs(first) else ""


def guessing_loss(objective: Objective, data: Batches) -> float | None:
    """Return the entropy of the labels, which is the cross entropy of guessing; None if that is not the loss."""
    if not objective.accuracy or objective.custom is not None:
        return None
    counts = torch.zeros(0, dtype=torch.long)
    for batch in islice(data.once(), _BATCHES):
        target = split_batch(batch, objective.model)[1]
        if not isinstance(target, torch.Tensor) or target.is_floating_point():
            return None
        found = torch.bincount(target[target != IGNORED].flatten().cpu().long())
        size = max(len(counts), len(found))
        counts = torch.nn.functional.pad(counts, (0, size - len(counts)))
        counts += torch.nn.functional.pad(found, (0, size - len(found)))
    counts = counts[counts > 0]
    if len(counts) < 2 or int(counts.sum()) < _LABELS_PER_CLASS * len(counts):
        return None
    shares = counts / counts.sum()
    return float(-(shares * shares.log()).sum())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)

"""Pairs of layers that differ clearly, and how many of them another order confirms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np

CLEAR = 0.3
"""Two layers differ clearly if one keeps less than three quarters of what the other keeps: exp(-0.3) is 0.74."""
CONTRADICTED = 0.25
"""Share of clear pairs in opposite order from which on trials disagree; by chance it is half."""

_MOST_PAIRED = 2_000  # layers of which every two are compared
_MOST_COMPARED = 500_000_000  # pairs of layers in all trials together
INITIAL, SIZE, DEPTH = "the initial weights", "size", "depth"


@dataclass(frozen=True)
class Guesses:
    """Shares of clear pairs that orders without training get right; NaN for an unknown order.

    ``initial``, ``size`` and ``depth`` are the shares that the initial weights, "larger is more redundant" and "later
    is more redundant" order as the sweep does (a tie counts half); ``beyond`` is the share none of them gets right.
    """

    pairs: int
    initial: float = nan
    size: float = nan
    depth: float = nan
    beyond: float = nan

    @property
    def known(self) -> dict[str, float]:
        """The known shares by name."""
        named = {INITIAL: self.initial, SIZE: self.size, DEPTH: self.depth}
        return {name: share for name, share in named.items() if share == share}


def _skip(layers: int) -> int:
    """Return of how many layers one is looked at."""
    return max(1, math.ceil(layers / _MOST_PAIRED))


def clear_pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of all pairs that differ clearly: the more redundant ones, and the others."""
    first, second = np.triu_indices(len(values), 1)
    difference = values[first] - values[second]
    far = np.abs(difference) > CLEAR
    more = np.where(difference > 0, first, second)[far]
    less = np.where(difference > 0, second, first)[far]
    return more, less


def alike(values: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return for each clear pair whether another order agrees: 1, 0, or 1/2 for a tie."""
    more, less = clear_pairs(values)
    same: np.ndarray = (np.sign(np.round(other[more] - other[less], 9)) + 1) / 2
    return same


def contradicted(values: np.ndarray) -> float:
    """Return the share of clear pairs that two trials order differently, over all pairs of trials.

    Only pairs that both trials separate clearly count; NaN if there are none. Rows are trials, columns layers.
    Each two trials are compared; of very many layers only some are.
    """
    layers = values.shape[1]
    skip = max(_skip(layers), math.ceil(layers * math.sqrt(len(values) / _MOST_COMPARED)))
    values = values[:, ::skip]
    layers = values.shape[1]
    clear, signs = np.zeros((layers, layers)), np.zeros((layers, layers))
    for row in values:
        difference = row[:, None] - row[None, :]
        sign = np.sign(difference) * (np.abs(difference) > CLEAR)
        clear += np.abs(sign)
        signs += sign
    both = float(
        (clear * (clear - 1)).sum()
    )  # n trials are n (n - 1) / 2 comparisons, and each pair stands there twice
    against = float((clear**2 - signs**2).sum()) / 2
    return against / both if both else nan


def guesses(values: np.ndarray, initial: np.ndarray | None, sizes: np.ndarray | None) -> Guesses:
    """Return how far orders without training agree with a redundancy, given in network order.

    Of very many layers only some are looked at, as their pairs would not fit into memory.
    """
    skip = _skip(len(values))
    values = values[::skip]
    orders: Mapping[str, np.ndarray | None] = {
        "initial": None if initial is None else initial[::skip],
        "size": None if sizes is None else sizes[::skip],
        "depth": np.arange(len(values), dtype=float),
    }
    known = {name: alike(values, order) for name, order in orders.items() if order is not None}
    pairs = len(known["depth"])
    if not pairs:
        return Guesses(0)
    right = np.max(list(known.values()), axis=0) == 1
    return Guesses(
        pairs, **{name: float(found.mean()) for name, found in known.items()}, beyond=1 - float(right.mean())
    )

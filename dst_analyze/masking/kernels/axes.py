"""A weight's axes as the loops over it see them, for all backends that compute with flat memory."""

from __future__ import annotations

import math
from itertools import groupby
from typing import NamedTuple


class Axes(NamedTuple):
    """A weight as [groups][outer][rows][columns]; thresholds have groups and rows, and are summed over the others."""

    groups: int
    outer: int
    rows: int
    columns: int


def axes_of(view: tuple[int, ...], threshold: tuple[int, ...]) -> Axes | None:
    """Return a weight's axes; None if its thresholds cannot be seen so."""
    axes = [(kept == size, size) for size, kept in zip(view, threshold, strict=True) if size != 1]
    runs = [(rows, math.prod(size for _, size in run)) for rows, run in groupby(axes, key=lambda axis: axis[0])]
    if not runs or not runs[0][0]:
        runs.insert(0, (True, 1))
    if len(runs) % 2:
        runs.append((False, 1))
    sizes = [size for _, size in runs]
    if len(sizes) == 2:
        sizes = [1, 1, *sizes]  # rows, then columns
    fits = len(sizes) == 4 and max(sizes) < 1 << 31  # the loops count one row in 32 bits
    return Axes(*sizes) if fits else None

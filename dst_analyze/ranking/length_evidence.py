"""How well short sweeps agree with long ones, measured on the reference nets.

Measured with experiments/short_sweep.py; docs/experiments/short-sweeps.md has the runs, docs/reference/ranking.md
the table of pairs. The nets are few: another net may differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

_AS_LONG = 0.8  # a run of at least this share of a measured length counts as that length


@dataclass(frozen=True)
class LengthMeasurement:
    """Kendall's tau between a short sweep's order and a long run's, with the default recipe.

    ``null`` is the tau of the initial weights' order, ``ceiling`` that of the long run with another seed, if there is
    one. ``warm_up`` says whether weights were trained before masking, ``unit`` what thresholds were counted in.
    """

    net: str
    steps: int
    long: int
    tau: float
    null: float
    ceiling: float | None = None
    warm_up: bool = True
    unit: str = "layer"

    @property
    def words(self) -> str:
        """The measurement as part of a sentence."""
        again = "" if self.ceiling is None else f", another long run {self.ceiling:.2f}"
        return f"{self.tau:.2f} on {self.net} (initial weights {self.null:.2f}{again})"


_CNN, _VGG, _WIDE, _RESNET, _VIT, _LENET = (
    "a CNN of 5 layers on digits", "VGG-16 of quarter width", "WideResNet-16-2", "a small ResNet-14", "a small ViT",
    "LeNet-5",
)  # fmt: skip
SEEN = (
    LengthMeasurement(_CNN, 300, 3_000, 1.00, 0.60, 1.00),
    LengthMeasurement(_CNN, 375, 3_000, 1.00, 0.60, 1.00),
    LengthMeasurement(_CNN, 500, 3_000, 1.00, 0.60, 1.00),
    LengthMeasurement(_CNN, 750, 3_000, 1.00, 0.60, 1.00),
    LengthMeasurement(_CNN, 1_500, 3_000, 1.00, 0.60, 1.00),
    LengthMeasurement(_VGG, 940, 9_400, 0.79, 0.58, 0.92),
    LengthMeasurement(_VGG, 1_175, 9_400, 0.75, 0.58, 0.92),
    LengthMeasurement(_VGG, 1_500, 9_400, 0.75, 0.58, 0.92),
    LengthMeasurement(_VGG, 2_350, 9_400, 0.83, 0.58, 0.92),
    LengthMeasurement(_VGG, 4_700, 9_400, 0.87, 0.58, 0.92),
    LengthMeasurement(_WIDE, 310, 3_100, 0.81, 0.74, 0.87),
    LengthMeasurement(_WIDE, 775, 3_100, 0.88, 0.74, 0.87),
    LengthMeasurement(_RESNET, 940, 9_400, 0.67, 0.65, 0.77),
    LengthMeasurement(_RESNET, 1_175, 9_400, 0.67, 0.65, 0.77),
    LengthMeasurement(_RESNET, 1_500, 9_400, 0.67, 0.65, 0.77),
    LengthMeasurement(_RESNET, 2_350, 9_400, 0.63, 0.65, 0.77),
    LengthMeasurement(_RESNET, 4_700, 9_400, 0.53, 0.65, 0.77),
    LengthMeasurement(_VIT, 470, 4_700, 0.88, 0.18, 0.91),
    LengthMeasurement(_VIT, 588, 4_700, 0.88, 0.18, 0.91),
    LengthMeasurement(_VIT, 783, 4_700, 0.90, 0.18, 0.91),
    LengthMeasurement(_VIT, 1_175, 4_700, 0.87, 0.18, 0.91),
    LengthMeasurement(_VIT, 2_350, 4_700, 0.91, 0.18, 0.91),
    LengthMeasurement(_LENET, 940, 9_400, 1.00, 0.33, 1.00),
    LengthMeasurement(_LENET, 1_175, 9_400, 1.00, 0.33, 1.00),
    LengthMeasurement(_LENET, 1_500, 9_400, 1.00, 0.33, 1.00),
    LengthMeasurement(_LENET, 2_350, 9_400, 1.00, 0.33, 1.00),
    LengthMeasurement(_LENET, 4_700, 9_400, 1.00, 0.33, 1.00),
    LengthMeasurement(_CNN, 300, 3_000, 1.00, 0.60, 1.00, unit="one"),
    LengthMeasurement(_CNN, 750, 3_000, 1.00, 0.60, 1.00, unit="one"),
    LengthMeasurement(_VGG, 940, 9_400, 0.81, 0.64, 0.89, unit="one"),
    LengthMeasurement(_VGG, 2_350, 9_400, 0.87, 0.64, 0.89, unit="one"),
    LengthMeasurement(_WIDE, 310, 3_100, 0.81, 0.74, 0.87, unit="one"),
    LengthMeasurement(_WIDE, 775, 3_100, 0.72, 0.74, 0.87, unit="one"),
    LengthMeasurement(_RESNET, 940, 9_400, 0.50, 0.53, 0.85, unit="one"),
    LengthMeasurement(_RESNET, 2_350, 9_400, 0.55, 0.53, 0.85, unit="one"),
    LengthMeasurement(_VIT, 470, 4_700, 0.83, 0.18, 0.91, unit="one"),
    LengthMeasurement(_VIT, 1_175, 4_700, 0.88, 0.18, 0.91, unit="one"),
    LengthMeasurement(_LENET, 940, 9_400, 1.00, 0.33, 1.00, unit="one"),
    LengthMeasurement(_LENET, 2_350, 9_400, 1.00, 0.33, 1.00, unit="one"),
    LengthMeasurement(_CNN, 300, 3_000, 0.80, 0.60, 1.00, warm_up=False, unit="one"),
    LengthMeasurement(_CNN, 750, 3_000, 1.00, 0.60, 1.00, warm_up=False, unit="one"),
    LengthMeasurement(_VGG, 600, 9_400, 0.77, 0.62, warm_up=False, unit="one"),
    LengthMeasurement(_VGG, 940, 9_400, 0.71, 0.64, 0.89, warm_up=False, unit="one"),
    LengthMeasurement(_VGG, 2_350, 9_400, 0.77, 0.64, 0.89, warm_up=False, unit="one"),
    LengthMeasurement(_WIDE, 310, 3_100, 0.81, 0.74, 0.87, warm_up=False, unit="one"),
    LengthMeasurement(_WIDE, 775, 3_100, 0.82, 0.74, 0.87, warm_up=False, unit="one"),
    LengthMeasurement(_WIDE, 1_550, 3_100, 0.84, 0.74, 0.87, warm_up=False, unit="one"),
    LengthMeasurement(_RESNET, 940, 9_400, 0.60, 0.65, 0.77, warm_up=False, unit="one"),
    LengthMeasurement(_VIT, 470, 4_700, 0.78, 0.18, 0.91, warm_up=False, unit="one"),
    LengthMeasurement(_VIT, 1_175, 4_700, 0.84, 0.18, 0.91, warm_up=False, unit="one"),
    LengthMeasurement(_VIT, 2_350, 4_700, 0.84, 0.18, 0.91, warm_up=False, unit="one"),
    LengthMeasurement(_LENET, 940, 9_400, 1.00, 0.33, 1.00, warm_up=False, unit="one"),
    LengthMeasurement(_LENET, 2_350, 9_400, 1.00, 0.33, 1.00, warm_up=False, unit="one"),
)


@dataclass(frozen=True)
class PairMeasurement:
    """The share of a short sweep's clearly different pairs that a long run orders the same way.

    ``alike`` counts all such pairs, ``inner`` those without the output layer.
    """

    net: str
    steps: int
    long: int
    pairs: int
    alike: float
    inner: float
    warm_up: bool = True
    unit: str = "layer"


PAIRS = (
    PairMeasurement(_CNN, 300, 3_000, 8, 1.00, 1.00),
    PairMeasurement(_CNN, 375, 3_000, 7, 1.00, 1.00),
    PairMeasurement(_CNN, 500, 3_000, 8, 1.00, 1.00),
    PairMeasurement(_CNN, 750, 3_000, 9, 1.00, 1.00),
    PairMeasurement(_CNN, 1_500, 3_000, 9, 1.00, 1.00),
    PairMeasurement(_LENET, 940, 9_400, 3, 1.00, 1.00),
    PairMeasurement(_LENET, 1_175, 9_400, 3, 1.00, 1.00),
    PairMeasurement(_LENET, 1_500, 9_400, 3, 1.00, 1.00),
    PairMeasurement(_LENET, 2_350, 9_400, 3, 1.00, 1.00),
    PairMeasurement(_LENET, 4_700, 9_400, 5, 1.00, 1.00),
    PairMeasurement(_VGG, 940, 9_400, 76, 0.96, 0.96),
    PairMeasurement(_VGG, 1_175, 9_400, 75, 0.96, 0.95),
    PairMeasurement(_VGG, 1_500, 9_400, 74, 0.97, 0.97),
    PairMeasurement(_VGG, 2_350, 9_400, 70, 0.99, 0.98),
    PairMeasurement(_VGG, 4_700, 9_400, 66, 0.98, 0.98),
    PairMeasurement(_RESNET, 940, 9_400, 87, 0.85, 1.00),
    PairMeasurement(_RESNET, 1_175, 9_400, 87, 0.85, 1.00),
    PairMeasurement(_RESNET, 1_500, 9_400, 83, 0.84, 1.00),
    PairMeasurement(_RESNET, 2_350, 9_400, 82, 0.85, 1.00),
    PairMeasurement(_RESNET, 4_700, 9_400, 55, 0.78, 1.00),
    PairMeasurement(_VIT, 470, 4_700, 108, 0.98, 0.98),
    PairMeasurement(_VIT, 588, 4_700, 115, 0.97, 0.97),
    PairMeasurement(_VIT, 783, 4_700, 124, 0.98, 0.97),
    PairMeasurement(_VIT, 1_175, 4_700, 125, 0.98, 0.97),
    PairMeasurement(_VIT, 2_350, 4_700, 126, 0.96, 0.95),
    PairMeasurement(_RESNET, 940, 9_400, 93, 0.85, 1.00, warm_up=False, unit="one"),
    PairMeasurement(_VIT, 470, 4_700, 118, 0.93, 0.92, warm_up=False, unit="one"),
)


def pairs_at(pairs: int, steps: int, *, warm_up: bool, unit: str) -> str:
    """Return a sentence: which share of a run's clear pairs a long run would order alike."""
    if not pairs:
        return "No two layers differ clearly in this run."
    this = (
        f"Of the {pairs} pairs of layers that differ clearly in this run" if pairs > 1 else "Of the one clear pair here"
    )
    if steps >= max(seen.long for seen in PAIRS):
        return f"With {steps:,} steps this run is as long as the runs that short sweeps were measured by."
    found = _measured_pairs(steps, warm_up=warm_up, unit=unit)
    if not found:
        return f"{this}, it is not known how many a long run would order alike: no sweep of this kind was as short."
    shares = [seen.alike for seen in found]
    mean, inner = sum(shares) / len(shares), min(seen.inner for seen in found)
    nets = f"{len(found)} reference nets: {min(shares):.0%} to {max(shares):.0%}" if len(found) > 1 else found[0].net
    return (
        f"{this}, a long run would order about {mean:.0%} alike (measured at this length on {nets}; without output "
        f"layers at least {inner:.0%})."
    )


def long_run_share(steps: int, *, warm_up: bool, unit: str) -> float | None:
    """Return the share of clear pairs that a long run orders alike, mean over nets; None if unknown."""
    shares = [seen.alike for seen in _measured_pairs(steps, warm_up=warm_up, unit=unit)]
    return sum(shares) / len(shares) if shares else None


def _measured_pairs(steps: int, *, warm_up: bool, unit: str) -> list[PairMeasurement]:
    """Return for each net the longest measured sweep of this kind that is no longer than this run."""
    kind = [seen for seen in PAIRS if (seen.warm_up, seen.unit) == (warm_up, unit)]
    return list(_longest(steps, kind).values())


def length_caveat(steps: int, *, warm_up: bool, unit: str) -> str:
    """Return a sentence: how close sweeps of this length came to long runs, by Kendall's tau."""
    if steps >= max(seen.long for seen in SEEN):
        return f"With {steps:,} steps this run is as long as the runs that short sweeps were measured by."
    alike = [seen for seen in SEEN if (seen.warm_up, seen.unit) == (warm_up, unit)]
    longest = list(_longest(steps, alike).values())
    but = [] if warm_up else ["without warm-up"]
    but += ["thresholds in one unit"] if unit == "one" else []
    how = f" ({', '.join(but)})" if but else ""
    if not longest:
        least = f", the shortest had {min(seen.steps for seen in alike):,}" if alike else ""
        return (
            f"No sweep of this kind{how} as short as this one ({steps:,} steps) has been compared with a long run"
            f"{least}: its order may well change."
        )
    longest.sort(key=lambda seen: seen.tau)
    return (
        f"Of sweeps by the default recipe{how} about this long or shorter, the longest that were compared with long "
        f"runs ({_range([s.steps for s in longest])} steps against {_range([s.long for s in longest])}) had "
        f"their order to Kendall's tau {'; '.join(seen.words for seen in longest)}."
    )


class _Sweep(Protocol):
    @property
    def net(self) -> str: ...
    @property
    def steps(self) -> int: ...


S = TypeVar("S", bound=_Sweep)


def _longest(steps: int, kind: Sequence[S]) -> dict[str, S]:
    """Return the longest sweep of each net that was at most about as long as this run."""
    near = sorted((seen for seen in kind if _AS_LONG * seen.steps <= steps), key=lambda seen: seen.steps)
    return {seen.net: seen for seen in near}


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

"""How much of a long run's order sweeps of a given length have been seen to have: what a ranking holds, and no more.

Measured with benchmarks/short_sweep.py; docs/evidence.md has the runs. Nobody knows it for another net: this is what
was seen on those that were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_AS_LONG = 0.8  # of a length that was measured: near enough to go by it


@dataclass(frozen=True)
class Seen:
    """A sweep with the default recipe: Kendall's tau of its order to that of a long run.

    Beside it that of the initial weights' order, and of the long run's with another seed, where there is one; whether
    its weights were trained before they were masked, and what its thresholds were counted in.
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
        again = "" if self.ceiling is None else f", another long run {self.ceiling:.2f}"
        return f"{self.tau:.2f} on {self.net} (initial weights {self.null:.2f}{again})"


_CNN, _VGG, _WIDE, _RESNET, _VIT, _LENET = (
    "a CNN of 5 layers on digits", "VGG-16 of quarter width", "WideResNet-16-2", "a small ResNet-14", "a small ViT",
    "LeNet-5",
)  # fmt: skip
SEEN = (
    Seen(_CNN, 300, 3_000, 1.00, 0.60, 1.00),
    Seen(_CNN, 750, 3_000, 1.00, 0.60, 1.00),
    Seen(_CNN, 1_500, 3_000, 1.00, 0.60, 1.00),
    Seen(_VGG, 940, 9_400, 0.79, 0.58, 0.92),
    Seen(_VGG, 2_350, 9_400, 0.83, 0.58, 0.92),
    Seen(_VGG, 4_700, 9_400, 0.87, 0.58, 0.92),
    Seen(_WIDE, 310, 3_100, 0.81, 0.74, 0.87),
    Seen(_WIDE, 775, 3_100, 0.88, 0.74, 0.87),
    Seen(_RESNET, 940, 9_400, 0.67, 0.65, 0.77),
    Seen(_RESNET, 2_350, 9_400, 0.63, 0.65, 0.77),
    Seen(_RESNET, 4_700, 9_400, 0.53, 0.65, 0.77),
    Seen(_VIT, 470, 4_700, 0.88, 0.18, 0.91),
    Seen(_VIT, 1_175, 4_700, 0.87, 0.18, 0.91),
    Seen(_VIT, 2_350, 4_700, 0.91, 0.18, 0.91),
    Seen(_LENET, 940, 9_400, 1.00, 0.33, 1.00),
    Seen(_LENET, 2_350, 9_400, 1.00, 0.33, 1.00),
    Seen(_LENET, 4_700, 9_400, 1.00, 0.33, 1.00),
    Seen(_CNN, 300, 3_000, 1.00, 0.60, 1.00, unit="one"),
    Seen(_CNN, 750, 3_000, 1.00, 0.60, 1.00, unit="one"),
    Seen(_VGG, 940, 9_400, 0.81, 0.64, 0.89, unit="one"),
    Seen(_VGG, 2_350, 9_400, 0.87, 0.64, 0.89, unit="one"),
    Seen(_WIDE, 310, 3_100, 0.81, 0.74, 0.87, unit="one"),
    Seen(_WIDE, 775, 3_100, 0.72, 0.74, 0.87, unit="one"),
    Seen(_RESNET, 940, 9_400, 0.50, 0.53, 0.85, unit="one"),
    Seen(_RESNET, 2_350, 9_400, 0.55, 0.53, 0.85, unit="one"),
    Seen(_VIT, 470, 4_700, 0.83, 0.18, 0.91, unit="one"),
    Seen(_VIT, 1_175, 4_700, 0.88, 0.18, 0.91, unit="one"),
    Seen(_LENET, 940, 9_400, 1.00, 0.33, 1.00, unit="one"),
    Seen(_LENET, 2_350, 9_400, 1.00, 0.33, 1.00, unit="one"),
    Seen(_CNN, 300, 3_000, 0.80, 0.60, 1.00, warm_up=False, unit="one"),
    Seen(_CNN, 750, 3_000, 1.00, 0.60, 1.00, warm_up=False, unit="one"),
    Seen(_VGG, 600, 9_400, 0.77, 0.62, warm_up=False, unit="one"),
    Seen(_VGG, 940, 9_400, 0.71, 0.64, 0.89, warm_up=False, unit="one"),
    Seen(_VGG, 2_350, 9_400, 0.77, 0.64, 0.89, warm_up=False, unit="one"),
    Seen(_WIDE, 310, 3_100, 0.81, 0.74, 0.87, warm_up=False, unit="one"),
    Seen(_WIDE, 775, 3_100, 0.82, 0.74, 0.87, warm_up=False, unit="one"),
    Seen(_WIDE, 1_550, 3_100, 0.84, 0.74, 0.87, warm_up=False, unit="one"),
    Seen(_RESNET, 940, 9_400, 0.60, 0.65, 0.77, warm_up=False, unit="one"),
    Seen(_VIT, 470, 4_700, 0.78, 0.18, 0.91, warm_up=False, unit="one"),
    Seen(_VIT, 1_175, 4_700, 0.84, 0.18, 0.91, warm_up=False, unit="one"),
    Seen(_VIT, 2_350, 4_700, 0.84, 0.18, 0.91, warm_up=False, unit="one"),
    Seen(_LENET, 940, 9_400, 1.00, 0.33, 1.00, warm_up=False, unit="one"),
    Seen(_LENET, 2_350, 9_400, 1.00, 0.33, 1.00, warm_up=False, unit="one"),
)


def known_at(steps: int, *, warm_up: bool, unit: str) -> str:
    """What is known of rankings of this length, made in this way, in a sentence."""
    if steps >= max(seen.long for seen in SEEN):
        return f"With {steps:,} steps this run is as long as the runs that short sweeps were measured by."
    alike = [seen for seen in SEEN if (seen.warm_up, seen.unit) == (warm_up, unit)]
    longest = [max(of_net, key=lambda seen: seen.steps) for of_net in _near(steps, alike).values()]
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


def _near(steps: int, alike: Sequence[Seen]) -> dict[str, list[Seen]]:
    """By net, what was measured at this length or a shorter one."""
    found: dict[str, list[Seen]] = {}
    for seen in alike:
        if _AS_LONG * seen.steps <= steps:
            found.setdefault(seen.net, []).append(seen)
    return found


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

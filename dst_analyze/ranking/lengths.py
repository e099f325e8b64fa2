"""How much of a long run's order sweeps of a given length have been seen to have: what a ranking holds, and no more.

Measured with benchmarks/short_sweep.py; docs/evidence.md has the runs. Nobody knows it for another net: this is what
was seen on those that were tried.
"""

from __future__ import annotations

from dataclasses import dataclass

_AS_LONG = 0.8  # of a length that was measured: near enough to go by it


@dataclass(frozen=True)
class Seen:
    """A sweep with default options: Kendall's tau of its order, and of the initial weights', to that of a long run."""

    net: str
    steps: int
    long: int
    tau: float
    null: float


SEEN = (
    Seen("a CNN of 5 layers on digits", 300, 3_000, 1.00, 0.60),
    Seen("VGG-16 of quarter width", 600, 9_400, 0.77, 0.62),
    Seen("LeNet-5", 600, 18_760, 0.33, 0.33),
    Seen("a two-layer LSTM", 600, 12_000, 0.00, -0.33),
)


def known_at(steps: int) -> str:
    """What is known of rankings of this length, in a sentence."""
    longest = [max(of_net, key=lambda seen: seen.steps) for of_net in _near(steps).values()]
    if not longest:
        shortest = min(seen.steps for seen in SEEN)
        return (
            f"No sweep as short as this one ({steps:,} steps) has been compared with a long run, the shortest had "
            f"{shortest:,}: its order may well change."
        )
    if steps >= max(seen.long for seen in SEEN):
        return f"With {steps:,} steps this run is as long as the runs that short sweeps were measured by."
    longest.sort(key=lambda seen: seen.tau)
    taus = ", ".join(f"{seen.tau:.2f} on {seen.net}" for seen in longest)
    nulls = ", ".join(f"{seen.null:.2f}" for seen in longest)
    return (
        "Of default sweeps about this long or shorter, the longest that were compared with long runs "
        f"({_range([s.steps for s in longest])} steps against {_range([s.long for s in longest])}) had their order "
        f"to Kendall's tau {taus} (the initial weights alone: {nulls})."
    )


def _near(steps: int) -> dict[str, list[Seen]]:
    """By net, what was measured at this length or a shorter one."""
    found: dict[str, list[Seen]] = {}
    for seen in SEEN:
        if _AS_LONG * seen.steps <= steps:
            found.setdefault(seen.net, []).append(seen)
    return found


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

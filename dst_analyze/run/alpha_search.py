"""The search for alphas: which to try next, from how much of the model remained at those tried so far.

The remaining ratio falls with alpha, steadily but for noise, and nearly straight on paper that shows the odds against
alpha, both in powers. So each target is bracketed and cut down there; where there is nothing on one side of it, a line
through the nearest two points says how far to go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

WEAKEST, STRONGEST = 1e-12, 1e3
"""Alphas beyond which no search goes."""
_SLOPE = -0.8  # of the log odds against log alpha: what is typical, where only one alpha was tried
_STEEPEST, _FLATTEST = -4.0, -0.2
_FARTHEST = math.log(12)  # how far beyond all that was tried one step may go
_TWICE = math.log(2)
_CLIFF = 5.0  # in log odds
_NARROW = math.log(1.05)  # a bracket in which noise is all there is
_FEWEST = 1e-4  # remaining ratios are told apart down to this


@dataclass(frozen=True)
class Target:
    """A remaining ratio asked for, and what came nearest to it."""

    ratio: float
    alpha: float
    reached: float


@dataclass(frozen=True)
class Search:
    """For every target an alpha: ``tolerance`` is in log odds, ``rounds`` how often may be tried again."""

    targets: tuple[float, ...]
    tolerance: float
    rounds: int

    def nearest(self, seen: Mapping[float, float]) -> tuple[Target, ...]:
        """For every target the alpha that came nearest, as far as anything is known.

        Not one beyond the alpha that left least: what remains there are layers that collapsed and were reset.
        """
        if not seen:
            return ()
        farthest = max(alpha for alpha, ratio in seen.items() if ratio == min(seen.values()))
        falling = [alpha for alpha in seen if alpha <= farthest]
        best = {target: min(falling, key=lambda alpha: (_off(seen[alpha], target), alpha)) for target in self.targets}
        return tuple(Target(target, alpha, seen[alpha]) for target, alpha in best.items())

    def next(self, seen: Mapping[float, float]) -> tuple[float, ...]:
        """Alphas to try next: one for each target that nothing has come near to, and that can be come nearer to."""
        missed = [near.ratio for near in self.nearest(seen) if _off(near.reached, near.ratio) > self.tolerance]
        tries = dict.fromkeys(alpha for target in missed if (alpha := _between(seen, target)) is not None)
        return tuple(alpha for alpha in tries if alpha not in seen)


def rounded(alpha: float) -> float:
    """Two digits: more would claim to know more."""
    return float(f"{alpha:.1e}")


def _between(seen: Mapping[float, float], target: float) -> float | None:
    """Where the target should lie; None where there is no coming nearer.

    Layers that collapse are reset, so that beyond some alpha more remains again: where the strongest did not leave
    least, the alpha that did is gone beyond by halves.
    """
    points = sorted((math.log(alpha), _log_odds(ratio)) for alpha, ratio in seen.items())
    goal = _log_odds(target)
    brackets = [(low, high) for low, high in pairwise(points) if low[1] >= goal > high[1]]
    if brackets:
        (x0, y0), (x1, y1) = brackets[0]
        if x1 - x0 < _NARROW:
            return None
        # Across a cliff, where trials collapse or diverge, a line says little: rather halve.
        least = 0.4 if y0 - y1 > _CLIFF else 0.1
        share = min(max((y0 - goal) / (y0 - y1), least), 1 - least)
        return _fine(math.exp(x0 + share * (x1 - x0)))
    if points[-1][1] < goal:
        outer, inner = points[0], points[1:2]
    elif points[-1][1] > (least := min(y for _, y in points)):
        last = max(i for i, (_, y) in enumerate(points) if y == least)
        (x0, _), (x1, _) = points[last : last + 2]
        return _fine(math.exp((x0 + x1) / 2)) if x1 - x0 > _TWICE else None
    else:
        outer, inner = points[-1], points[-2:-1]
    step = (goal - outer[1]) / _slope(outer, inner)
    alpha = math.exp(outer[0] + min(max(step, -_FARTHEST), _FARTHEST))
    return _fine(alpha) if WEAKEST <= alpha <= STRONGEST else None


def _slope(outer: tuple[float, float], inner: Sequence[tuple[float, float]]) -> float:
    if not inner or inner[0][0] == outer[0]:
        return _SLOPE
    (x0, y0), (x1, y1) = outer, inner[0]
    return min(max((y1 - y0) / (x1 - x0), _STEEPEST), _FLATTEST)


def _fine(alpha: float) -> float:
    """Three digits: a search must be able to come nearer."""
    return float(f"{alpha:.2e}")


def _off(reached: float, target: float) -> float:
    return abs(_log_odds(reached) - _log_odds(target))


def _log_odds(ratio: float) -> float:
    ratio = min(max(ratio, _FEWEST), 1 - _FEWEST)
    return math.log(ratio / (1 - ratio))

"""The trials of a sweep, and the search for alphas that leave given ratios.

Log-odds of the remaining ratio are roughly linear in log alpha. Each target is bracketed on these scales and
interpolated; a target outside all tried ratios is extrapolated by a line through the nearest two points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from dst_analyze.run.config import SweepConfig
from dst_analyze.run.record import UNPRUNED, Target, TrialKey, TrialResult

WEAKEST, STRONGEST = 1e-12, 1e3
"""Limits of every search."""
_SLOPE = -0.8  # typical slope of log-odds against log alpha, for use after a single alpha
_STEEPEST, _FLATTEST = -4.0, -0.2
_FARTHEST = math.log(12)  # longest extrapolation beyond all tried alphas
_TWICE = math.log(2)
_CLIFF = 5.0  # in log-odds
_NARROW = math.log(1.05)  # narrower brackets contain only noise
_FLOOR = 0.05  # below, layers held at 1 % make all strong alphas alike
_FEWEST = 1e-4  # ratios below this are clamped
_FLAT, _FLAT_OVER = (
    0.1,
    math.log(50),
)  # log-odds that ratios differ by at most, over at least so long a way in log alpha


@dataclass(frozen=True)
class Search:
    """A search for an alpha per target; ``tolerance`` is in log-odds, ``rounds`` the number of retries."""

    targets: tuple[float, ...]
    tolerance: float
    rounds: int

    def nearest(self, seen: Mapping[float, float]) -> tuple[Target, ...]:
        """Return the nearest alpha for every target; empty if nothing is known.

        Alphas beyond the one that left least are ignored: their ratios come from layers that were reset.
        """
        if not seen:
            return ()
        farthest = max(alpha for alpha, ratio in seen.items() if ratio == min(seen.values()))
        falling = [alpha for alpha in seen if alpha <= farthest]
        best = {
            target: min(falling, key=lambda alpha: (_distance(seen[alpha], target), alpha)) for target in self.targets
        }
        return tuple(Target(target, alpha, seen[alpha]) for target, alpha in best.items())

    def next(self, seen: Mapping[float, float]) -> tuple[float, ...]:
        """Return the alphas to try next: one for each missed target that can still be improved."""
        missed = [near.ratio for near in self.nearest(seen) if _distance(near.reached, near.ratio) > self.tolerance]
        tries = dict.fromkeys(alpha for target in missed if (alpha := _next_alpha(seen, target)) is not None)
        return tuple(alpha for alpha in tries if alpha not in seen)


def rounded(alpha: float) -> float:
    """Return an alpha with two digits, the precision that a recommendation has."""
    return float(f"{alpha:.1e}")


def _next_alpha(seen: Mapping[float, float], target: float) -> float | None:
    """Return the next alpha to try for a target; None if the search cannot improve.

    Layers that collapse are reset, so that more remains again beyond some alpha. If the strongest alpha did not leave
    least, the interval after the one that did is halved.
    """
    points = sorted((math.log(alpha), _log_odds(ratio)) for alpha, ratio in seen.items())
    goal = _log_odds(target)
    brackets = [(low, high) for low, high in pairwise(points) if low[1] >= goal > high[1]]
    if brackets:
        (x0, y0), (x1, y1) = brackets[0]
        if x1 - x0 < _NARROW:
            return None
        # Across a cliff, where trials collapse or diverge, a line is misleading: halve instead.
        least = 0.4 if y0 - y1 > _CLIFF else 0.1
        share = min(max((y0 - goal) / (y0 - y1), least), 1 - least)
        return _three_digits(math.exp(x0 + share * (x1 - x0)))
    if plateau(seen) is not None and points[0][1] >= goal:
        return None  # stronger alphas leave no less
    if points[-1][1] < goal:
        outer, inner = points[0], points[1:2]
    elif points[-1][1] > (least := min(y for _, y in points)):
        last = max(i for i, (_, y) in enumerate(points) if y == least)
        (x0, _), (x1, _) = points[last : last + 2]
        return _three_digits(math.exp((x0 + x1) / 2)) if x1 - x0 > _TWICE else None
    else:
        outer, inner = points[-1], points[-2:-1]
    step = (goal - outer[1]) / _slope(outer, inner)
    alpha = math.exp(outer[0] + min(max(step, -_FARTHEST), _FARTHEST))
    return _three_digits(alpha) if WEAKEST <= alpha <= STRONGEST else None


def plateau(seen: Mapping[float, float]) -> tuple[float, float, float] | None:
    """Return two alphas far apart that leave the same ratio, and that ratio; None if ratios depend on alpha.

    Layers that collapse and are reset leave the same on the whole, however strong alpha is.
    """
    pruned = sorted((alpha, ratio) for alpha, ratio in seen.items() if _FLOOR < ratio <= UNPRUNED)
    for (low, one), (high, other) in reversed(list(combinations(pruned, 2))):
        if math.log(high / low) >= _FLAT_OVER and abs(_log_odds(one) - _log_odds(other)) <= _FLAT:
            return low, high, other
    return None


def _slope(outer: tuple[float, float], inner: Sequence[tuple[float, float]]) -> float:
    if not inner or inner[0][0] == outer[0]:
        return _SLOPE
    (x0, y0), (x1, y1) = outer, inner[0]
    return min(max((y1 - y0) / (x1 - x0), _STEEPEST), _FLATTEST)


def _three_digits(alpha: float) -> float:
    """Return an alpha with three digits, which a search needs."""
    return float(f"{alpha:.2e}")


def _distance(reached: float, target: float) -> float:
    return abs(_log_odds(reached) - _log_odds(target))


def _log_odds(ratio: float) -> float:
    ratio = min(max(ratio, _FEWEST), 1 - _FEWEST)
    return math.log(ratio / (1 - ratio))


AUTO_TARGETS = (0.8, 0.3, 0.1)
"""What should remain of the model at the alphas of ``--alphas auto``, roughly."""
# Within tolerance: 0.69 to 0.88, 0.18 to 0.45, 0.055 to 0.175, which do not overlap.
_ROUGHLY = Search(AUTO_TARGETS, tolerance=0.65, rounds=3)
_NEAR, _ROUNDS = 0.1, 6  # 0.5 to within 0.025, 0.05 to within 0.005


@dataclass(frozen=True)
class TrialSchedule:
    """The trials that a sweep needs, as far as its results so far determine them.

    ``alphas`` are the final ones; a search may try others before. ``settled`` is True if no trial will be added.
    """

    keys: tuple[TrialKey, ...]
    alphas: tuple[float, ...]
    targets: tuple[Target, ...] = ()
    settled: bool = True


def search_of(config: SweepConfig) -> Search | None:
    """Return the search for alphas; None if the alphas are given."""
    if config.target_remaining:
        return Search(config.target_remaining, _NEAR, _ROUNDS)
    return None if config.given_alphas else _ROUGHLY


def schedule_of(
    config: SweepConfig, first: tuple[float, ...], results: Mapping[TrialKey, TrialResult]
) -> TrialSchedule:
    """Return the trials of a sweep whose search starts at ``first``, whatever the order of results."""
    search, seed = search_of(config), config.seeds[0]
    dense = TrialKey(None, seed)
    if search is None:
        return TrialSchedule((dense, *_grid(config, config.given_alphas)), config.given_alphas)
    tried = list(first)
    for again in range(search.rounds + 1):
        keys = [TrialKey(alpha, seed) for alpha in tried]
        if any(key not in results for key in keys):
            return TrialSchedule((dense, *keys), tuple(sorted(tried)), settled=False)
        ended = {key.alpha: results[key] for key in keys if key.alpha is not None}
        # A diverged trial had too strong an alpha; a failed one is no evidence.
        seen = {a: r.reached for a, r in ended.items() if r.status != "failed"}
        more = search.next(seen) if again < search.rounds else ()
        if not more:
            break
        tried += more
    targets = search.nearest({a: r.reached for a, r in ended.items() if r.status == "done"})
    alphas = tuple(sorted({target.alpha for target in targets})) or tuple(sorted(tried))
    return TrialSchedule(tuple(dict.fromkeys((dense, *keys, *_grid(config, alphas)))), alphas, targets)


def _grid(config: SweepConfig, alphas: tuple[float, ...]) -> list[TrialKey]:
    kinds = (False, True) if config.control else (False,)
    return [TrialKey(alpha, seed, control) for control in kinds for alpha in alphas for seed in config.seeds]

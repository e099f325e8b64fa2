"""Which trials a sweep consists of, and the search for alphas: which to try next, from what remained at those so far.

The remaining ratio falls with alpha, steadily but for noise, and nearly straight on paper that shows the odds against
alpha, both in powers. So each target is bracketed and cut down there; where there is nothing on one side of it, a line
through the nearest two points says how far to go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dst_analyze.run.config import SweepConfig
from dst_analyze.run.record import Target, TrialKey, TrialResult

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


AUTO_TARGETS = (0.8, 0.3, 0.1)
"""What should remain of the model at the alphas of ``--alphas auto``, roughly."""
# No alpha is near two of them: 0.69 to 0.88, 0.18 to 0.45, 0.055 to 0.175.
_ROUGHLY = Search(AUTO_TARGETS, tolerance=0.65, rounds=3)
_NEAR, _ROUNDS = 0.1, 6  # 0.5 to within 0.025, 0.05 to within 0.005


@dataclass(frozen=True)
class TrialSchedule:
    """The trials a sweep needs, as far as that is known from what it has found.

    ``alphas`` are those that count; a search tries others on the way. ``settled``: no trial can be added any more.
    """

    keys: tuple[TrialKey, ...]
    alphas: tuple[float, ...]
    targets: tuple[Target, ...] = ()
    settled: bool = True


def search_of(config: SweepConfig) -> Search | None:
    """How the alphas are to be found; None where they are given."""
    if config.target_remaining:
        return Search(config.target_remaining, _NEAR, _ROUNDS)
    return None if config.given_alphas else _ROUGHLY


def schedule_of(
    config: SweepConfig, first: tuple[float, ...], results: Mapping[TrialKey, TrialResult]
) -> TrialSchedule:
    """Return the trials of a sweep whose search starts at ``first``; the order of the results does not matter."""
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
        # A trial that diverged was pushed too hard; one that failed says nothing.
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

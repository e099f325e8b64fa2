"""Which trials a sweep consists of: known at once for a list of alphas, found out on the way by a search for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dst_analyze.run.alpha_search import Search, Target
from dst_analyze.run.record import SweepConfig, TrialKey, TrialResult

AUTO_TARGETS = (0.8, 0.3, 0.1)
"""What should remain of the model at the alphas of ``--alphas auto``, roughly."""
# No alpha is near two of them: 0.69 to 0.88, 0.18 to 0.45, 0.055 to 0.175.
_ROUGHLY = Search(AUTO_TARGETS, tolerance=0.65, rounds=3)
_NEAR, _ROUNDS = 0.1, 6  # 0.5 to within 0.025, 0.05 to within 0.005


@dataclass(frozen=True)
class Course:
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


def course_of(config: SweepConfig, first: tuple[float, ...], results: Mapping[TrialKey, TrialResult]) -> Course:
    """The course of a sweep whose search starts at ``first``; the same results give the same course, in any order."""
    search, seed = search_of(config), config.seeds[0]
    dense = TrialKey(None, seed)
    if search is None:
        return Course((dense, *_grid(config, config.given_alphas)), config.given_alphas)
    tried = list(first)
    for again in range(search.rounds + 1):
        keys = [TrialKey(alpha, seed) for alpha in tried]
        if any(key not in results for key in keys):
            return Course((dense, *keys), tuple(sorted(tried)), settled=False)
        ended = {key.alpha: results[key] for key in keys if key.alpha is not None}
        # A trial that diverged was pushed too hard; one that failed says nothing.
        seen = {a: r.reached for a, r in ended.items() if r.status != "failed"}
        more = search.next(seen) if again < search.rounds else ()
        if not more:
            break
        tried += more
    targets = search.nearest({a: r.reached for a, r in ended.items() if r.status == "done"})
    alphas = tuple(sorted({target.alpha for target in targets})) or tuple(sorted(tried))
    return Course(tuple(dict.fromkeys((dense, *keys, *_grid(config, alphas)))), alphas, targets)


def _grid(config: SweepConfig, alphas: tuple[float, ...]) -> list[TrialKey]:
    kinds = (False, True) if config.control else (False,)
    return [TrialKey(alpha, seed, control) for control in kinds for alpha in alphas for seed in config.seeds]

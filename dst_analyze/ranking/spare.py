"""Spare weights: the share of each layer that can go at no measurable loss of score."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dst_analyze.ranking.input.trial_matrix import Measured
from dst_analyze.run.record import ScoreKind, SweepRecord, TrialResult, alpha_label

POINTS = 0.005
"""Noise of an accuracy whose standard error is not known."""
SHARE = 0.01
"""Noise of a loss whose standard error is not known, as a share of the loss."""
FAILED = 2.0
"""An alpha that loses more than this multiple of the noise ends the search for free alphas."""
_MOST = 2  # stronger alphas that a sentence mentions
_MORE = 0.01  # smallest further share of a layer that is mentioned


@dataclass(frozen=True)
class Cost:
    """The loss of score at one alpha against the reference, and how much of that may be noise.

    ``loss`` and ``noise`` are NaN if no trial of the alpha ended well. ``free`` is true if the loss is within the noise
    and no weaker alpha lost clearly more.
    """

    alpha: float
    loss: float
    noise: float
    free: bool


@dataclass(frozen=True)
class Costs:
    """The cost of each alpha, weakest first; ``score`` is the kind of score."""

    score: ScoreKind
    alphas: tuple[Cost, ...]

    @property
    def strongest_free(self) -> float:
        """The strongest alpha without measurable loss; NaN if there is none."""
        return max((cost.alpha for cost in self.alphas if cost.free), default=math.nan)


def costs_of(record: SweepRecord) -> Costs | None:
    """Return the cost of each alpha of a sweep; None if there is no score, or its noise is unknown."""
    kind = record.manifest.data.score
    sign = 1.0 if kind == "loss" else -1.0
    trials = {alpha: _scored(record.at(alpha)) for alpha in sorted(record.alphas)}
    reference = _reference(record, trials, sign)
    if not reference or not any(trials.values()):
        return None
    base = _mean_score(reference)
    known = _known_noise(kind, reference, trials.values())
    if known is None:
        return None
    costs, failed = [], False
    for alpha, scored in trials.items():
        loss = sign * (_mean_score(scored) - base) if scored else math.nan
        noise = math.sqrt(known(scored) + (_between(scored) or 0.0)) if scored else math.nan
        costs.append(Cost(alpha, loss, noise, free=not failed and loss <= noise * (1 + 1e-9)))
        failed = failed or not loss <= FAILED * noise * (1 + 1e-9)  # diverged trials have failed too
    return Costs(kind, tuple(costs))


def _reference(record: SweepRecord, trials: dict[float, list[TrialResult]], sign: float) -> list[TrialResult]:
    """Return the dense trials, or the weakest alpha's if the dense ones trained less and score lower."""
    dense = _scored([t for t in record.trials if t.alpha is None and t.status == "done" and not t.control])
    manifest = record.manifest
    if manifest.reference == "trained alike" or not manifest.warm_up:
        return dense
    weakest = next(iter(trials.values()), [])
    known = [one for one in (dense, weakest) if one]
    return min(known, key=lambda one: sign * _mean_score(one), default=[])


def _scored(trials: Sequence[TrialResult]) -> list[TrialResult]:
    return [trial for trial in trials if trial.score is not None]


def _scores(trials: Sequence[TrialResult]) -> list[float]:
    return [trial.score for trial in trials if trial.score is not None]


def _mean_score(trials: Sequence[TrialResult]) -> float:
    return float(np.mean(_scores(trials)))


def _error(trials: Sequence[TrialResult]) -> float | None:
    """Return the standard error of a score; not smaller for more trials, as they share test data."""
    errors = [trial.error for trial in trials if trial.error is not None]
    return float(np.mean(errors)) if len(errors) == len(trials) else None


def _between(trials: Sequence[TrialResult]) -> float | None:
    """Return the variance of a score over seeds; None for one seed."""
    return float(np.var(_scores(trials), ddof=1)) if len(trials) > 1 else None


def _known_noise(
    kind: ScoreKind, reference: Sequence[TrialResult], masked: Collection[Sequence[TrialResult]]
) -> Callable[[Sequence[TrialResult]], float] | None:
    """Return what gives the variance of an alpha's score that seeds do not show; None if it is unknown.

    A score that is neither an accuracy nor a loss has no scale: its noise is what several seeds of the reference differ
    by, or of the weakest alpha, as the reference is often trained once.
    """
    base, base_error = _mean_score(reference), _error(reference)
    if kind == "accuracy":
        default: float | None = POINTS**2
    elif kind == "loss":
        default = (SHARE * abs(base)) ** 2
    else:
        default = next((between for one in (reference, *masked) if (between := _between(one)) is not None), None)
        if default is None and None in (base_error, *map(_error, filter(None, masked))):
            return None

    def known(scored: Sequence[TrialResult]) -> float:
        error = _error(scored)
        if base_error is None or error is None:
            return math.nan if default is None else default
        return base_error**2 + error**2

    return known


# --- layer by layer -------------------------------------------------------------------------------------------------


def gone_at(made: Measured, alphas: Sequence[float]) -> np.ndarray:
    """Return the share of each layer that was pruned at each alpha, mean over seeds.

    Rows are alphas, columns layers; NaN if no trial of an alpha ended well. Ratios are those at the end, when the score
    was taken: a layer that was reset has its weights back then, so they are not spare.
    """
    main = ~made.trials["control"].to_numpy(bool)
    at = made.trials["alpha"].to_numpy(float)
    gone = np.full((len(alphas), len(made.layers)), math.nan)
    for row, alpha in enumerate(alphas):
        part = 1 - made.read[main & (at == alpha)]
        part = part[~np.isnan(part).all(axis=1)]
        if len(part):
            gone[row] = part.mean(axis=0)
    return gone


def spare_of(made: Measured, costs: Costs | None) -> pd.DataFrame:
    """Return each layer's spare share (0 to 1, NaN if unknown), its alpha, and both in words."""
    count = len(made.layers)
    unknown = pd.DataFrame({"spare": math.nan, "spare_alpha": math.nan, "spare_words": [""] * count})
    if costs is None:
        return unknown
    gone = gone_at(made, [cost.alpha for cost in costs.alphas])
    free = [row for row, cost in enumerate(costs.alphas) if cost.free]
    spare = gone[free[-1]] if free else np.where(np.isnan(gone).all(axis=0), math.nan, 0.0)
    words = [_words(costs, gone[:, at], spare[at]) for at in range(count)]
    return unknown.assign(spare=spare, spare_alpha=costs.strongest_free, spare_words=words)


def spare_note(costs: Costs | None, record: SweepRecord | None) -> Iterator[str]:
    """Yield a sentence that names the alpha of "spare"; nothing if no score is known."""
    if costs is None:
        if record is not None and record.manifest.data.score == "score" and _scored(record.trials):
            yield (
                "Spare: not known, as one seed does not show how much this score varies between trainings. "
                "Sweep with 2 or more seeds, or tell the standard error of each score."
            )
        return
    if math.isnan(costs.strongest_free):
        yield f"Spare: no alpha kept the {costs.score} of the dense model; a weaker alpha may."
    else:
        at = alpha_label(costs.strongest_free)
        yield f"Spare: the weights pruned at alpha {at}, the strongest alpha at no measurable loss of {costs.score}."


def _words(costs: Costs, gone: np.ndarray, spare: float) -> str:
    if math.isnan(spare):
        return ""
    more = list(_more(costs, gone, spare))[:_MOST]
    if any(cost.free for cost in costs.alphas):
        return ", ".join([f"{_share(spare)} of its weights go at no loss", *more])
    if not more:
        return "no alpha that was tried kept the score"
    share, _, cost = more[0].partition(" at ")
    at = f"at a cost of {cost}" if costs.score == "accuracy" else f"at {cost}"
    return f"no alpha that was tried kept the score: {', '.join([f'{share} of its weights go {at}', *more[1:]])}"


def _more(costs: Costs, gone: np.ndarray, spare: float) -> Iterator[str]:
    """Yield what else goes at stronger alphas; the loss never falls from one alpha to the next."""
    most, worst = spare, 0.0
    for cost, share in zip(costs.alphas, gone, strict=True):
        if cost.alpha <= costs.strongest_free or math.isnan(cost.loss) or math.isnan(share):
            continue
        worst = max(worst, cost.loss)
        if share > most + _MORE and worst > 0:
            most = share
            yield f"{_share(share)} at {loss_words(worst, costs.score)}"


def loss_words(loss: float, kind: str) -> str:
    """Return a loss of score in words: "half a point", "a loss higher by 0.02"."""
    if kind == "loss":
        return f"a loss higher by {loss:.2g}"
    if kind == "score":
        return f"a score lower by {loss:.2g}"
    points = 100 * loss
    if abs(points - 0.5) < 0.05:
        return "half a point"
    if abs(points - 1) < 0.05:
        return "one point"
    return f"{points:.1f} points" if points < 9.95 else f"{points:.0f} points"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"

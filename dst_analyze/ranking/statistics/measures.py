"""The arithmetic: redundancy, ranks, agreement between rankings, and how far each could be otherwise.

Rows are trials, columns are layers. docs/ranking.md says in words what each number means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLOOR = 1e-4
"""The smallest ratio that is told from zero where the number of weights is not known (and in a null)."""
COLLAPSED = 0.01
"""The ratio at which a sweep resets a layer's thresholds: a layer that was reset kept no more."""
LEVEL = 0.95
"""Of every interval; what happens in one trial of twenty or fewer is put down to chance."""
_SHUFFLED = 10**7  # numbers to shuffle for a p-value: half a second at most
_CHUNK = 2 * 10**6
_DIGITS = 12  # of a mean that count: sums of the same numbers may differ beyond


def floors(params: np.ndarray | None, layers: int) -> np.ndarray:
    """The ratio below which each layer's is not told from zero: that of one weight."""
    return np.full(layers, FLOOR) if params is None else 1 / params


def redundancy(ratios: np.ndarray, params: np.ndarray | None, *, floor: float = 0.0) -> np.ndarray:
    """Return how much sparser than the typical layer each layer is, in each trial: middle mean of log k, less log k.

    Layers count alike, whatever their size: the average by weights would be the largest layer itself.
    """
    if not ratios.shape[-1]:  # no layer was read in every trial
        return np.zeros(ratios.shape)
    kept = np.log(np.maximum(ratios, np.maximum(floors(params, ratios.shape[-1]), floor)))
    difference: np.ndarray = middle_mean(kept) - kept
    return difference


def middle_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of each row (interquartile mean), with the last axis kept.

    A single extreme layer does not move it, as it moves the mean; and it varies less between seeds than the median.
    A value that is partly in the middle half counts in part.
    """
    count = values.shape[-1]
    place = np.arange(count)
    share = np.clip(np.minimum(place + 1 - count / 4, 3 * count / 4 - place), 0, 1)
    mean: np.ndarray = (np.sort(values, axis=-1) @ share)[..., None] / share.sum()
    return mean


def ranks(values: np.ndarray) -> np.ndarray:
    """1 for the largest; layers that are equal share the mean of their places."""
    if values.ndim == 2 and values.size > _CHUNK:
        return np.concatenate(
            [ranks(part) for part in np.array_split(values, min(len(values), 2 * values.size // _CHUNK))]
        )
    falling = -np.round(values, _DIGITS)
    order = np.argsort(falling, axis=-1, kind="stable")
    placed = np.take_along_axis(falling, order, axis=-1)
    place = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    changes = placed[..., 1:] != placed[..., :-1]
    edge = np.ones((*values.shape[:-1], min(1, values.shape[-1])), dtype=bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, changes], axis=-1), place, 0), axis=-1)
    ends = np.where(np.concatenate([changes, edge], axis=-1), place, values.shape[-1])
    last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    ranked: np.ndarray = np.empty(values.shape)
    np.put_along_axis(ranked, order, (first + last) / 2 + 1, axis=-1)
    return np.where(np.isnan(values).any(axis=-1, keepdims=True), np.nan, ranked)


def kendalls_w(ranked: np.ndarray) -> float:
    """Kendall's W, corrected for ties: 1 if all rows rank alike, about 1/rows by chance; NaN if everything is tied."""
    centred = ranked - ranked.mean(axis=1, keepdims=True)
    largest = len(ranked) * (centred**2).sum()
    return float(min((centred.sum(axis=0) ** 2).sum() / largest, 1.0)) if largest > 0 else float("nan")


def kendalls_tau(one: np.ndarray, other: np.ndarray) -> float:
    """Kendall's tau-b of two orders; NaN where one of them tells no two layers apart."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    from scipy.stats import kendalltau  # here, as it takes half a second to import

    return float(kendalltau(np.round(one, _DIGITS), np.round(other, _DIGITS)).statistic)


def permutation_p(ranked: np.ndarray, rng: np.random.Generator) -> float:
    """How often rows that rank at random agree at least as well: every row is shuffled by itself."""
    rows, layers = ranked.shape
    centred = ranked - ranked.mean(axis=1, keepdims=True)
    observed = (centred.sum(axis=0) ** 2).sum()
    total = int(np.clip(_SHUFFLED // ranked.size, 199 if ranked.size < _CHUNK // 4 else 49, 1999))
    chunk = max(1, _CHUNK // ranked.size)
    as_good = 0
    for start in range(0, total, chunk):
        shuffled = np.broadcast_to(centred, (min(chunk, total - start), rows, layers)).copy()
        rng.permuted(shuffled, axis=2, out=shuffled)
        as_good += int(((shuffled.sum(axis=1) ** 2).sum(axis=1) >= observed * (1 - 1e-9)).sum())
    return (1 + as_good) / (1 + total)


def resampled(alphas: np.ndarray, seeds: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """How often each trial is in each draw, alphas and seeds being drawn anew with replacement, each for itself.

    A draw of an alpha takes it with all seeds that were drawn and the other way round: trials that share an alpha, or
    a seed, are alike, and drawing trials one by one would make them look like more evidence than they are.
    """
    counts = np.ones((draws, len(alphas)))
    for labels in (alphas, seeds):
        values, member = np.unique(labels, return_inverse=True)
        counts *= rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=draws)[:, member]
    drawn: np.ndarray = counts[counts.sum(axis=1) > 0]  # with trials missing, a draw may hold none
    return drawn


@dataclass(frozen=True)
class Interval:
    """From where to where, at `LEVEL`; NaN where nothing can be said."""

    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Interval:
        known = values[~np.isnan(values)]
        if not len(known):
            return UNKNOWN
        low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(low), float(high))


UNKNOWN = Interval(float("nan"), float("nan"))


def rank_intervals(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The range of each layer's rank over the draws: lowest and highest."""
    drawn = ranks(counts @ values / counts.sum(axis=1, keepdims=True))
    drawn.sort(axis=0)
    cut = int((1 - LEVEL) / 2 * (len(drawn) - 1))
    return drawn[cut], drawn[len(drawn) - 1 - cut]


def mean_correlation(vectors: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """The mean correlation between two different rows, for each draw of rows (without draws, of all once).

    A row that is drawn twice is not compared with itself: it would agree, and a draw of few rows look better than all.
    """
    centred = vectors - vectors.mean(axis=1, keepdims=True)
    products, length = centred @ centred.T, np.sqrt((centred**2).sum(axis=1))
    norms = np.outer(length, length)
    drawn = np.ones((1, len(vectors))) if counts is None else counts
    for matrix in (products, norms):
        np.fill_diagonal(matrix, 0)
    together, largest = (np.einsum("bi,ij,bj->b", drawn, m, drawn, optimize=True) for m in (products, norms))
    mean: np.ndarray = np.divide(together, largest, out=np.full(len(drawn), np.nan), where=largest > 1e-9)
    return mean


def as_w(correlation: np.ndarray, rows: int) -> np.ndarray:
    """The W that rows of such a mean correlation have."""
    w: np.ndarray = np.clip((1 + (rows - 1) * correlation) / rows, 0, 1)
    return w


def correlations(ranked: np.ndarray) -> np.ndarray:
    """Spearman's correlation of every two rows; NaN with a row in which everything is tied."""
    centred = ranked - ranked.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1))
    norms = np.outer(length, length)
    table = np.divide(centred @ centred.T, norms, out=np.full(norms.shape, np.nan), where=norms > 0)
    clipped: np.ndarray = np.clip(table, -1, 1)
    return clipped


@dataclass(frozen=True)
class Explained:
    """How much of a redundancy another one explains, and whether the rest is the same in every trial.

    ``share`` is of its variance over layers, 0 to 1; ``rest`` the mean correlation between trials of what is left.
    """

    share: float
    rest: float
    rest_low: float

    @property
    def says_more(self) -> bool:
        """Whether something beyond it is there in trial after trial."""
        low = self.rest if np.isnan(self.rest_low) else self.rest_low
        return self.share < LEVEL and bool(low > 0)


def explained(values: np.ndarray, by: np.ndarray, counts: np.ndarray, *, steepest: float) -> Explained:
    """Take out of each trial's redundancy the multiple of the other that fits best, and look at the rest.

    The multiple is from 0 (the opposite explains nothing) to ``steepest`` (nor do tiny differences large ones).
    """
    one, other = (v - v.mean(axis=1, keepdims=True) for v in (values, by))
    size = (other**2).sum(axis=1, keepdims=True)
    slope = np.divide((one * other).sum(axis=1, keepdims=True), size, out=np.zeros_like(size), where=size > 0)
    rest = one - np.clip(slope, 0, steepest) * other
    whole = (one**2).sum()
    share = float(np.clip(1 - (rest**2).sum() / whole, 0, 1)) if whole > 0 else float("nan")
    if len(values) < 2:
        return Explained(share, float("nan"), float("nan"))
    drawn = Interval.of(mean_correlation(rest, counts)) if len(values) > 2 else UNKNOWN
    return Explained(share, float(np.nan_to_num(mean_correlation(rest)[0])), drawn.low)

"""Redundancy, ranks, agreement between rankings, and bootstrap intervals.

Rows are trials, columns are layers. docs/reference/ranking.md says in words what each number means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLOOR = 1e-4
"""Ratios below this are clamped if the number of weights is not known, and in a null."""
COLLAPSED = 0.01
"""The ratio at which a sweep resets a layer's thresholds: a reset layer kept at most this."""
LEVEL = 0.95
"""Confidence level of every interval and test."""
_SHUFFLED = 10**7  # numbers to shuffle for a p-value: half a second at most
_CHUNK = 2 * 10**6
_DIGITS = 12  # decimals that ranks compare: sums of the same numbers may differ beyond


def floors(params: np.ndarray | None, layers: int) -> np.ndarray:
    """Return the ratio that each layer's is clamped to: that of one weight."""
    return np.full(layers, FLOOR) if params is None else 1 / params


def redundancy(ratios: np.ndarray, params: np.ndarray | None, *, floor: float = 0.0) -> np.ndarray:
    """Return each layer's redundancy in each trial: middle mean of log ratio, less its log ratio.

    Layers count alike whatever their size, as a mean by weights would follow the largest layer.
    """
    if not ratios.shape[-1]:  # no layer was read in every trial
        return np.zeros(ratios.shape)
    kept = np.log(np.maximum(ratios, np.maximum(floors(params, ratios.shape[-1]), floor)))
    difference: np.ndarray = middle_mean(kept) - kept
    return difference


def middle_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half of each row (interquartile mean), with the last axis kept.

    It resists outliers, unlike the mean, and varies less between seeds than the median. Values partly in the middle
    half count in part.
    """
    count = values.shape[-1]
    place = np.arange(count)
    share = np.clip(np.minimum(place + 1 - count / 4, 3 * count / 4 - place), 0, 1)
    mean: np.ndarray = (np.sort(values, axis=-1) @ share)[..., None] / share.sum()
    return mean


def ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks, 1 for the largest value; ties share the mean of their ranks."""
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
    """Return Kendall's W, corrected for ties: 1 if all rows agree, about 1/rows by chance, NaN if tied."""
    centred = ranked - ranked.mean(axis=1, keepdims=True)
    largest = len(ranked) * (centred**2).sum()
    return float(min((centred.sum(axis=0) ** 2).sum() / largest, 1.0)) if largest > 0 else float("nan")


def kendalls_tau(one: np.ndarray, other: np.ndarray) -> float:
    """Return Kendall's tau-b of two orders; NaN if all values of one are equal."""
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    from scipy.stats import kendalltau  # here, as it takes half a second to import

    return float(kendalltau(np.round(one, _DIGITS), np.round(other, _DIGITS)).statistic)


def permutation_p(ranked: np.ndarray, rng: np.random.Generator) -> float:
    """Return the p-value of the rows' agreement: rows are shuffled independently."""
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
    """Return how often each trial is in each bootstrap draw.

    Alphas and seeds are drawn separately: trials that share one of them are not independent, so that drawing trials
    one by one would give intervals that are too narrow.
    """
    counts = np.ones((draws, len(alphas)))
    for labels in (alphas, seeds):
        values, member = np.unique(labels, return_inverse=True)
        counts *= rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=draws)[:, member]
    drawn: np.ndarray = counts[counts.sum(axis=1) > 0]  # with trials missing, a draw may hold none
    return drawn


@dataclass(frozen=True)
class Interval:
    """A confidence interval at `LEVEL`; NaN if there is none."""

    low: float
    high: float

    @classmethod
    def of(cls, values: np.ndarray) -> Interval:
        """Return the interval of bootstrap values, without NaNs."""
        known = values[~np.isnan(values)]
        if not len(known):
            return UNKNOWN
        low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(low), float(high))


UNKNOWN = Interval(float("nan"), float("nan"))


def rank_intervals(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each layer's lowest and highest rank over the draws, at `LEVEL`."""
    drawn = ranks(counts @ values / counts.sum(axis=1, keepdims=True))
    drawn.sort(axis=0)
    cut = int((1 - LEVEL) / 2 * (len(drawn) - 1))
    return drawn[cut], drawn[len(drawn) - 1 - cut]


def mean_correlation(vectors: np.ndarray, counts: np.ndarray | None = None) -> np.ndarray:
    """Return the mean correlation between different rows: for each draw of rows, or once over all rows.

    A row that is drawn twice is not compared with itself, which would raise the mean of draws with few rows.
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
    """Return Kendall's W for a mean correlation between rows."""
    w: np.ndarray = np.clip((1 + (rows - 1) * correlation) / rows, 0, 1)
    return w


def correlations(ranked: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of every two rows of ranks; NaN for a row of ties."""
    centred = ranked - ranked.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1))
    norms = np.outer(length, length)
    table = np.divide(centred @ centred.T, norms, out=np.full(norms.shape, np.nan), where=norms > 0)
    clipped: np.ndarray = np.clip(table, -1, 1)
    return clipped


@dataclass(frozen=True)
class Explained:
    """The share of a redundancy that another one explains, and how far trials agree about the rest.

    ``share`` is the explained share of the variance over layers, 0 to 1; ``rest`` the mean correlation of the residuals
    between trials, ``rest_low`` its lower bound.
    """

    share: float
    rest: float
    rest_low: float

    @property
    def says_more(self) -> bool:
        """True if the trials agree about a part that is not explained."""
        low = self.rest if np.isnan(self.rest_low) else self.rest_low
        return self.share < LEVEL and bool(low > 0)


def explained(values: np.ndarray, by: np.ndarray, counts: np.ndarray, *, steepest: float) -> Explained:
    """Return how much of each trial's redundancy is a multiple of another, by least squares.

    The multiple is limited to 0 (an opposite order explains nothing) and ``steepest`` (tiny differences do not explain
    large ones).
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

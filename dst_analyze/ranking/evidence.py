"""Each layer's redundancy and rank over all trials, and how far the trials agree about the order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb, expm1, isnan, nan

import numpy as np

from dst_analyze.ranking.input.trial_matrix import Measured
from dst_analyze.ranking.statistics.measures import (
    FLOOR,
    LEVEL,
    UNKNOWN,
    Explained,
    Interval,
    as_w,
    correlations,
    explained,
    floors,
    kendalls_w,
    mean_correlation,
    permutation_p,
    rank_intervals,
    ranks,
    redundancy,
    resampled,
)
from dst_analyze.ranking.statistics.pairs import CLEAR, CONTRADICTED, Guesses, contradicted, guesses
from dst_analyze.run.record import UNPRUNED

_SIDE = 1e-9  # a layer closer than this to the typical layer is on neither side of it

UNIFORM = 1 - UNPRUNED
"""Layers whose kept shares are within this of each other are not worth ranking."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of the used trials about the order of the layers that were measured in all of them."""

    layers: int
    alphas: int
    seeds: int
    trials: int
    w: float = nan
    interval: Interval = UNKNOWN
    p_value: float = nan
    correlation: float = nan
    """Mean of Spearman's correlation over all pairs of trials; ``between_alphas`` over pairs with the same seed,
    ``between_seeds`` over pairs with different seeds."""
    correlation_low: float = nan
    between_alphas: float = nan
    between_seeds: float = nan
    contradicted: float = nan
    """Of the pairs of layers that two trials both separate clearly, the share that they order differently; NaN if no
    two trials separate the same pair, or if the trials agree better than chance."""
    spread: float = 0.0
    """Difference between the highest and the lowest redundancy."""
    scale: float = 1.0
    """Mean depth of pruning (mean log ratio) over all trials, relative to the strongest alpha: differences between
    layers grow with depth, so borders for a mean over alphas are scaled by it."""
    null: Explained | None = None
    control: Explained | None = None
    guesses: Guesses | None = None

    @property
    def uniform(self) -> bool:
        """True if there is nothing to order: layers were compared, and all keep about the same."""
        tied = self.trials > 1 and isnan(self.w)
        return self.trials > 0 and self.layers > 1 and (tied or expm1(self.spread) < UNIFORM)

    @property
    def disagree(self) -> bool:
        """True if trials that separate the same layers clearly order many of them differently."""
        return self.contradicted >= CONTRADICTED

    @property
    def similar(self) -> bool:
        """True if no layer stands out, and the trials do not disagree clearly."""
        return self.uniform or (self.layers > 1 and self.spread < CLEAR * self.scale and not self.disagree)

    @property
    def distinct_draws(self) -> int:
        """Number of different bootstrap draws of alphas and seeds: intervals cannot be finer."""
        return comb(2 * self.alphas - 1, self.alphas) * comb(2 * self.seeds - 1, self.seeds) if self.trials else 0


@dataclass(frozen=True)
class Evidence:
    """Figures per layer over the used trials; NaN for layers that were not measured in all of them."""

    measured: np.ndarray  # bool
    redundancy: np.ndarray
    rank: np.ndarray
    rank_low: np.ndarray
    rank_high: np.ndarray
    sparser: np.ndarray
    """Share of trials in which the layer is sparser than the typical layer."""
    consistency: np.ndarray
    """Share of alphas (means over seeds) and seeds (means over alphas) at which a layer is on its overall side."""
    lowest: np.ndarray
    highest: np.ndarray
    """Lowest and highest redundancy over alphas (means over seeds) and seeds (means over alphas)."""
    kept: np.ndarray
    null: np.ndarray
    control: np.ndarray
    resets: np.ndarray
    agreement: Agreement


def compute_evidence(made: Measured, draws: int, rng: np.random.Generator) -> Evidence:
    """Compute redundancy, ranks and agreement; layers without a ratio in some used trial are not ranked."""
    used = made.rows()
    seen = ~np.isnan(made.ratios)
    main = ~made.trials["control"].to_numpy(bool)
    whole = seen[used].all(axis=0) if used.any() else seen[main].any(axis=0)
    part = made.take(whole)
    values = redundancy(part.ratios[used], part.params)
    agreement, figures = _compared(part, values, used, draws, rng)
    figures |= dict.fromkeys(("sparser", "consistency", "lowest", "highest", "kept"))
    if used.any():
        alphas, seeds = (part.trials[name][used].to_numpy() for name in ("alpha", "seed"))
        figures["sparser"] = (values > _SIDE).mean(axis=0)
        figures["consistency"] = consistency(values, alphas, seeds)
        over = margins(values, alphas, seeds)
        figures["lowest"], figures["highest"] = over.min(axis=0), over.max(axis=0)
        figures["kept"] = part.ratios[used].mean(axis=0)

    def spread_out(found: np.ndarray | None) -> np.ndarray:
        full = np.full(len(made.layers), nan)
        if found is not None:
            full[whole] = found
        return full

    columns = {name: spread_out(found) for name, found in figures.items()}
    resets = made.resets[main].sum(axis=0)
    return Evidence(measured=whole, resets=resets, agreement=agreement, **columns)


def margins(values: np.ndarray, alphas: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Return a row for each alpha (mean over seeds) and each seed (mean over alphas).

    A single alpha or a single seed adds no row; a single trial gives one row.
    """
    rows = [
        values[labels == label].mean(axis=0)
        for labels in (alphas, seeds)
        for label in np.unique(labels)
        if len(np.unique(labels)) > 1
    ]
    return np.stack(rows or [values.mean(axis=0)])


def consistency(values: np.ndarray, alphas: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Return the share of alphas and seeds at which a layer is on its overall side; 0 if it has no side."""
    overall = values.mean(axis=0)
    side = np.sign(overall) * (np.abs(overall) > _SIDE)
    same: np.ndarray = (margins(values, alphas, seeds) * side > _SIDE**2).mean(axis=0)
    return same


def _compared(
    part: Measured, values: np.ndarray, used: np.ndarray, draws: int, rng: np.random.Generator
) -> tuple[Agreement, dict[str, np.ndarray | None]]:
    figures: dict[str, np.ndarray | None] = dict.fromkeys(
        ("redundancy", "rank", "rank_low", "rank_high", "null", "control")
    )
    alphas, seeds = (part.trials[name][used].to_numpy() for name in ("alpha", "seed"))
    count = values.shape[1]
    agreement = Agreement(count, len(set(alphas)), len(set(seeds)), len(values))
    if not len(values) or not count:
        return agreement, figures
    figures["redundancy"] = overall = values.mean(axis=0)
    figures["rank"] = ranks(overall)
    ranked = ranks(values)
    null, control = _null(part, used), _control(part, alphas)
    figures["null"] = None if null is None else null.mean(axis=0)
    if control is not None:
        figures["control"] = redundancy(part.ratios[part.rows(control=True)], part.params).mean(axis=0)
    agreement = replace(
        agreement,
        spread=float(np.ptp(overall)),
        scale=_scale(part, used, alphas),
        guesses=_guesses(part, overall, figures["null"]),
    )
    if len(values) < 2 or count < 2:
        return agreement, figures
    counts = resampled(alphas, seeds, draws, rng)
    figures["rank_low"], figures["rank_high"] = rank_intervals(values, counts)
    correlation = float(mean_correlation(ranked)[0])
    drawn = mean_correlation(ranked, counts) if len(values) > 2 else np.full(1, nan)  # two trials: one comparison
    p_value = permutation_p(ranked, rng)
    table, alike = correlations(ranked), seeds[:, None] == seeds[None, :]
    np.fill_diagonal(table, nan)
    agreement = replace(
        agreement,
        w=kendalls_w(ranked),
        interval=Interval.of(as_w(drawn, len(values))),
        p_value=p_value,
        correlation=correlation,
        correlation_low=Interval.of(drawn).low,
        between_alphas=_mean(table[alike]),
        between_seeds=_mean(table[~alike]),
        contradicted=contradicted(values) if p_value > 1 - LEVEL else nan,
        null=None if null is None else explained(values, null, counts, steepest=1),
        control=None if control is None else explained(values, control, counts, steepest=2),
    )
    return agreement, figures


def _scale(part: Measured, used: np.ndarray, alphas: np.ndarray) -> float:
    kept = np.maximum(part.ratios[used], floors(part.params, len(part.layers)))
    depth = -np.log(kept).mean(axis=1)
    deepest = max(float(depth[alphas == alpha].mean()) for alpha in np.unique(alphas))
    return float(depth.mean()) / deepest if deepest > 0 else 1.0


def _guesses(part: Measured, overall: np.ndarray, null: np.ndarray | None) -> Guesses | None:
    """Return how far orders that need no training agree; layers are in network order."""
    return guesses(overall, null, part.params) if len(overall) > 1 else None


def _null(part: Measured, used: np.ndarray) -> np.ndarray | None:
    """Return the redundancy of each trial's null; None if a trial has none."""
    null = part.null[used]
    return None if np.isnan(null).any() else redundancy(null, part.params, floor=FLOOR)


def _control(part: Measured, alphas: np.ndarray) -> np.ndarray | None:
    """Return the control trials' redundancy at each trial's alpha, or over all alphas if there is none."""
    rows = part.rows(control=True)
    if not rows.any() or np.isnan(part.ratios[rows]).any():
        return None
    values = redundancy(part.ratios[rows], part.params)
    at = part.trials["alpha"][rows].to_numpy()
    return np.stack(
        [values[at == alpha].mean(axis=0) if (at == alpha).any() else values.mean(axis=0) for alpha in alphas]
    )


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else nan

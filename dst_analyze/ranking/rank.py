"""Rank layers by redundancy from measured ratios."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from dst_analyze.ranking.evidence import Evidence, compute_evidence
from dst_analyze.ranking.formats.serialize import typed
from dst_analyze.ranking.input.trial_matrix import Measured, measured
from dst_analyze.ranking.labels import labels
from dst_analyze.ranking.notes import conclusions
from dst_analyze.ranking.result import ORDERS, Ranking
from dst_analyze.ranking.spare import Costs, costs_of, gone_at, spare_note, spare_of
from dst_analyze.ranking.statistics.measures import correlations, ranks, redundancy
from dst_analyze.ranking.verdict import Verdict, caveats_of, judge
from dst_analyze.run.record import SweepRecord

DRAWS = 1000


def rank_layers(
    source: SweepRecord | pd.DataFrame,
    *,
    groups: Mapping[str, str] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Ranking:
    """Rank layers by redundancy, with bootstrap intervals.

    Args:
        source: A sweep's record, or a frame with the columns layer, alpha and remaining (a share from 0 to 1), and
            optionally seed, params, macs, group, null, control and resets. With a column step, the median over the last
            quarter of each trial is ranked.
        groups: Maps layers to the name of the group that they shrink with.
        draws: Bootstrap draws for the intervals.
        seed: Seed of the bootstrap; the same seed gives the same numbers.

    Returns:
        The ranking: a verdict, a table with a row per layer, and notes on what can be concluded.

    Raises:
        DataError: The frame lacks a column or holds an invalid value, or a group names an unknown layer.

    Example:
        >>> import pandas as pd
        >>> from dst_analyze import rank_layers
        >>> frame = pd.DataFrame(
        ...     {
        ...         "layer": ["conv1", "conv2", "fc"] * 3,
        ...         "alpha": [1e-6] * 3 + [1e-5] * 3 + [1e-4] * 3,
        ...         "remaining": [0.9, 0.8, 0.3, 0.7, 0.6, 0.1, 0.5, 0.4, 0.05],
        ...     }
        ... )
        >>> ranking = rank_layers(frame)
        >>> ranking.table["layer"].tolist()
        ['fc', 'conv2', 'conv1']
    """
    made = measured(source, groups)
    record = source if isinstance(source, SweepRecord) else None
    costs = None if record is None else costs_of(record)
    evidence = compute_evidence(made, draws, np.random.default_rng(seed))
    verdict, why = judge(evidence.agreement)
    caveats = tuple(caveats_of(evidence.agreement, verdict))
    by_alpha, between = _by_alpha(made, evidence, costs)
    return Ranking(
        verdict=verdict,
        why=why,
        caveats=caveats,
        notes=(*conclusions(made, evidence, verdict, why, caveats), *spare_note(costs, record)),
        statistics=evidence.agreement,
        table=_table(made, evidence, verdict, why, costs),
        by_alpha=by_alpha,
        alpha_correlation=between,
        trials=typed(made.trials[["control", "alpha", "seed", "remaining", "status", "reason"]]),
        groups=_groups(made, draws, seed, costs),
        record=record,
    )


def _groups(made: Measured, draws: int, seed: int, costs: Costs | None) -> pd.DataFrame | None:
    if not made.layers["group"].any():
        return None
    joined = made.grouped()
    evidence = compute_evidence(joined, draws, np.random.default_rng(seed))
    table = _table(joined, evidence, *judge(evidence.agreement), costs)
    sizes = joined.layers.set_index("layer")["layers"]
    table["group"] = table["layer"]
    table["layers"] = [int(sizes[name]) for name in table["layer"]]
    return typed(table.drop(columns="layer"))


def _table(made: Measured, e: Evidence, verdict: Verdict, why: str, costs: Costs | None) -> pd.DataFrame:
    spare = spare_of(made, costs)
    named = labels(made, e, verdict, why)
    table = pd.DataFrame(
        {
            "layer": made.layers["layer"].astype(object),
            "position": np.arange(len(made.layers)),
            "label": [label for label, _ in named],
            "rank": e.rank,
            "rank_low": e.rank_low,
            "rank_high": e.rank_high,
            "redundancy": e.redundancy,
            "consistency": e.consistency,
            "sparser": e.sparser,
            "null_redundancy": e.null,
            "beyond_null": e.redundancy - e.null,
            "control_redundancy": e.control,
            "beyond_control": e.redundancy - e.control,
            "remaining": e.kept,
            "spare": spare["spare"],
            "spare_alpha": spare["spare_alpha"],
            "params": made.layers["params"].astype(float),
            "macs": made.layers["macs"].astype(float),
            "params_given_up": made.layers["params"].astype(float) * (1 - e.kept),
            "macs_given_up": made.layers["macs"].astype(float) * (1 - e.kept),
            "resets": e.resets.astype(int),
            "group": made.layers["group"].astype(object),
            "reason": [reason for _, reason in named],
            "spare_words": spare["spare_words"].astype(object),
        }
    )
    return typed(ORDERS["redundancy"](table).reset_index(drop=True))


def _by_alpha(made: Measured, evidence: Evidence, costs: Costs | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a table of each layer at each alpha, over seeds, and the correlations between alphas."""
    names, whole = made.layers["layer"].to_numpy(object), evidence.measured
    main = ~made.trials["control"].to_numpy(bool)
    alphas = np.unique(made.trials["alpha"].to_numpy(float)[main])
    parts, orders, gone = [], [], gone_at(made, alphas.tolist())
    losses = {cost.alpha: cost.loss for cost in costs.alphas} if costs is not None else {}
    for alpha, share in zip(alphas, gone, strict=True):
        rows = main & (made.trials["alpha"] == alpha).to_numpy(bool) & ~np.isnan(made.read).all(axis=1)
        ratios, read = made.ratios[rows], made.read[rows]
        order = np.full(len(names), np.nan)
        if len(ratios) and not np.isnan(ratios[:, whole]).any() and whole.any():
            params = None if made.params is None else made.params[whole]
            order[whole] = ranks(redundancy(ratios[:, whole], params).mean(axis=0))
        orders.append(order[whole])
        parts.append(
            pd.DataFrame(
                {
                    "layer": names,
                    "alpha": alpha,
                    **dict(zip(("remaining", "lowest", "highest"), _over_seeds(read), strict=True)),
                    "null": _over_seeds(made.null[rows])[0],
                    "rank": order,
                    "gone": share,
                    "loss": losses.get(float(alpha), np.nan),
                    "seeds": (~np.isnan(ratios)).sum(axis=0),
                }
            )
        )
    if not parts:
        columns = ("layer", "alpha", "remaining", "lowest", "highest", "null", "rank", "gone", "loss", "seeds")
        return typed(pd.DataFrame(columns=list(columns))), pd.DataFrame(dtype=float)
    table = correlations(np.stack(orders)) if whole.any() else np.full((len(alphas), len(alphas)), np.nan)
    return typed(pd.concat(parts, ignore_index=True)), pd.DataFrame(table, index=alphas, columns=alphas)


def _over_seeds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the median, smallest and largest of each column without its gaps; NaN for a column of gaps."""
    ordered = np.vstack([np.sort(values, axis=0), np.full(values.shape[1], np.nan)])  # gaps are sorted to the end
    count, columns = (~np.isnan(values)).sum(axis=0), np.arange(values.shape[1])
    last = np.maximum(count - 1, 0)
    median = (ordered[last // 2, columns] + ordered[count // 2 * (count > 0), columns]) / 2
    return median, ordered[0], ordered[last, columns]

"""The numbers in words: one verdict for the sweep, a label for each layer, and what can and cannot be concluded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import expm1, isnan

import numpy as np

from dst_analyze.ranking.evidence import Agreement, Evidence
from dst_analyze.ranking.measured import USED, Measured
from dst_analyze.ranking.statistics import COLLAPSED, LEVEL, kendalls_tau
from dst_analyze.sweep.record import UNPRUNED, alpha_label
from dst_analyze.text import elide

CONSISTENT, WEAK, NONE = "consistent", "weakly consistent", "no ranking"
REDUNDANT, NEEDED, UNCLEAR, NOT_MEASURED = "redundant", "needed", "unclear", "not measured"
LABELS = (REDUNDANT, UNCLEAR, NEEDED, NOT_MEASURED)
NO_MORE = {"null": "says no more than its null", "control": "says no more than its control on shuffled labels"}

CHANCE = 1 - LEVEL
SAME_ORDER = 0.5
"""Spearman's correlation from which on two trials are said to agree: two pairs of layers in three come in the same
order (Kendall's tau is about a third there)."""
SEED_NOISE = 0.3
"""Twice the standard deviation of a layer's redundancy between seeds, at most, in the networks of docs/ranking.md: what
few seeds cannot tell from nothing. With n seeds it is this over the square root of n."""
UNIFORM = 1 - UNPRUNED
"""Layers that keep within this of one another do not differ enough to be worth ranking."""
_WITHOUT_TRAINING = 0.7  # Kendall's tau: 17 of 20 pairs of layers in the same order
_COARSE = 100  # different draws, below which an interval of 95 % cannot be told to a percent


def judge(agreement: Agreement) -> tuple[str, str]:
    """Consistent, weakly consistent or no ranking, and why."""
    a = agreement
    if not a.trials:
        return NONE, "there is no trial to rank by"
    if a.layers < 2:
        return NONE, "with fewer than two layers there is nothing to compare"
    if isnan(a.w) and a.trials > 1:
        return NONE, "all layers kept the same share in every trial: the pattern is uniform"
    if expm1(a.spread) < UNIFORM:
        text = f"no layer keeps more than {UNIFORM:.0%} less than another, on average: the pattern is uniform"
        return NONE, text
    if a.trials < 2:
        return NONE, "one trial shows an order, but not whether it would come again"
    said = f"Kendall's W {a.w:.2f}{_interval(a)}, p {_p(a.p_value)}, {a.layers} layers in {a.trials} trials"
    if a.p_value > CHANCE:
        why = f"the trials agree no better than random orders might ({said})"
        if a.perfect_by_chance > CHANCE:
            why += f"; so few layers and trials agree perfectly in {a.perfect_by_chance:.0%} of cases by chance"
        return NONE, why
    if isnan(a.correlation_low):
        return WEAK, f"two trials agree, which no third confirms ({said})"
    if a.correlation_low < SAME_ORDER:
        return WEAK, f"the trials agree better than chance, but not closely enough to rely on each place ({said})"
    return CONSISTENT, f"the trials agree about the order of the layers ({said})"


def qualified(word: str, agreement: Agreement) -> str:
    """The verdict, with what takes its edge off."""
    if word == NONE:
        return word
    found = {"null": agreement.null, "control": agreement.control}
    more = [NO_MORE[name] for name, by in found.items() if by is not None and not by.says_more]
    return f"{word}, but {' and '.join(more)}" if more else word


def labels(made: Measured, evidence: Evidence, verdict: str, why: str) -> list[tuple[str, str]]:
    """Each layer's label and the reason for it.

    A label asks for three things: that the layer is on one side of the model's average at every alpha and seed, further
    from it than seeds differ by themselves, and that its rank stays on that side of the middle in every draw.
    """
    return [_label(made, evidence, at, verdict, why) for at in range(len(made.layers))]


def _label(made: Measured, e: Evidence, at: int, verdict: str, why: str) -> tuple[str, str]:
    if not e.measured[at]:
        return NOT_MEASURED, _gap(made, at)
    if verdict.startswith(NONE):
        return UNCLEAR, f"no ranking: {why}"
    for text in NO_MORE.values():
        if text in verdict:
            return UNCLEAR, f"the ranking {text}"
    value, low, high = e.redundancy[at], e.rank_low[at], e.rank_high[at]
    side, label = ("sparser", REDUNDANT) if value > 0 else ("denser", NEEDED)
    what = f"{_percentage(value)} {side} than the model"
    if e.consistency[at] < LEVEL:
        return UNCLEAR, f"{what} on average, but not at every alpha and seed"
    margin = SEED_NOISE / math.sqrt(e.agreement.seeds)
    if abs(value) < margin:
        seeds = _many(e.agreement.seeds, "seed")
        return UNCLEAR, f"{what}, and chance could make it {_percentage(margin)} with {seeds}"
    middle = (e.agreement.layers + 1) / 2
    places = f"rank {_place(low)} to {_place(high)} of {e.agreement.layers}" if low < high else f"rank {_place(low)}"
    if not (high < middle if value > 0 else low > middle):
        return UNCLEAR, f"{what}, but its place is not sure to be on that side of the middle: {places}"
    reset = f"; it collapsed and was reset {_many(int(e.resets[at]), 'time')}" if e.resets[at] else ""
    return label, f"{what} at every alpha{_and_seed(e)}, {places}{reset}"


def conclusions(made: Measured, evidence: Evidence, word: str, why: str) -> Iterator[str]:
    """What can and cannot be concluded, most important first."""
    a = evidence.agreement
    yield f"{word[:1].upper()}{word[1:]}: {why}."
    yield from _left_out(made)
    if word != NONE:
        yield from _beyond(a)
        yield from _by_size(made, evidence)
        if a.seeds == 1:
            yield (
                "One seed: the alphas agree for one initialisation and one order of the data; whether another would "
                "give the same ranking is not known. Three seeds (--seeds 3) tell."
            )
        elif a.alphas == 1:
            yield "One alpha: the seeds agree at one strength of pruning; whether others give the same is not known."
        elif a.between_seeds < SAME_ORDER <= a.between_alphas:
            yield (
                f"Alphas of one seed agree (mean correlation {a.between_alphas:.2f}), seeds do not "
                f"({a.between_seeds:.2f}): much of the order is the luck of the initialisation."
            )
    if a.trials > 1 and a.distinct_draws < _COARSE and word != NONE:
        yield (
            f"The intervals are coarse: {_many(a.alphas, 'alpha')} and {_many(a.seeds, 'seed')} can be drawn in "
            f"{a.distinct_draws} ways only."
        )
    reset = np.flatnonzero(evidence.resets > 0)
    if len(reset):
        names = ", ".join(elide(name, 40) for name in made.layers["layer"].iloc[reset[:3]])
        more = f" and {len(reset) - 3} more" if len(reset) > 3 else ""
        yield (
            f"{_many(len(reset), 'layer')} collapsed to {COLLAPSED:.0%} and had thresholds reset ({names}{more}): they "
            "count as collapsed in those trials, whatever was read of them later."
        )
    lost = int((~evidence.measured).sum())
    if lost:
        yield f"{_many(lost, 'layer')} of {len(made.layers)} could not be measured, and stand outside the ranking."


def _beyond(a: Agreement) -> Iterator[str]:
    if a.null is None:
        yield "No null was recorded: how much of the order the initial weights alone would give is not known."
    elif a.null.says_more:
        yield f"The initial weights alone explain {a.null.share:.0%} of the order; the rest holds in trial after trial."
    else:
        yield (
            f"The initial weights alone explain {a.null.share:.0%} of the order, and nothing beyond it holds in every "
            "trial: it may be the initialisation talking, not the data."
        )
    if a.control is not None:
        beyond = "the rest holds in trial after trial" if a.control.says_more else "nothing beyond it holds"
        yield f"Control trials on shuffled labels explain {a.control.share:.0%} of the order; {beyond}."


def _by_size(made: Measured, evidence: Evidence) -> Iterator[str]:
    if made.params is None:
        return
    tau = kendalls_tau(evidence.redundancy[evidence.measured], made.params[evidence.measured])
    if not isnan(tau):
        same = ": most of it could be told without training" if tau >= _WITHOUT_TRAINING else ""
        yield f"Sorted by their number of weights, largest first, the layers have this order to tau {tau:.2f}{same}."


_WHAT = {
    "unpruned": f"pruned nothing worth reading (more than {UNPRUNED:.0%} remained): train longer or raise alpha",
    "collapsed": "pruned everything away: lower alpha",
    "diverged": "diverged",
    "failed": "failed",
}


def _left_out(made: Measured) -> Iterator[str]:
    trials = made.trials
    for status in dict.fromkeys(trials["status"]):
        for control in (False, True) if status != USED else ():
            rows = trials[(trials["status"] == status) & (trials["control"] == control)]
            if len(rows):
                alphas = ", ".join(alpha_label(float(alpha)) for alpha in dict.fromkeys(rows["alpha"]))
                kind = "control trial" if control else "trial"
                yield f"Left out: {_many(len(rows), kind)} (alpha {alphas}) {_WHAT.get(status, status)}."


def _gap(made: Measured, at: int) -> str:
    """Why a layer has no place."""
    used = made.rows()
    missing = np.flatnonzero(used & np.isnan(made.ratios[:, at]))
    if not len(missing):
        return "no trial ended well"
    first = made.trials.iloc[int(missing[0])]
    more = f" and in {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"there is no ratio at alpha {alpha_label(float(first['alpha']))}, seed {first['seed']}{more}"


def _interval(a: Agreement) -> str:
    return "" if isnan(a.interval.low) else f", {LEVEL:.0%} interval {a.interval.low:.2f} to {a.interval.high:.2f}"


def _p(value: float) -> str:
    return f"{value:.2g}"


def _place(rank: float) -> str:
    return f"{rank:.0f}" if rank == round(rank) else f"{rank:.1f}"


def _percentage(redundancy: float) -> str:
    """How much less of its weights a layer keeps than the model, or how much more."""
    return f"{abs(math.expm1(-redundancy)):.0%}"


def _and_seed(e: Evidence) -> str:
    return " and seed" if e.agreement.seeds > 1 else ""


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

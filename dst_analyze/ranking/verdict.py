"""The verdict on a ranking, and the caveats that limit it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from math import isnan

from dst_analyze.ranking.evidence import UNIFORM, Agreement
from dst_analyze.ranking.statistics.measures import LEVEL

REDUNDANT, AVERAGE, NEEDED, UNCLEAR, NOT_MEASURED = "redundant", "average", "needed", "unclear", "not measured"
LABELS = (REDUNDANT, UNCLEAR, AVERAGE, NEEDED, NOT_MEASURED)
"""The labels of layers, in the order in which tables sort them."""

CHANCE = 1 - LEVEL
SAME_ORDER = 0.5
"""Spearman's correlation from which on two trials agree: about two pairs of layers in three have the same order
(Kendall's tau is about a third)."""
_COARSE = 100  # different draws, below which a 95 % interval is not precise to a percent


class Verdict(StrEnum):
    """How far a sweep's trials confirm one order of the layers."""

    CONSISTENT = "consistent"
    WEAK = "weakly consistent"
    UNCONFIRMED = "unconfirmed"  # one trial shows an order, and no other confirms it
    NONE = "no ranking"


class Caveat(StrEnum):
    """A limit of the verdict. A caveat changes no label and no verdict."""

    NULL = "no more than the initial weights"
    CONTROL = "no more than shuffled labels"
    FEW_LAYERS = "few layers and trials"
    TWO_TRIALS = "two trials"
    ONE_SEED = "one seed"
    ONE_ALPHA = "one alpha"
    SEEDS_DIFFER = "seeds differ"
    COARSE = "coarse intervals"


def judge(agreement: Agreement) -> tuple[Verdict, str]:
    """Return the verdict and the reason for it, a clause without a full stop."""
    a = agreement
    if not a.trials:
        return Verdict.NONE, "there is no trial to rank by"
    if a.layers < 2:
        return Verdict.NONE, "there are fewer than two layers to compare"
    if a.uniform:
        return Verdict.NONE, f"on average no layer keeps over {UNIFORM:.0%} less than another: the pattern is uniform"
    if a.trials < 2:
        return Verdict.UNCONFIRMED, "one trial shows an order; a second one, at another alpha, would confirm it"
    said = f"Kendall's W {a.w:.2f}{_interval(a)}, p {a.p_value:.2g}, {a.layers} layers in {a.trials} trials"
    if a.p_value > CHANCE and not _agree(a):
        if a.disagree:
            return Verdict.NONE, f"the trials disagree about the order of the layers ({said})"
        if a.similar:
            return Verdict.NONE, f"no layer stands out, and trials differ about small differences ({said})"
        return (
            Verdict.UNCONFIRMED,
            f"few trials tell layers apart clearly; the others neither confirm nor deny ({said})",
        )
    if few_layers(a):
        return Verdict.WEAK, f"the trials agree, but so few would agree by chance in {a.p_value:.0%} of cases ({said})"
    if isnan(a.correlation_low):
        return Verdict.WEAK, f"two trials agree, and there is no third to confirm it ({said})"
    if a.correlation_low < SAME_ORDER:
        return Verdict.WEAK, f"the trials agree better than chance, but not about every layer's place ({said})"
    return Verdict.CONSISTENT, f"the trials agree about the order of the layers ({said})"


def verdict_note(verdict: Verdict, why: str) -> str:
    """Return the first note of a ranking: its verdict and the reason for it."""
    return f"{verdict.capitalize()}: {why}."


def why_of_note(verdict: Verdict, note: str) -> str:
    """Return the reason in the first note, the only place where JSON and CSV keep it."""
    return note.removeprefix(f"{verdict.capitalize()}: ").removesuffix(".")


def caveats_of(agreement: Agreement, verdict: Verdict) -> Iterator[Caveat]:
    """Yield the caveats of a verdict, most important first; none if there is no ranking."""
    a = agreement
    if verdict is Verdict.NONE:
        return
    if a.null is not None and not a.null.says_more:
        yield Caveat.NULL
    if a.control is not None and not a.control.says_more:
        yield Caveat.CONTROL
    if a.trials < 2:
        return
    if few_layers(a):
        yield Caveat.FEW_LAYERS
    if a.trials == 2:
        yield Caveat.TWO_TRIALS
    if a.seeds == 1:
        yield Caveat.ONE_SEED
    elif a.alphas == 1:
        yield Caveat.ONE_ALPHA
    elif a.between_seeds < SAME_ORDER <= a.between_alphas:
        yield Caveat.SEEDS_DIFFER
    if a.distinct_draws < _COARSE:
        yield Caveat.COARSE


def few_layers(a: Agreement) -> bool:
    """Return True if the trials agree, but chance explains this in over 5 % of cases."""
    return a.trials > 1 and a.p_value > CHANCE and _agree(a)


def _agree(a: Agreement) -> bool:
    return a.correlation >= SAME_ORDER


def _interval(a: Agreement) -> str:
    return "" if isnan(a.interval.low) else f", {LEVEL:.0%} interval {a.interval.low:.2f} to {a.interval.high:.2f}"

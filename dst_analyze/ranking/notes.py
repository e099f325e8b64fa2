"""Sentences on what can and cannot be concluded from a ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dst_analyze.ranking.evidence import Agreement, Evidence
from dst_analyze.ranking.input.trial_matrix import USED, Measured
from dst_analyze.ranking.statistics.measures import COLLAPSED
from dst_analyze.ranking.verdict import Caveat, Verdict, verdict_note
from dst_analyze.run.record import UNPRUNED, alpha_label
from dst_analyze.text import shorten_middle

_WITHOUT_TRAINING = 0.85  # of clear pairs: above this, an order that needs no training is nearly as good
_STATUS_WORDS = {
    "unpruned": f"pruned nothing worth reading (more than {UNPRUNED:.0%} remained): train longer or raise alpha",
    "collapsed": "pruned everything away: lower alpha",
    "diverged": "diverged",
    "failed": "failed",
}


def conclusions(
    made: Measured, evidence: Evidence, verdict: Verdict, why: str, caveats: Sequence[Caveat]
) -> Iterator[str]:
    """Yield what can and cannot be concluded, most important first; the first sentence is the verdict."""
    a = evidence.agreement
    yield verdict_note(verdict, why)
    yield from _left_out(made)
    if verdict is not Verdict.NONE:
        yield from _without_training(a)
        yield from _nulls(a, caveats)
    yield from (_caveat_sentence(a, caveat) for caveat in caveats if caveat in _SENTENCES)
    reset = np.flatnonzero(evidence.resets > 0)
    if len(reset):
        names = ", ".join(shorten_middle(name, 40) for name in made.layers["layer"].iloc[reset[:3]])
        more = f" and {len(reset) - 3} more" if len(reset) > 3 else ""
        yield (
            f"{_counted(len(reset), 'layer')} collapsed to {COLLAPSED:.0%} and had thresholds reset ({names}{more}): "
            "they count as collapsed in those trials, whatever ratio they had later."
        )
    lost = int((~evidence.measured).sum())
    if lost:
        yield f"{_counted(lost, 'layer')} of {len(made.layers)} could not be measured: the ranking leaves them out."


def _without_training(a: Agreement) -> Iterator[str]:
    """Yield how many of the clear pairs an order that needs no training gets right."""
    guesses = a.guesses
    if guesses is None or not guesses.pairs:
        return
    *others, last = (f"{share:.0%} by {name}" for name, share in guesses.known.items())
    shares = f"{', '.join(others)} and {last}" if others else last
    text = (
        f"Of {_counted(guesses.pairs, 'pair')} of layers that differ clearly, {shares} would be ordered the same way "
        f"without training; {guesses.beyond:.0%} only by the sweep."
    )
    best = max(guesses.known.values())
    yield f"{text} Most of the order is known without training." if best >= _WITHOUT_TRAINING else text


def _nulls(a: Agreement, caveats: Sequence[Caveat]) -> Iterator[str]:
    if a.trials < 2:
        return
    if a.null is None:
        yield "No null was recorded: it is not known how much of the order the initial weights alone explain."
    else:
        rest = (
            "nothing beyond it holds in every trial: it may come from the initialisation, not from the data"
            if Caveat.NULL in caveats
            else "the rest holds in trial after trial"
        )
        yield f"The initial weights alone explain {a.null.share:.0%} of the differences between layers; {rest}."
    if a.control is not None:
        beyond = "nothing beyond it holds" if Caveat.CONTROL in caveats else "the rest holds in trial after trial"
        yield f"Control trials on shuffled labels explain {a.control.share:.0%} of the differences; {beyond}."


_SENTENCES = {
    Caveat.FEW_LAYERS: "Few layers and trials: {layers} layers in {trials} trials agree as well by chance in "
    "{p_value:.0%} of cases. More alphas or seeds (--seeds 3) would show it.",
    Caveat.ONE_SEED: "One seed: the alphas agree for one initialisation and one order of the data; whether another "
    "would give the same ranking is not known. Three seeds (--seeds 3) would show it.",
    Caveat.ONE_ALPHA: "One alpha: the seeds agree at one strength of pruning; whether other alphas give the same "
    "ranking is not known.",
    Caveat.SEEDS_DIFFER: "Alphas of one seed agree (mean correlation {between_alphas:.2f}), seeds do not "
    "({between_seeds:.2f}): much of the order depends on the initialisation.",
    Caveat.COARSE: "The intervals are coarse: {counted_alphas} and {counted_seeds} have only {distinct_draws} "
    "different bootstrap draws.",
}


def _caveat_sentence(a: Agreement, caveat: Caveat) -> str:
    return _SENTENCES[caveat].format(
        layers=a.layers,
        trials=a.trials,
        p_value=a.p_value,
        between_alphas=a.between_alphas,
        between_seeds=a.between_seeds,
        counted_alphas=_counted(a.alphas, "alpha"),
        counted_seeds=_counted(a.seeds, "seed"),
        distinct_draws=a.distinct_draws,
    )


def _left_out(made: Measured) -> Iterator[str]:
    trials = made.trials
    for status in dict.fromkeys(trials["status"]):
        for control in (False, True) if status != USED else ():
            rows = trials[(trials["status"] == status) & (trials["control"] == control)]
            if len(rows):
                alphas = ", ".join(alpha_label(float(alpha)) for alpha in dict.fromkeys(rows["alpha"]))
                kind = "control trial" if control else "trial"
                yield f"Left out: {_counted(len(rows), kind)} (alpha {alphas}) {_STATUS_WORDS.get(status, status)}."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"

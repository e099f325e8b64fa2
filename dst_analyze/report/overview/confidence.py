"""How sure the order of the layers is: a level from 0 to 3, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from dst_analyze.ranking.length_evidence import pairs_at
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import Caveat, Verdict
from dst_analyze.run.caveats import Title, notes_of
from dst_analyze.run.record import SweepRecord

LEVELS = ("none", "low", "some", "high")
_OF_VERDICT = {Verdict.NONE: 0, Verdict.UNCONFIRMED: 1, Verdict.WEAK: 2, Verdict.CONSISTENT: 3}
_AT_MOST_LOW: dict[str, str] = {
    Title.BROKEN: "no pruned model still does the task",
    Title.NOTHING_PRUNED: "nothing was pruned",
    Title.NO_EFFECT: "what remains does not depend on alpha",
    Title.HARDLY_LEARNED: "the dense model has hardly learned",
    Title.STAND_IN: "the data are stand-ins for yours",
    Title.BEFORE: "the dense model was not ready for pruning",
}
_CAUSES = {
    Caveat.NULL: "the initial weights alone explain the order",
    Caveat.CONTROL: "shuffled labels give the same order",
    Caveat.FEW_LAYERS: "few layers and trials",
    Caveat.TWO_TRIALS: "two trials only",
    Caveat.ONE_SEED: "one seed only",
    Caveat.ONE_ALPHA: "one alpha only",
    Caveat.SEEDS_DIFFER: "the seeds differ",
}
_LOW = (Caveat.NULL, Caveat.CONTROL)


@dataclass(frozen=True)
class Confidence:
    """How sure the order of the layers is; ``level`` counts from 0 (none) to 3 (high)."""

    level: int
    line: str
    reasons: tuple[str, ...]

    @property
    def word(self) -> str:
        """The level in a word."""
        return LEVELS[self.level]


def confidence_of(record: SweepRecord, ranking: Ranking) -> Confidence:
    """Return how sure the ranking of a run is."""
    level = _OF_VERDICT[ranking.verdict]
    limits: list[str] = []
    if record.config.quick:
        level, limits = min(level, 1), ["no sweep was run"]
    titles = {note.title for note in notes_of(record)}
    for title, words in _AT_MOST_LOW.items():
        if title in titles:
            level, limits = min(level, 1), [*limits, words]
    for caveat in ranking.caveats:
        if caveat in _CAUSES:
            level, limits = min(level, 1 if caveat in _LOW else 2), [*limits, _CAUSES[caveat]]
    return Confidence(level, _line(ranking, limits), tuple(_reasons(record, ranking)))


def _line(ranking: Ranking, limits: list[str]) -> str:
    found = ranking.statistics
    if ranking.verdict is Verdict.NONE:
        said = "no layer stands out" if found.similar else "the trials show no order of the layers"
    elif ranking.verdict is Verdict.UNCONFIRMED:
        said = "one trial shows this order" if found.trials < 2 else "few trials tell the layers apart"
    else:
        alphas = f"{found.alphas} alpha{'s' if found.alphas > 1 else ''}"
        seeds = f" and {found.seeds} seeds" if found.seeds > 1 else ""
        agree = "agree about the order" if ranking.verdict is Verdict.CONSISTENT else "mostly agree about the order"
        said = f"{alphas}{seeds} {agree}"
    return f"{said}, but {' and '.join(limits[:2])}" if limits else said


def _reasons(record: SweepRecord, ranking: Ranking) -> list[str]:
    how, found = record.manifest, ranking.statistics.guesses
    said = [f"{ranking.why[:1].upper()}{ranking.why[1:]}.", *ranking.notes[1:]]
    if ranking.verdict is not Verdict.NONE and found is not None and not record.config.quick:
        said.append(pairs_at(found.pairs, how.steps, warm_up=how.warm_up > 0, unit=how.unit))
    return said

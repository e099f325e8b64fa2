"""The four numbers of the first screen: spare weights, saving, confidence and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dst_analyze.ranking.result import Ranking
from dst_analyze.report.overview.answer import Answer, Standing, sentence, size_words
from dst_analyze.report.overview.confidence import Confidence
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.text import duration


@dataclass(frozen=True)
class Tile:
    """A number with its name and what it means; ``level`` is a gauge from 0 to 3, a ``known`` name in the glossary."""

    name: str
    value: str
    text: str
    level: int | None = None
    known: bool = True


def tiles_of(
    record: SweepRecord, ranking: Ranking, plan: SlimPlan | None, answer: Answer, confidence: Confidence
) -> list[Tile]:
    """Return the tiles of a run, always the same four."""
    return [
        _spare(ranking, record.manifest.data.score),
        _saving(plan, answer),
        Tile("confidence", confidence.word.capitalize(), sentence(confidence.line), confidence.level),
        _cost(record),
    ]


def spare_share(ranking: Ranking) -> float:
    """Return the share of all ranked weights that can go at no measurable loss; NaN if it is not known."""
    known = ranking.table.dropna(subset=["spare", "params"])
    weights = known["params"].sum()
    return float((known["spare"] * known["params"]).sum() / weights) if weights else math.nan


def _spare(ranking: Ranking, score: str) -> Tile:
    share, alphas = spare_share(ranking), ranking.table["spare_alpha"].dropna()
    if math.isnan(share):
        return Tile("spare weights", "–", f"There is no {score} to compare with.")
    if alphas.empty:
        return Tile("spare weights", "0 %", f"Every strength of pruning that was tried made the {score} worse.")
    alpha = alpha_label(float(alphas.iloc[0])).replace("-", "\N{NON-BREAKING HYPHEN}")
    cost = "loss of accuracy" if score == "accuracy" else "rise of the loss"
    where = f"of the single weights go at no measurable {cost} (at alpha {alpha})."
    return Tile("spare weights", f"{100 * share:.0f} %", where)


def _saving(plan: SlimPlan | None, answer: Answer) -> Tile:
    if plan is None or answer.standing is Standing.TEST_RUN:
        return Tile("saving", "–", "No narrower network has been suggested yet.")
    if answer.standing is Standing.NO_EVIDENCE:
        return Tile("saving", "–", f"A network of {size_words(plan)} was written, but it rests on no evidence.")
    gone = 1 - plan.new_params / plan.params
    but = _BUT.get(answer.standing, "")
    why = f" {sentence(answer.size)}" if answer.size else ""
    return Tile("saving", f"{100 * gone:.0f} %", f"of the parameters{but}.{why}")


_BUT = {
    Standing.UNPROVEN: "; not proven yet",
    Standing.TRAINED: "; not proven yet",
    Standing.UNFINISHED: "; the proof did not finish",
    Standing.LOST: "; but another network of this size is better",
    Standing.DOUBTFUL: "; probably at a loss",
    Standing.COSTLY: "; at a loss",
}


def _cost(record: SweepRecord) -> Tile:
    count, steps = len(record.trials), record.manifest.steps
    trials = f"{count} training{'s' if count != 1 else ''} of {steps:,} steps on {record.manifest.device}"
    warm_up = f", after a warm-up of {record.manifest.warm_up:,}" if record.manifest.warm_up else ""
    return Tile("cost", duration(record.seconds), f"{trials}{warm_up}.")

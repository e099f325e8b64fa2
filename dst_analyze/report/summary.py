"""The report's summary: findings, savings, confidence and warnings, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from dst_analyze.ranking.length_evidence import pairs_at
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, REDUNDANT, UNCLEAR, Caveat, Verdict
from dst_analyze.run.caveats import Note, notes_of
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.result import DENSE, SLIM, Standing, Verification

_MOST = 5  # layers named at the top


@dataclass(frozen=True)
class Finding:
    """A layer that matters, and why."""

    layer: str
    label: str
    text: str


@dataclass(frozen=True)
class Summary:
    """The top of the report: headline, important layers, savings, confidence, warnings."""

    headline: str
    findings: list[Finding]
    saving: list[str]
    sure: list[str]
    warnings: list[Note]


def summary_of(
    record: SweepRecord,
    ranking: Ranking,
    plan: SlimPlan | None,
    proof: Verification | None,
    left_out: Sequence[str] = (),
) -> Summary:
    """Return the summary of a run; plan and proof may be missing, ``left_out`` is damaged."""
    return Summary(
        headline=_headline(ranking),
        findings=list(_findings(ranking, record.manifest.model.params)),
        saving=list(_saving(plan, proof)),
        sure=list(_confidence(record, ranking)),
        warnings=[
            *(Note("Left out", f"{why}.") for why in left_out),
            *notes_of(record),
            *_doubts(ranking),
            *_beaten(proof),
        ],
    )


def _confidence(record: SweepRecord, ranking: Ranking) -> Iterator[str]:
    yield _verdict_sentence(ranking)
    yield from ranking.notes[1:]
    if ranking.verdict is not Verdict.NONE and ranking.statistics.guesses is not None:
        how, pairs = record.manifest, ranking.statistics.guesses.pairs
        yield pairs_at(pairs, how.steps, warm_up=how.warm_up > 0, unit=how.unit)


def _verdict_sentence(ranking: Ranking) -> str:
    """Return the reason for the verdict as a sentence."""
    return f"{ranking.why[:1].upper()}{ranking.why[1:]}."


def _headline(ranking: Ranking) -> str:
    if ranking.verdict is Verdict.NONE:
        if ranking.statistics.similar:
            return "All layers keep about the same share: none is more redundant than another"
        return "This sweep does not show which layers are redundant"
    counts = ranking.table["label"].value_counts()
    redundant, needed, average, unclear = (int(counts.get(name, 0)) for name in (REDUNDANT, NEEDED, AVERAGE, UNCLEAR))
    total = len(ranking.table)
    if not redundant and not needed:
        rest = f"{average} keep about as much as each other" if average else f"{unclear} are unclear"
        return f"None of {total} layers is clearly redundant or needed; {rest}"
    be = ["is" if count < 2 else "are" for count in (redundant, needed)]
    return f"{redundant or 'None'} of {total} layers {be[0]} redundant, {needed or 'none'} {be[1]} needed"


def _findings(ranking: Ranking, model: int) -> Iterator[Finding]:
    """Yield redundant layers, largest gain first, then needed ones; if there are none, the first ranked."""
    if ranking.verdict is Verdict.NONE:
        return
    table = ranking.ordered("params")
    redundant = table[table["label"] == REDUNDANT].head(_MOST)
    needed = ranking.table[ranking.table["label"] == NEEDED].iloc[::-1].head(max(2, _MOST - len(redundant)))
    shown = pd.concat([redundant, needed])
    if shown.empty:
        shown = ranking.table[ranking.table["label"].isin((UNCLEAR, AVERAGE))].head(3)
    for row in shown.itertuples(index=False):
        size = "" if math.isnan(row.params) else f"{row.params:,.0f} weights, {row.params / model:.1%} of the model; "
        spare = f" {row.spare_words[:1].upper()}{row.spare_words[1:]}." if row.spare_words else ""
        yield Finding(row.layer, row.label, f"{size}{row.reason}.{spare}")


def _saving(plan: SlimPlan | None, proof: Verification | None) -> Iterator[str]:
    if plan is None:
        yield "No slimmer architecture has been suggested for this run yet: dst-analyze slim suggests one."
        return
    if not plan.is_advice:
        yield "A slim model was built as a test; without evidence its widths are no advice."
        return
    text = f"The slim architecture has {plan.new_params:,} of {plan.params:,} parameters"
    text += f" ({plan.new_params / plan.params:.1%})"
    if plan.macs and plan.new_macs is not None:
        text += f" and {plan.new_macs:,} of {plan.macs:,} MACs ({plan.new_macs / plan.macs:.1%})"
    yield f"{text}."
    if proof is not None:
        slim, dense = proof.entry(SLIM), proof.entry(DENSE)
        if slim.latency_ms is not None and dense.latency_ms is not None:
            share = slim.latency_ms / dense.latency_ms
            taken = f"takes {slim.latency_ms:.3g} ms instead of {dense.latency_ms:.3g} ms ({share:.0%})"
            yield f"Measured on one batch, a forward pass {taken}."
        yield from _proven(proof)
        return
    if plan.latency is not None:
        yield f"A forward pass takes {plan.latency:.0%} of the dense model's time, as measured."
    yield "It has not been trained yet: dst-analyze verify trains it beside the dense model."


def _proven(proof: Verification) -> Iterator[str]:
    """Yield the result of the proof in a sentence or two; section 6 has all numbers."""
    seeds = f"{len(proof.seeds)} seed{'s' if len(proof.seeds) != 1 else ''}"
    lead, low, high = proof.lead(DENSE)
    if math.isnan(lead):
        yield f"Trained from scratch with {seeds}: no seed has a finished training of both it and the dense model."
    else:
        scale = 100 if proof.score == "accuracy" else 1
        better = {"accuracy": "points above", "loss": "of loss better than", "score": "above"}[proof.score]
        worse = {"accuracy": "points below", "loss": "worse than", "score": "below"}[proof.score]
        apart = f"{scale * abs(lead):.2g} {worse if lead < 0 else better} the dense model"
        between = f" (95 % interval {scale * low:+.2g} to {scale * high:+.2g})" if math.isfinite(low) else ""
        yield f"Trained from scratch with {seeds}, it ends {apart}{between}."
    words_of: dict[Standing, str] = {
        "better": "better than",
        "level": "level with",
        "worse": "worse than",
        "open": "not shown to be better than",
    }
    against: dict[str, list[str]] = {}
    for entry in proof.rivals():
        against.setdefault(words_of[proof.standing(entry.name)], []).append(entry.name)
    if against:
        parts = [f"{word} {', '.join(names)}" for word, names in against.items()]
        yield f"Among models of its size it is {'; '.join(parts)}."


_UNSURE = {Verdict.NONE: "No ranking", Verdict.UNCONFIRMED: "Not confirmed"}
_CONTROL = "Trials on shuffled labels explain this order as well: it may not come from the data."


def _doubts(ranking: Ranking) -> Iterator[Note]:
    if ranking.verdict in _UNSURE:
        yield Note(_UNSURE[ranking.verdict], _verdict_sentence(ranking))
    if Caveat.CONTROL in ranking.caveats:
        yield Note("Perhaps not the data", _CONTROL)


def _beaten(proof: Verification | None) -> Iterator[Note]:
    """Yield a warning for each simple model of the same size that is better than the suggestion."""
    if proof is None:
        return
    for entry in proof.rivals("worse"):
        yield Note("The suggestion lost", f"A model of its size is better: {entry.about}. Do not follow it.")

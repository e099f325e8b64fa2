"""The report's summary: the answer, the layers that matter, savings, confidence and warnings, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dst_analyze.ranking.formats.serialize import rank_text
from dst_analyze.ranking.labels import kept_words
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import AVERAGE, NEEDED, REDUNDANT, UNCLEAR, Caveat, Verdict
from dst_analyze.report.overview.answer import Answer, Standing, answer_of, size_words
from dst_analyze.report.overview.confidence import Confidence, confidence_of
from dst_analyze.report.overview.tiles import Tile, tiles_of
from dst_analyze.run.caveats import Note, Title, notes_of
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.result import BESIDE, DENSE, SLIM, LeadStanding, Verification

_MOST, _FIRST, _FEWEST_NEEDED = 5, 3, 2  # layers named at the top
_REMARKS = {Title.UNTIL_STABLE, Title.RESETS, Title.HELD, Title.WEAK_ALPHA}  # good to know, but nothing went wrong


@dataclass(frozen=True)
class Finding:
    """A layer that matters, and why."""

    layer: str
    label: str
    rank: str
    text: str


@dataclass(frozen=True)
class Summary:
    """The first screen of the report; ``remarks`` are notes that need no action."""

    answer: Answer
    findings: list[Finding]
    too_wide: str
    saving: list[str]
    proven: list[str]
    confidence: Confidence
    tiles: list[Tile]
    warnings: list[Note]
    remarks: list[Note]

    @property
    def has_redundant(self) -> bool:
        """True if a layer is redundant."""
        return any(found.label == REDUNDANT for found in self.findings)

    @property
    def has_needed(self) -> bool:
        """True if a layer is needed."""
        return any(found.label == NEEDED for found in self.findings)

    @property
    def headline(self) -> str:
        """The answer on one line."""
        return self.answer.sentence

    @property
    def sure(self) -> list[str]:
        """What the confidence rests on, in sentences."""
        return list(self.confidence.reasons)


def summary_of(
    record: SweepRecord,
    ranking: Ranking,
    plan: SlimPlan | None,
    proof: Verification | None,
    left_out: Sequence[str] = (),
) -> Summary:
    """Return the summary of a run; plan and proof may be missing, ``left_out`` is damaged."""
    answer, confidence = answer_of(record, ranking, plan, proof), confidence_of(record, ranking)
    notes = notes_of(record)
    return Summary(
        answer=answer,
        findings=list(_findings(ranking, record.manifest.model.params)),
        too_wide="" if plan is None or answer.standing is Standing.NO_EVIDENCE else plan.proportions,
        saving=list(_saving(plan, proof, answer)),
        proven=[] if proof is None or plan is None else list(_proven(proof)),
        confidence=confidence,
        tiles=tiles_of(record, ranking, plan, answer, confidence),
        warnings=[
            *(Note("Left out", f"{why}.") for why in left_out),
            *(note for note in notes if note.title not in _REMARKS),
            *_doubts(ranking),
            *_beaten(proof),
        ],
        remarks=[note for note in notes if note.title in _REMARKS],
    )


def _verdict_sentence(ranking: Ranking) -> str:
    """Return the reason for the verdict as a sentence."""
    return f"{ranking.why[:1].upper()}{ranking.why[1:]}."


def _findings(ranking: Ranking, model: int) -> Iterator[Finding]:
    """Yield the most redundant layers and the most needed ones, in rank order; if there are none, the first ranked."""
    if ranking.verdict is Verdict.NONE:
        return
    table = ranking.ordered()
    redundant = table[table["label"] == REDUNDANT].head(_MOST)
    if redundant.empty:
        redundant = table[table["label"].isin((UNCLEAR, AVERAGE))].head(_FIRST)
    needed = table[table["label"] == NEEDED].tail(max(_FEWEST_NEEDED, _MOST - len(redundant)))
    shown = pd.concat([redundant, needed]).sort_values(["rank", "position"])
    for row in shown.itertuples(index=False):
        yield Finding(str(row.layer), str(row.label), rank_text(row.rank), "; ".join(_plain(row, model)))


def _plain(row: Any, model: int) -> Iterator[str]:
    """Yield what is known of a layer in plain words."""
    yield row.reason if row.label == UNCLEAR else f"keeps {kept_words(row.redundancy)} keeps"
    if row.spare_words:
        yield row.spare_words
    if not math.isnan(row.params):
        yield f"{row.params / model:.1%} of the model's parameters".replace("%", " %")


def _saving(plan: SlimPlan | None, proof: Verification | None, answer: Answer) -> Iterator[str]:
    if plan is None:
        yield "No slimmer architecture has been suggested for this run yet: dst-analyze slim suggests one."
        return
    if not plan.is_advice:
        yield "A slim model was built as a test; without evidence its widths are no advice."
        return
    if answer.standing is Standing.NO_EVIDENCE:
        yield f"A slim architecture was written ({size_words(plan)}), but its widths rest on no evidence."
        return
    text = f"The slim architecture has {plan.new_params:,} of {plan.params:,} parameters"
    text += f" ({plan.new_params / plan.params:.1%})"
    if plan.macs and plan.new_macs is not None:
        text += f" and {plan.new_macs:,} of {plan.macs:,} MACs ({plan.new_macs / plan.macs:.1%})"
    yield f"{text}."
    if plan.target is not None:
        yield plan.target.sentence
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
    """Yield the result of the proof in a sentence or two."""
    count = len(proof.entry(DENSE).scores)  # a comparison that is decided is not trained on
    seeds = f"{count} seed{'s' if count != 1 else ''}"
    lead, low, high = proof.lead(DENSE)
    if math.isnan(lead):
        yield f"Trained from scratch with {seeds}: no seed has a finished training of both it and the dense model."
    else:
        better = {"accuracy": "points above", "loss": "of loss better than", "score": "above"}[proof.score]
        worse = {"accuracy": "points below", "loss": "worse than", "score": "below"}[proof.score]
        apart = f"{_amount(abs(lead), proof.score)} {worse if lead < 0 else better} the dense model"
        bounds = [_signed_amount(bound, proof.score) for bound in (low, high)]
        between = f" (95 % interval {' to '.join(bounds)})" if math.isfinite(low) else ""
        yield f"Trained from scratch with {seeds}, it ends {apart}{between}."
    words_of: dict[LeadStanding, str] = {
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
    if proof.longer is not None:
        yield proof.length


def standings(proof: Verification) -> dict[str, str]:
    """Return, for each model of a proof, how the suggestion stands against it, in few words."""
    found = {SLIM: "–"}
    for entry in proof.entries:
        if entry.name == SLIM:
            continue
        if entry.name in BESIDE:
            found[entry.name] = "no rival"
            continue
        lead, low, high = proof.lead(entry.name)
        if math.isnan(lead):
            found[entry.name] = "not comparable"
            continue
        standing = proof.standing(entry.name)
        words = "not decided" if standing == "open" else standing
        bounds = [_signed_amount(bound, proof.score) for bound in (lead, low, high)]
        between = f", {bounds[1]} to {bounds[2]}" if math.isfinite(low) else ", one seed"
        found[entry.name] = f"{words} ({bounds[0]}{between})"
    return found


def _signed_amount(apart: float, kind: str) -> str:
    return f"{'−' if apart < 0 else '+'}{_amount(abs(apart), kind)}"


def _amount(apart: float, kind: str) -> str:
    """Return a difference of scores: of accuracies in points."""
    return f"{100 * apart:.1f}" if kind == "accuracy" else f"{apart:.2g}"


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

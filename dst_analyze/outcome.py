"""The end of a run in the terminal: its tables, and ten lines that say what came of it and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from dst_analyze.baselines.agreement import read_ways
from dst_analyze.errors import DstError
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import NEEDED, REDUNDANT, Verdict
from dst_analyze.slimming.suggestion import Suggestion
from dst_analyze.slimming.values import Verification
from dst_analyze.sweep.fast import SUFFIX
from dst_analyze.sweep.notes import notes_of
from dst_analyze.sweep.record import SweepRecord
from dst_analyze.terminal import (
    note_text,
    plan_table,
    plan_words,
    show,
    sweep_table,
    verification_table,
    visible,
    ways_table,
)
from dst_analyze.text import elide, short, wrapped
from dst_analyze.usage import PROGRAM

_SHOWN = 10  # layers of the ranking; `rank` shows all
_NAMED = 3  # layers in the summary
_NAME = 40


def show_outcome(
    where: Console,
    record: SweepRecord,
    ranking: Ranking,
    suggestion: Suggestion | DstError,
    proof: Verification | None,
    page: Path,
) -> None:
    """All of it, what matters most at the end, where it is seen."""
    show(where, *map(note_text, notes_of(record)), sweep_table(record, ranking, where.width), "")
    show(where, ranking.text(where.width, top=_SHOWN), "")
    if isinstance(suggestion, DstError):
        hint = (f"hint: {suggestion.hint}",) if suggestion.hint else ()
        show(where, *wrapped((f"no slimmer architecture: {suggestion.cause}", *hint), where.width))
    else:
        show(where, plan_table(suggestion.plan, where.width), *wrapped(plan_words(suggestion.plan), where.width))
        if suggestion.no_source:
            show(where, *wrapped([f"not written as source: {suggestion.no_source}"], where.width))
    if proof is not None:
        show(where, "", verification_table(proof, where.width), "", *wrapped([proof.verdict], where.width))
    ways = read_ways(record, ranking)
    if ways is not None:
        show(where, "", ways_table(ways, where.width), "", *wrapped([ways.verdict], where.width))
    rows = summary(record, ranking, suggestion, proof, page)
    show(where, "", *(f"{name:<12}{visible(text)}" for name, text in rows))


def summary(
    record: SweepRecord,
    ranking: Ranking,
    suggestion: Suggestion | DstError,
    proof: Verification | None,
    page: Path,
) -> Iterator[tuple[str, str]]:
    """Ten rows at most: what was done, what is redundant, how sure that is, what it saves, where it is, what next."""
    done, model = sum(trial.status == "done" for trial in record.trials), record.manifest.model
    trials = f"{done} of {len(record.trials)} trials, {record.seconds:.0f} s"
    yield "model", f"{elide(model.name, _NAME)}, {short(model.params)} parameters; {trials}"
    yield from _layers(ranking)
    yield "agreement", _agreement(ranking)
    if not isinstance(suggestion, DstError):
        plan = suggestion.plan
        macs = f", MACs to {plan.new_macs / plan.macs:.0%}" if plan.macs and plan.new_macs is not None else ""
        yield (
            "saving",
            f"parameters {short(plan.params)} -> {short(plan.new_params)}, to {plan.reached['params']:.0%}{macs}",
        )
        yield "slim model", suggestion.built_by
    yield "run folder", str(record.folder)
    yield "report", str(page)
    yield "next", _next(record, ranking, suggestion, proof)


def _layers(ranking: Ranking) -> Iterator[tuple[str, str]]:
    """The most redundant layers by name, and the most that any of the alphas left of them."""
    ratios = ranking.remaining()
    table = ranking.ordered()
    found = table.loc[table["label"] == REDUNDANT, "layer"]
    for number, layer in enumerate(found[:_NAMED]):
        kept = ratios.loc[layer].dropna()
        span = f"{100 * kept.min():.1f} to {100 * kept.max():.1f} % left" if len(kept) else "not measured"
        more = f"; and {len(found) - _NAMED} more" if number == _NAMED - 1 and len(found) > _NAMED else ""
        yield "" if number else "redundant", f"{elide(layer, _NAME)}: {span}{more}"
    if found.empty:
        needed = int((table["label"] == NEEDED).sum())
        yield "redundant", f"no layer for sure; {needed} of {len(table)} are needed"


def _agreement(ranking: Ranking) -> str:
    low, high = ranking.interval
    if ranking.agreement != ranking.agreement:
        return str(ranking.verdict)
    span = f" ({low:.2f} to {high:.2f})" if low == low else ""
    return f"{ranking.verdict}, Kendall's W {ranking.agreement:.2f}{span}"


def _next(record: SweepRecord, ranking: Ranking, suggestion: Suggestion | DstError, proof: Verification | None) -> str:
    """The command that would add most to what is known."""
    if record.folder.name.endswith(SUFFIX):
        return f"{PROGRAM} {record.config.model}, the real run: all parts of it work"
    if record.manifest.data.stand_in:
        return "define train_data() in the model file: these were stand-in data"
    if not record.complete:
        return f"{PROGRAM} {record.config.model} ... --retry-failed, to run again what failed"
    if isinstance(suggestion, DstError) or ranking.verdict is Verdict.NONE:
        longer = 4 * record.manifest.steps
        return f"{PROGRAM} {record.config.model} --seeds 3 --steps {longer}, for a clearer answer"
    if proof is None:
        return f"{PROGRAM} verify {record.folder}"
    if suggestion.source is None:
        return f"{suggestion.built_by} builds the slim model"
    return f"{PROGRAM} {suggestion.source}, the slim model is a model file too"

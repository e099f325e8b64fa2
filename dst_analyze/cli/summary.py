"""The end of a run in the terminal: tables, the answer in ten lines, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from dst_analyze.baselines.agreement import read_method_comparison
from dst_analyze.cli.default_group import PROGRAM
from dst_analyze.cli.terminal import (
    CHANGE_HEADS,
    INDENT,
    export_lines,
    note_text,
    show,
    show_plan,
    show_rows,
    sweep_table,
    verification_table,
    ways_table,
)
from dst_analyze.errors import DstError
from dst_analyze.pipeline import Outcome
from dst_analyze.ranking.length_evidence import long_run_share
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import NEEDED, REDUNDANT, Verdict
from dst_analyze.report.commands import command_again, next_step, problem_of
from dst_analyze.report.overview.answer import answer_of, without_evidence
from dst_analyze.report.overview.confidence import confidence_of
from dst_analyze.run.caveats import Title, notes_of
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.artifacts import Suggestion
from dst_analyze.slimming.proof.result import Verification
from dst_analyze.sweep.planning.smoke_run import SUFFIX
from dst_analyze.text import elide, layer_words, lower_first, wrapped

_SHOWN = 10  # layers of the ranking; `rank` shows all
_NAMED, _NAMED_BESIDE = 5, 3  # layers in the summary, and beside those that are too wide
_NEEDED = 2  # of these, where as many are needed
_VERBATIM = ("slim model", "patch", "own class", "report", "next")  # paths and commands, which are copied
_NAME = 40


def show_outcome(where: Console, outcome: Outcome, *, tables: bool = False) -> None:
    """Print a run's results on one screen, after its tables if they are wanted."""
    width = where.width  # which a wide table changes
    if tables:
        _show_tables(where, outcome)
    show_rows(where, summary(outcome), width, verbatim=_VERBATIM)


def _show_tables(where: Console, outcome: Outcome) -> None:
    record, ranking, suggestion, proof = outcome.record, outcome.ranking, outcome.suggestion, outcome.proof
    show(where, *map(note_text, notes_of(record)), sweep_table(record, ranking, where.width), "")
    show(where, ranking.text(where.width, top=_SHOWN), "")
    if isinstance(suggestion, DstError):
        hint = (f"hint: {suggestion.hint}",) if suggestion.hint else ()
        show(where, *wrapped((f"no slimmer architecture: {suggestion.cause}", *hint), where.width))
    else:
        show_plan(where, suggestion.plan)
        if suggestion.no_source:
            show(where, *wrapped([f"not written as source: {suggestion.no_source}"], where.width))
    if proof is not None:
        show(
            where, "", verification_table(proof, where.width), "", *wrapped([proof.verdict, proof.length], where.width)
        )
    ways = read_method_comparison(record, ranking)
    if ways is not None:
        show(where, "", ways_table(ways, where.width), "", *wrapped([ways.verdict], where.width))
    show(where, "")


def summary(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Yield the rows of one screen: problem, answer, the five layers that matter, confidence, next command."""
    record, ranking, suggestion, proof = outcome.record, outcome.ranking, outcome.suggestion, outcome.proof
    main_problem = _problem(record)
    if record.config.quick:
        yield "no sweep", "one training, its weights pruned by magnitude; alpha is the share that goes"
    if main_problem is not None:
        yield "WARNING", main_problem[0]
    yield from _answer(record, ranking, suggestion, proof)
    if not without_evidence(record):
        too_wide = not isinstance(suggestion, DstError) and bool(suggestion.plan.too_wide)
        yield from _redundant(ranking, _NAMED_BESIDE if too_wide else _NAMED)
        if not isinstance(suggestion, DstError) and too_wide:
            yield "too wide", suggestion.plan.proportions
    yield "how sure", how_sure(record, ranking)
    ways = read_method_comparison(record, ranking)
    if ways is not None:
        yield "baselines", ways.verdict
    doubts = dict.fromkeys(str(note.title) for note in notes_of(record) if note.title != Title.QUICK)
    if doubts:
        yield "notes", f"{'; '.join(doubts)} (explained in the report)"
    if not isinstance(suggestion, DstError) and suggestion.plan.is_advice:
        yield "slim model", suggestion.built_by
        if suggestion.no_source:
            yield "", f"not written as source: {suggestion.no_source}"
        if suggestion.change is not None:
            yield CHANGE_HEADS[suggestion.change.name], str(suggestion.change)
    for line in () if isinstance(suggestion, DstError) else export_lines(suggestion):
        yield line[:INDENT].rstrip(), line[INDENT:]
    yield "report", str(outcome.page)
    yield "next", main_problem[1] if main_problem is not None else _next(suggestion, proof, record, ranking)


def _problem(record: SweepRecord) -> tuple[str, str] | None:
    """Return the most important problem and the command that helps; None if there is none."""
    if record.folder.name.endswith(SUFFIX):
        real = f"{_command(record.config.model)}, the real run"
        return "a few steps only, to test that everything works: nothing here is a result", real
    found = problem_of(record)
    if found is not None:
        return found.what, found.step.command
    if record.manifest.data.stand_in:
        own = f"{command_again(record)} --data NAME, or define train_data() in the model file"
        return "trained on stand-in data (handwritten digits): the answer does not hold for your data", own
    return None


def _answer(
    record: SweepRecord, ranking: Ranking, suggestion: Suggestion | DstError, proof: Verification | None
) -> Iterator[tuple[str, str]]:
    """Yield the report's answer, and what the suggested network saves."""
    model = elide(record.manifest.model.name, _NAME)
    if isinstance(suggestion, DstError):
        yield "answer", f"{model}: no slimmer architecture, {suggestion.cause}"
        return
    found = answer_of(record, ranking, suggestion.plan, proof)
    if not found.size:
        yield "answer", f"{model}: {lower_first(found.sentence)}"
        return
    yield "answer", f"{model}: {lower_first('; '.join(filter(None, (found.headline, found.proof))))}"
    yield "saving", f"{found.detail}; {found.size}"


def _redundant(ranking: Ranking, named: int) -> Iterator[tuple[str, str]]:
    """Yield the most redundant layers with what can go of each, and the names of needed ones: ``named`` in all."""
    table = ranking.ordered()
    found = table[table["label"] == REDUNDANT]
    needed = [layer_words(name) for name in table.loc[table["label"] == NEEDED, "layer"].iloc[::-1]]
    most = named - min(len(needed), _NEEDED)
    for number, row in enumerate(found.head(most).itertuples()):
        more = f"; and {len(found) - most} more" if number == most - 1 and len(found) > most else ""
        said = row.spare_words or row.reason
        yield "" if number else "redundant", f"{layer_words(str(row.layer))}: {said}{more}"
    if found.empty and ranking.verdict is not Verdict.NONE:
        yield "redundant", "no layer clearly; the first in the order are"
        for row in table.head(most).itertuples():
            yield "", f"{layer_words(str(row.layer))}: {row.spare_words or row.reason}"
    if needed:
        left = max(_NEEDED, named - len(found))
        more = f" and {len(needed) - left} more" if len(needed) > left else ""
        yield "needed", ", ".join(needed[:left]) + more


def how_sure(record: SweepRecord, ranking: Ranking) -> str:
    """Return how certain the ranking is, as the report says it, in one sentence."""
    confidence, how = confidence_of(record, ranking), record.manifest
    said = f"{confidence.word}: {confidence.line}"
    if ranking.verdict in (Verdict.NONE, Verdict.UNCONFIRMED):
        return f"{said} ({ranking.why})" if ranking.verdict is Verdict.NONE else said
    said += f" (Kendall's W {ranking.statistics.w:.2f})"
    share = long_run_share(how.steps, warm_up=how.warm_up > 0, unit=how.unit)
    if share is None or record.config.quick:
        return said
    return f"{said}; where layers differ clearly, a long run agrees in about {100 * share:.0f} % of pairs"


def _command(*words: str | Path) -> str:
    """Return a command as a shell takes it."""
    return shlex.join([PROGRAM, *map(str, words)])


def _next(suggestion: Suggestion | DstError, proof: Verification | None, record: SweepRecord, ranking: Ranking) -> str:
    """Return the command that adds most to the evidence."""
    if isinstance(suggestion, DstError):
        return f"{_command('inspect', record.config.model)}, which shows what could not be traced"
    plan = suggestion.plan
    answer = answer_of(record, ranking, plan, proof)
    step = next_step(record, answer, has_source=suggestion.source is not None, size=plan.new_params / plan.params)
    if step is None:
        return f"{suggestion.built_by} builds the slim model"
    return step.command

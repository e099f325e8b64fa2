"""The stages after a sweep, as the command line runs them: rank, suggest, verify, compare, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dst_analyze.baselines.measure import add_baselines
from dst_analyze.baselines.values import METHODS, Baselines, Method
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import DstError, FolderError, attempt
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.load import rank_run
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.page import write_report
from dst_analyze.run.config import Json
from dst_analyze.run.derived import damage_of, is_whole, was_made
from dst_analyze.run.events import Emit, Notice, ReportWritten, ignore_event
from dst_analyze.run.files.atomic_io import replace_files
from dst_analyze.run.files.paths import (
    BASELINES,
    EXPORTED,
    LADDER,
    LATENCY,
    MADE,
    PLAN,
    REPORT,
    SLIM_CALL,
    SLIM_PATCH,
    SUGGESTION,
    VERIFICATION,
    VERIFIED,
)
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord
from dst_analyze.run.writer import editing
from dst_analyze.slimming.artifacts import Suggestion, write_suggestion
from dst_analyze.slimming.exports.result import Exporter, read_exports
from dst_analyze.slimming.kept import read_plan
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.suggest import suggest_widths
from dst_analyze.slimming.proof.kept_scores import AskedProof, asked_proof
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.slimming.proof.result import Seeds, Verification, looks_of
from dst_analyze.slimming.proving import RunProof, verify_and_save
from dst_analyze.sweep.engines.workers import Workers
from dst_analyze.sweep.planning.plan import Plan
from dst_analyze.sweep.training.trial import Task


@dataclass(frozen=True)
class Wanted:
    """Options of the stages after a sweep."""

    slim: Mapping[str, Any] = field(default_factory=dict)  # keywords of `suggest_widths`
    reinitialize: bool = False  # write the slim model with new weights, not those left of the model
    proof: AskedProof | None = None
    baselines: Sequence[Method] = ()
    exporters: Mapping[str, Exporter] = field(default_factory=dict)  # of formats of the slim model, by name


@dataclass(frozen=True)
class Outcome:
    """The results of all stages."""

    record: SweepRecord
    ranking: Ranking
    suggestion: Suggestion | DstError
    proof: Verification | None
    page: Path


def finish(
    plan: Plan, record: SweepRecord, wanted: Wanted, workers: Workers, emit: Emit, warn: Callable[[str], None]
) -> Outcome:
    """Rank, suggest, verify, compare and report a finished sweep; rebuild files that are damaged."""
    with editing(record.folder):
        for why in filter(None, (damage_of(record, name) for name in MADE if name not in (REPORT, LADDER, *EXPORTED))):
            emit(Notice(f"{why}: it is made again"))
        if _lost(record, LADDER, LadderProof):
            emit(Notice(f"{LADDER} is damaged and removed: `dst-analyze verify RUN --ladder` makes it again"))
            replace_files(record.folder, {}, removed=[LADDER])
        lost_proof = _lost(record, VERIFICATION, Verification) or bool(damage_of(record, LATENCY))
        lost_baselines = _lost(record, BASELINES, Baselines)
        remove_damaged_exports(record, emit)
        ranking = rank_run(record)
        suggestion = suggest(plan, record, ranking, wanted, emit)
        proof = None
        if not isinstance(suggestion, DstError):
            if suggestion.plan.is_advice:
                emit(suggestion.event())
            asked = wanted.proof or (asked_proof(record.folder / VERIFIED) if lost_proof else None)
            if asked:
                emit(Notice(f"the report so far: {write_report(record.folder, ranking)}"))
                with workers.started(plan.task, plan.request) as engine:
                    if wanted.proof and is_to_be_searched(suggestion.plan, asked.seeds):
                        searched = RunProof(plan.task, ranking, suggestion.plan, engine, emit)
                        suggestion = searched.search(asked.seeds, reinitialize=wanted.reinitialize)
                        emit(suggestion.event())
                        write_report(record.folder, ranking)
                    proof = verify_and_save(
                        plan.task, record, suggestion.plan, engine=engine, listener=emit, **dict(asked)
                    )
        methods = wanted.baselines or (METHODS if lost_baselines else ())
        if methods:
            add_baselines(plan.task, record, methods, lambda text: emit(Notice(text)), failed=warn)
        page = write_report(record.folder, ranking, emit)
    emit(ReportWritten(str(page)))
    return Outcome(record, ranking, suggestion, proof, page)


def is_to_be_searched(plan: SlimPlan, seeds: Seeds) -> bool:
    """Return True if a plan has an expected size, which a proof of several seeds replaces by what training shows."""
    return looks_of(seeds)[-1] > 1 and plan.is_advice and plan.target is not None and plan.target.is_expected


def finish_study(record: SweepRecord, traced: TracedModel | None, emit: Emit) -> Path:
    """Rank a study, suggest widths where its model is at hand, write the report and return its page."""
    with editing(record.folder):
        return _finish_study(record, traced, emit)


def _finish_study(record: SweepRecord, traced: TracedModel | None, emit: Emit) -> Path:
    ranking = rank_run(record)
    if traced is not None:
        model = traced
        coupling = couple_channels(model)

        def suggested() -> Suggestion:
            widths = suggest_widths(model, ranking, coupling=coupling)
            return write_suggestion(record.folder, model, widths, coupling, record=record)

        found = attempt(suggested, hint="suggest_widths(...) shows where")
        if isinstance(found, DstError):
            emit(Notice(f"nothing is suggested: {found}"))
        elif found.plan.is_advice:
            emit(found.event())
    page = write_report(record.folder, ranking, emit)
    emit(ReportWritten(str(page)))
    return page


def verify_study(task: Task, record: SweepRecord, seeds: Seeds, emit: Emit) -> Verification:
    """Prove the suggestion in a study's folder, in this process, and write the report again."""
    with editing(record.folder):
        proof = verify_and_save(task, record, read_plan(record), seeds, listener=emit)
        write_report(record.folder, rank_run(record), emit)
    return proof


def _lost(record: SweepRecord, name: str, kind: type[Json]) -> bool:
    """Return whether a file is damaged; one without a checksum that cannot be read is removed."""
    if damage_of(record, name):
        return True
    if not was_made(record, name):
        return False
    try:
        read_json(record.folder / name, kind)
        return False
    except FolderError:
        pass
    replace_files(record.folder, {}, removed=[name])
    return True


def remove_damaged_exports(record: SweepRecord, emit: Emit) -> None:
    """Remove other formats of a suggestion if one of them is damaged; they are written on request only."""
    if why := next(filter(None, (damage_of(record, name) for name in EXPORTED)), ""):
        emit(Notice(f"{why}: the exports are removed; `dst-analyze slim RUN --format NAME` writes them again"))
        replace_files(record.folder, {}, removed=EXPORTED)


def suggest(
    plan: Plan, record: SweepRecord, ranking: Ranking, wanted: Wanted, emit: Emit = ignore_event
) -> Suggestion | DstError:
    """Return the suggestion, or the error that prevents one; an existing one is kept unless options were given.

    Where one of its files is damaged, all are made again: from the plan, if that is whole.
    """
    asked = wanted.slim or wanted.reinitialize
    kept = None if asked else attempt(lambda: read_plan(record), hint="")
    damaged = any(damage_of(record, name) for name in (*SUGGESTION, SLIM_CALL, SLIM_PATCH))
    before = read_exports(record)
    there = {entry.format: entry for entry in before.exports if not entry.reason} if before is not None else {}
    if isinstance(kept, SlimPlan) and not damaged and wanted.exporters.keys() <= there.keys():
        return Suggestion(kept, record.folder, exports=tuple(there[name] for name in wanted.exporters))
    if isinstance(kept, DstError) and was_made(record, PLAN) and not damaged:
        emit(Notice(f"{kept.cause}: it is made again"))
    coupling, traced = plan.coupling, plan.task.traced
    if isinstance(coupling, DstError):
        return coupling

    proven = is_whole(record, VERIFICATION)

    def suggested() -> Suggestion:
        widths = kept if isinstance(kept, SlimPlan) else None
        widths = widths or suggest_widths(traced, ranking, coupling=coupling, **wanted.slim)
        written = write_suggestion(
            record.folder,
            traced,
            widths,
            coupling,
            reinitialize=wanted.reinitialize,
            record=record,
            ranking=ranking,
            exporters=wanted.exporters,
            task=lambda: plan.task,
        )
        if proven and not was_made(record, VERIFICATION):
            emit(Notice("the plan is another one than before: the proof of that is removed"))
        return written

    return attempt(suggested, hint="`dst-analyze slim RUN --debug` shows where")

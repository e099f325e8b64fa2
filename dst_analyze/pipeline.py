"""The stages after a sweep, as the command line runs them: rank, suggest, verify, compare, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dst_analyze.baselines.measure import add_baselines
from dst_analyze.baselines.values import Method
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import DstError, attempt
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.load import rank_run
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.page import write_report
from dst_analyze.run.events import Emit, Notice, ReportWritten
from dst_analyze.run.paths import PLAN
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.artifacts import Suggestion, read_plan, verify_and_save, write_suggestion
from dst_analyze.slimming.planning.plan_types import Verification
from dst_analyze.slimming.planning.suggest import suggest_widths
from dst_analyze.sweep.engines.workers import Workers
from dst_analyze.sweep.planning.plan import Plan


@dataclass(frozen=True)
class Wanted:
    """Options of the stages after a sweep."""

    slim: Mapping[str, Any] = field(default_factory=dict)  # keywords of `suggest_widths`
    reinitialize: bool = False  # write the slim model with new weights, not those left of the model
    verify_seeds: int = 0
    baselines: Sequence[Method] = ()


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
    """Rank, suggest, verify, compare and report a finished sweep; return all results."""
    ranking = rank_run(record)
    suggestion = suggest(plan, record, ranking, wanted)
    proof = None
    if not isinstance(suggestion, DstError):
        if suggestion.plan.is_advice:
            emit(suggestion.event())
        if wanted.verify_seeds:
            emit(Notice(f"the report so far: {write_report(record.folder, ranking)}"))
            with workers.started(plan.task, plan.request) as engine:
                proof = verify_and_save(plan.task, record, suggestion.plan, wanted.verify_seeds, engine, emit)
    if wanted.baselines:
        add_baselines(plan.task, record, wanted.baselines, lambda text: emit(Notice(text)), failed=warn)
    page = write_report(record.folder, ranking)
    emit(ReportWritten(str(page)))
    return Outcome(record, ranking, suggestion, proof, page)


def finish_study(record: SweepRecord, traced: TracedModel | None, emit: Emit) -> Path:
    """Rank a study, suggest widths where its model is at hand, write the report and return its page."""
    ranking = rank_run(record)
    if traced is not None:
        model = traced
        coupling = couple_channels(model)

        def suggested() -> Suggestion:
            return write_suggestion(record.folder, model, suggest_widths(model, ranking, coupling=coupling), coupling)

        found = attempt(suggested, hint="suggest_widths(...) shows where")
        if isinstance(found, DstError):
            emit(Notice(f"nothing is suggested: {found}"))
        elif found.plan.is_advice:
            emit(found.event())
    page = write_report(record.folder, ranking)
    emit(ReportWritten(str(page)))
    return page


def suggest(plan: Plan, record: SweepRecord, ranking: Ranking, wanted: Wanted) -> Suggestion | DstError:
    """Return the suggestion, or the error that prevents one; an existing one is kept unless options were given."""
    if (record.folder / PLAN).exists() and not (wanted.slim or wanted.reinitialize):
        return Suggestion(read_plan(record.folder), record.folder)
    coupling, traced = plan.coupling, plan.task.traced
    if isinstance(coupling, DstError):
        return coupling

    def suggested() -> Suggestion:
        widths = suggest_widths(traced, ranking, coupling=coupling, **wanted.slim)
        return write_suggestion(record.folder, traced, widths, coupling, reinitialize=wanted.reinitialize)

    return attempt(suggested, hint="`dst-analyze slim RUN --debug` shows where")

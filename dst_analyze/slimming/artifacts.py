"""The suggestion in a run folder: the plan, the slim model as source with its weights, and what to change where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.events import SuggestionWritten
from dst_analyze.run.files.atomic_io import csv_bytes, replace_files, spreadsheet_safe, writing
from dst_analyze.run.files.paths import (
    CHANGES,
    LATENCY,
    PLAN,
    RATIOS,
    REPORT,
    SLIM_SOURCE,
    SLIM_WEIGHTS,
    SUGGESTION,
    SUMMARY,
    VERDICT,
    VERIFICATION,
    WIDTHS,
    is_run_folder,
)
from dst_analyze.run.record import SweepRecord
from dst_analyze.run.writer import editing
from dst_analyze.slimming.kept import read_proof
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.source.edits import changed_lines, pruning_ratios
from dst_analyze.slimming.source.literals import SourceError
from dst_analyze.slimming.source.write import source_and_weights
from dst_analyze.slimming.surgery.slim_model import slim_model

T = TypeVar("T")


@dataclass(frozen=True)
class Suggestion:
    """What was written where; without ``source`` there is a plan, but some layer that cannot be written as code."""

    plan: SlimPlan
    folder: Path
    no_source: str = ""  # why it could not be written just now

    @property
    def source(self) -> Path | None:
        path = self.folder / SLIM_SOURCE
        return path if path.exists() else None

    @property
    def built_by(self) -> str:
        """How to get the slim model: its file, else the call that builds it."""
        return str(self.source) if self.source else f"slim_model(model, SlimPlan.load({str(self.folder / PLAN)!r}))"

    def event(self) -> SuggestionWritten:
        plan, source = self.plan, str(self.source or "")
        return SuggestionWritten(str(self.folder / PLAN), source, plan.params, plan.new_params)


def write_suggestion(
    folder: Path,
    traced: TracedModel,
    plan: SlimPlan,
    coupling: Coupling,
    *,
    reinitialize: bool = False,
    record: SweepRecord | None = None,
) -> Suggestion:
    """Build the slim model and write it down as one set: plan, source, weights, changes and ratios.

    The plan names the sweep of the ``record``. A proof that is there stays if it is of the same plan.
    """
    model = slim_model(traced, plan, reinitialize=reinitialize, coupling=coupling)
    plan = plan.model_copy(update={"notes": tuple(dict.fromkeys((*plan.notes, *model.meta["notes"])))})
    plan = plan if record is None else plan.model_copy(update={"sweep": record.sha256})
    files = {
        PLAN: plan.as_bytes(),
        CHANGES: csv_bytes(spreadsheet_safe(changed_lines(traced, model), ["layer", "line", "place", "remark"])),
        RATIOS: f"{json.dumps(pruning_ratios(plan), indent=1)}\n".encode(),
    }
    no_source = ""
    try:
        files[SLIM_SOURCE], files[SLIM_WEIGHTS] = source_and_weights(model)
    except SourceError as error:
        no_source = str(error)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with editing(folder):
        here = record is not None and folder.resolve() == record.folder.resolve()
        proof = read_proof(record) if record is not None and here else None
        kept = {VERIFICATION, LATENCY} if proof is not None and proof.plan == plan.sha256 else set()
        stale = {*SUGGESTION, VERIFICATION, LATENCY, WIDTHS, VERDICT, SUMMARY, REPORT} - kept
        if is_run_folder(folder):
            replace_files(folder, files, removed=stale)
        else:
            replace_files(folder, {}, removed=stale, unsummed=files)
    return Suggestion(plan, folder, no_source)

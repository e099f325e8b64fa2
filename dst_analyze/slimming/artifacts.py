"""The suggestion in a run folder: the plan, the slim model as source with its weights, and what to change where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.atomic_io import spreadsheet_safe, write_csv, write_text
from dst_analyze.run.events import Emit, SuggestionWritten, ignore_event
from dst_analyze.run.paths import CHANGES, LATENCY, PLAN, RATIOS, SLIM_SOURCE, VERIFICATION, VERIFIED
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan, Verification
from dst_analyze.slimming.planning.suggest import slim_model
from dst_analyze.slimming.proof.verify import verify_task_plan
from dst_analyze.slimming.source.edits import changed_lines, pruning_ratios
from dst_analyze.slimming.source.literals import SourceError
from dst_analyze.slimming.source.write import write_source
from dst_analyze.sweep.engines.engine import Engine
from dst_analyze.sweep.training.trial import Task

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
    folder: Path, traced: TracedModel, plan: SlimPlan, coupling: Coupling, *, reinitialize: bool = False
) -> Suggestion:
    """Build the slim model and write it down: plan.json, slim_model.py and .safetensors, changes.csv, ratios."""
    model = slim_model(traced, plan, reinitialize=reinitialize, coupling=coupling)
    folder.mkdir(parents=True, exist_ok=True)
    source, no_source = folder / SLIM_SOURCE, ""
    try:
        write_source(model, source)
    except SourceError as error:
        no_source = str(error)
        for old in (source, source.with_suffix(".safetensors")):
            old.unlink(missing_ok=True)  # of another plan
    write_csv(folder / CHANGES, spreadsheet_safe(changed_lines(traced, model), ["layer"]))
    write_text(folder / RATIOS, json.dumps(pruning_ratios(plan), indent=1) + "\n")
    write_text(folder / PLAN, plan.model_dump_json(indent=1) + "\n")
    for stale in (VERIFICATION, LATENCY):
        (folder / stale).unlink(missing_ok=True)  # of another plan
    return Suggestion(plan, folder, no_source)


def read_plan(folder: Path) -> SlimPlan:
    return SlimPlan.load(folder / PLAN)


def verify_and_save(
    task: Task,
    record: SweepRecord,
    plan: SlimPlan,
    seeds: int,
    engine: Engine | None = None,
    listener: Emit = ignore_event,
) -> Verification:
    """The proof of a plan (see `verify_task_plan`), kept in the run folder: training by training, then as a whole."""
    folder = record.folder
    kept = folder / VERIFIED
    found = verify_task_plan(task, plan, record=record, seeds=seeds, keep_in=kept, engine=engine, listener=listener)
    for name, text in found.files().items():
        write_text(folder / name, text)
    return found

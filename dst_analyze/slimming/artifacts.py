"""The suggestion in a run folder: the plan, the slim model as source with its weights, and what to change where."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import DstError, OptionError
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.load import rank_run
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.atomic_io import spreadsheet_safe, write_csv, write_text
from dst_analyze.run.events import Emit, SuggestionWritten, ignore_event
from dst_analyze.run.paths import CHANGES, GROUPS, PLAN, RATIOS, SLIM_SOURCE, VERIFICATION, VERIFIED
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan, Verification
from dst_analyze.slimming.planning.suggest import slim_model, suggest_widths
from dst_analyze.slimming.proof.verify import verify_task_plan
from dst_analyze.slimming.source.edits import changed_lines, pruning_ratios
from dst_analyze.slimming.source.literals import SourceError
from dst_analyze.slimming.source.write import write_source
from dst_analyze.sweep.data.named_datasets import DEFAULT_ROOT
from dst_analyze.sweep.engines.engine import Engine
from dst_analyze.sweep.planning.plan import plan_sweep
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


def rank_and_suggest(
    traced: TracedModel, record: SweepRecord, asked: Mapping[str, Any], *, again: bool, reinitialize: bool = False
) -> tuple[Ranking, Suggestion | DstError]:
    """Return the ranking of a run, and its suggestion or why there is none.

    A suggestion that is there already is not replaced, unless ``again``.
    """
    folder = record.folder
    if (folder / PLAN).exists() and not again:
        return rank_run(record), Suggestion(read_plan(folder), folder)
    coupling = _attempted(lambda: _coupled(folder, traced))
    ranking = rank_run(record)  # reads which layers must shrink together, if that could be found
    if isinstance(coupling, DstError):
        return ranking, coupling

    def suggested() -> Suggestion:
        plan = suggest_widths(traced, ranking, coupling=coupling, **asked)
        return write_suggestion(folder, traced, plan, coupling, reinitialize=reinitialize)

    return ranking, _attempted(suggested)


def _attempted(make: Callable[[], T]) -> T | DstError:
    """Return what is made, or the error: a sweep of hours is not to be lost to a model that nobody thought of here."""
    try:
        return make()
    except DstError as error:
        return error
    except Exception as error:
        return DstError(f"{type(error).__name__}: {error}", hint="`dst-analyze slim RUN --debug` shows where")


def _coupled(folder: Path, traced: TracedModel) -> Coupling:
    coupling = couple_channels(traced)
    write_groups(folder, traced, coupling)
    return coupling


def write_groups(folder: Path, traced: TracedModel, coupling: Coupling) -> None:
    """Which layers must shrink together, for the ranking: those that make the same channels, where several do.

    What is not a layer of the sweep (an LSTM's biases, layers left out by a pattern) shrinks too, but is not ranked.
    """
    known, rows = {layer.name for layer in traced.layers}, dict[str, str]()
    for group in coupling.removable:
        layers = [layer for layer in group.layers("produces") if layer in known]
        rows |= {layer: group.name for layer in layers if len(layers) > 1 and layer not in rows}
    columns = ["layer", "group"]
    write_csv(folder / GROUPS, spreadsheet_safe(pd.DataFrame(rows.items(), columns=columns), columns))


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
        for stale in (source, source.with_suffix(".safetensors")):
            stale.unlink(missing_ok=True)  # of another plan
    write_csv(folder / CHANGES, spreadsheet_safe(changed_lines(traced, model), ["layer"]))
    write_text(folder / RATIOS, json.dumps(pruning_ratios(plan), indent=1) + "\n")
    write_text(folder / PLAN, plan.model_dump_json(indent=1) + "\n")
    (folder / VERIFICATION).unlink(missing_ok=True)  # of another plan
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
    write_text(folder / VERIFICATION, found.model_dump_json(indent=1) + "\n")
    return found


def task_of(record: SweepRecord, *, data_root: Path | None = None) -> Task:
    """What a run trained, made again from the model's own code; refused if that has changed since."""
    config = record.config
    if not config.can_be_made_again:
        raise OptionError(
            f"this run was made from an object in memory ({config.model}), which only its program can make again",
            place=str(record.folder),
            hint="use suggest_widths, slim_model and verify_plan in that program",
        )
    plan = plan_sweep(
        config.model,
        record.manifest.data.name or None,
        model_args=config.model_args,
        out=record.folder,
        data_root=data_root or DEFAULT_ROOT,
        factor=config.factor,
        **config.options,
    )
    made = record.manifest  # where defaults were taken, those of its day
    recipe = replace(plan.task.recipe, steps=made.steps, asked_warm_up=made.warm_up, asked_unit=made.unit)
    return replace(plan.task, steps=made.steps, recipe=recipe)

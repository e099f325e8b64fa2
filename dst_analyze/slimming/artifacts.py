"""The suggestion in a run folder: the plan, the slim model as source with its weights, and what to change where."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import fx

from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import FolderError
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.model.user_errors import headline
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.events import SuggestionWritten
from dst_analyze.run.files.atomic_io import (
    changed_since,
    csv_bytes,
    remove_folder,
    replace_files,
    spreadsheet_safe,
    write_folder,
    writing,
)
from dst_analyze.run.files.paths import (
    CHANGES,
    EXPLORER,
    EXPORTS,
    HUB,
    LATENCY,
    OPTIONAL,
    PLAN,
    RATIOS,
    REPORT,
    SLIM_CALL,
    SLIM_PATCH,
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
from dst_analyze.slimming.exports.library import slim_call
from dst_analyze.slimming.exports.result import (
    Export,
    Exported,
    Exporter,
    ExportsFile,
    SlimResult,
    read_exports,
    run_exporter,
)
from dst_analyze.slimming.kept import read_proof
from dst_analyze.slimming.patches.write import Patch, make_patch, with_sites
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.source.edits import changed_lines, pruning_ratios
from dst_analyze.slimming.source.literals import SourceError
from dst_analyze.slimming.source.write import source_of_model, weights_of
from dst_analyze.slimming.surgery.slim_model import slim_model
from dst_analyze.sweep.training.trial import Task

T = TypeVar("T")


@dataclass(frozen=True)
class Suggestion:
    """What was written where; without ``source`` there is a plan, but some layer that cannot be written as code."""

    plan: SlimPlan
    folder: Path
    no_source: str = ""  # why it could not be written just now
    exports: tuple[Export, ...] = ()  # the formats asked for
    no_change: str = ""  # why there is neither a patch of the user's file nor a call of a library's class

    @property
    def source(self) -> Path | None:
        path = self.folder / SLIM_SOURCE
        return path if path.exists() else None

    @property
    def change(self) -> Path | None:
        """The patch of the user's file or the call of a library's class, if there is one."""
        paths = (self.folder / SLIM_PATCH, self.folder / SLIM_CALL)
        return next((path for path in paths if path.exists()), None)

    @property
    def exported(self) -> bool:
        """Whether all formats that were asked for are written."""
        return not any(export.reason for export in self.exports)

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
    ranking: Ranking | None = None,
    spec: str | None = None,
    exporters: Mapping[str, Exporter] | None = None,
    task: Callable[[], Task] | None = None,
) -> Suggestion:
    """Build the slim model and write it down as one set: plan, source, weights, changes, ratios and other formats.

    The plan names the sweep of the ``record``. A proof or an export that is there stays if it is of the same model.
    ``spec`` says where the model is, of a run that does not name it.
    """
    _refuse_changed(folder, exporters or {})
    model = slim_model(traced, plan, reinitialize=reinitialize, coupling=coupling)
    plan = plan.model_copy(update={"notes": tuple(dict.fromkeys((*plan.notes, *model.meta["notes"])))})
    plan = plan if record is None else plan.model_copy(update={"sweep": record.sha256})
    patch, call, no_call = _own_sources(traced, model, record, spec)
    changes = with_sites(changed_lines(traced, model), patch.sites)
    files = {
        PLAN: plan.as_bytes(),
        CHANGES: csv_bytes(spreadsheet_safe(changes, ["layer", "line", "place", "remark"])),
        RATIOS: f"{json.dumps(pruning_ratios(plan), indent=1)}\n".encode(),
    }
    files |= {SLIM_PATCH: patch.text.encode()} if patch.text else {}
    files |= {SLIM_CALL: call.encode()} if call else {}
    no_source = ""
    source, weights = b"", weights_of(model)
    try:
        source = source_of_model(model).encode()
        files |= {SLIM_SOURCE: source, SLIM_WEIGHTS: weights}
    except SourceError as error:
        no_source = str(error)
    result = SlimResult(model, traced, plan, source, weights, record, ranking, task)
    made = {name: run_exporter(name, exporter, result) for name, exporter in (exporters or {}).items()}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with editing(folder):
        here = record is not None and folder.resolve() == record.folder.resolve()
        proof = read_proof(record) if record is not None and here else None
        before = read_exports(record) if record is not None and here else None
        kept = {VERIFICATION, LATENCY} if proof is not None and proof.plan == plan.sha256 else set()
        exports, files = _with_exports(files, plan, weights, made, before)
        kept |= {file for entry in exports for file in entry.files}
        stale = {*SUGGESTION, *OPTIONAL, VERIFICATION, LATENCY, WIDTHS, VERDICT, SUMMARY, REPORT} - kept
        for name in (HUB, EXPLORER):
            new = next((found.folders[name] for _, found in made.values() if name in found.folders), None)
            if new is not None:
                write_folder(folder / name, new)
            elif not any(file.startswith(f"{name}/") for file in kept) and not changed_since(folder / name):
                remove_folder(folder / name)
        if is_run_folder(folder):
            replace_files(folder, files, removed=stale)
        else:
            replace_files(folder, {}, removed=stale & {*SUGGESTION, *OPTIONAL}, unsummed=files)
    exported = tuple(entry for entry, _ in made.values())
    return Suggestion(plan, folder, no_source, exported, patch.reason or no_call)


def _refuse_changed(folder: Path, exporters: Collection[str]) -> None:
    """Raise if a folder would be replaced that somebody has changed, such as a model card with its licence."""
    for name, export in ((HUB, "hub"), (EXPLORER, "explorer")):
        if export in exporters and (why := changed_since(folder / name)):
            raise FolderError(
                f"it is not as it was written, and would be replaced: {why}",
                place=str(folder / name),
                hint="move it away, or leave this format out",
            )


def _own_sources(
    traced: TracedModel, model: fx.GraphModule, record: SweepRecord | None, spec: str | None
) -> tuple[Patch, str, str]:
    """Return the change of the user's file, or the call of a library's class; both are extras that may be missing."""
    config = None if record is None else record.config
    if spec is None and config is not None and config.can_be_made_again:
        spec = config.model
    if not spec:
        return Patch(), "", ""
    arguments = {} if config is None else config.model_args
    try:
        return make_patch(traced, model, spec, arguments), *slim_call(traced, model, spec, arguments)
    except Exception as error:  # the plan and the source are worth more than these
        return Patch(reason=headline(error)), "", ""


def _with_exports(
    files: Mapping[str, bytes],
    plan: SlimPlan,
    weights: bytes,
    made: Mapping[str, tuple[Export, Exported]],
    before: ExportsFile | None,
) -> tuple[list[Export], dict[str, bytes]]:
    """Return the formats that the folder will have, those kept among them, and all files to be written."""
    digest = hashlib.sha256(weights).hexdigest()
    same = before is not None and (before.plan, before.weights) == (plan.sha256, digest)
    kept = [entry for entry in before.exports if entry.format not in made] if same and before is not None else []
    exports = [*kept, *(entry for entry, _ in made.values())]
    new = {name: data for _, found in made.values() for name, data in found.files.items()}
    if exports:
        new[EXPORTS] = ExportsFile(plan=plan.sha256, weights=digest, exports=tuple(exports)).as_bytes()
    return exports, {**files, **new}

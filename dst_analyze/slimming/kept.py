"""The plan and its proof as a run folder keeps them, as far as they can be believed. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dst_analyze.errors import FolderError
from dst_analyze.run.derived import check_derived, damage_of, is_whole, read_together, was_made
from dst_analyze.run.files.paths import CHANGES, LADDER, OPTIONAL, PLAN, SLIM_SOURCE, SUGGESTION, VERIFICATION
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.slimming.proof.result import Verification


@dataclass(frozen=True)
class KeptSuggestion:
    """What can be shown of a suggestion. ``problems`` say what is left out, and why."""

    plan: SlimPlan | None = None
    proof: Verification | None = None
    ladder: LadderProof | None = None
    changes: Path | None = None
    has_source: bool = False
    problems: tuple[str, ...] = ()


def read_plan(record: SweepRecord) -> SlimPlan:
    """Return the plan in a run folder; a FolderError if there is none, if it is damaged or of another sweep."""
    check_derived(record, PLAN)
    plan = SlimPlan.load(record.folder / PLAN)
    if why := _of_another_sweep(record, plan):
        raise FolderError(
            f"the plan cannot be used: {why}", place=str(record.folder), hint="`dst-analyze slim` makes one"
        )
    return plan


def read_proof(record: SweepRecord) -> Verification | None:
    """Return the proof in a run folder, of whatever plan; None if there is none, or it is damaged."""
    return Verification.load(record.folder) if is_whole(record, VERIFICATION) else None


def read_suggestion(record: SweepRecord) -> KeptSuggestion:
    """Return the plan, its proof and what belongs to them, all of one set."""
    return read_together(record.folder, lambda: _read_suggestion(record))


def _read_suggestion(record: SweepRecord) -> KeptSuggestion:
    if not was_made(record, PLAN):
        return KeptSuggestion()
    problems = [why for name in (*SUGGESTION, *OPTIONAL, VERIFICATION, LADDER) if (why := damage_of(record, name))]
    plan = read_json(record.folder / PLAN, SlimPlan) if is_whole(record, PLAN) else None
    if plan is not None and (why := _of_another_sweep(record, plan)):
        problems, plan = [*problems, why], None
    if plan is None:
        return KeptSuggestion(problems=tuple(problems))
    proof = read_proof(record)
    if proof is not None and (why := _of_another_plan(record, plan, proof)):
        problems, proof = [*problems, why], None
    ladder = LadderProof.load(record.folder) if is_whole(record, LADDER) else None
    if ladder is not None and ladder.sweep != record.sha256:
        problems, ladder = [*problems, f"{LADDER} is of another sweep than the one in this folder"], None
    changes = record.folder / CHANGES if is_whole(record, CHANGES) else None
    return KeptSuggestion(plan, proof, ladder, changes, is_whole(record, SLIM_SOURCE), tuple(problems))


def _of_another_sweep(record: SweepRecord, plan: SlimPlan) -> str:
    named = plan.sweep or record.manifest.sums == "all"
    return f"{PLAN} is of another sweep than the one in this folder" if named and plan.sweep != record.sha256 else ""


def _of_another_plan(record: SweepRecord, plan: SlimPlan, proof: Verification) -> str:
    named = proof.plan or record.manifest.sums == "all"
    return f"{VERIFICATION} proves another plan than {PLAN}" if named and proof.plan != plan.sha256 else ""

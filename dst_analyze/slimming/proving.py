"""Proofs of what a run suggests, whose trainings are kept in its folder: of one size, of a ladder, or of a search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import FolderError
from dst_analyze.ranking.result import Ranking
from dst_analyze.run.events import Emit, Notice, ignore_event
from dst_analyze.run.files.atomic_io import replace_files
from dst_analyze.run.files.paths import LADDER, LATENCY, VERIFIED
from dst_analyze.run.record import SweepRecord
from dst_analyze.run.writer import editing
from dst_analyze.slimming.artifacts import Suggestion, write_suggestion
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.suggest import options_of, shares_of, suggest_widths
from dst_analyze.slimming.planning.target import SizeTarget, alpha_results, expected_target
from dst_analyze.slimming.proof.kept_scores import KeptScores
from dst_analyze.slimming.proof.ladder import Ladder, Sizes
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.slimming.proof.result import Seeds, Verification, looks_of
from dst_analyze.slimming.proof.size_search import search_count, search_size, sizes_to_try
from dst_analyze.slimming.proof.trainings import Trainings, training_seconds
from dst_analyze.slimming.proof.verify import PlanProof, verify_task_plan
from dst_analyze.sweep.engines.engine import Engine
from dst_analyze.sweep.training.trial import Task


class RunProof:
    """The proofs of a run's suggestion; trainings that its folder has kept are not repeated."""

    def __init__(
        self, task: Task, ranking: Ranking, plan: SlimPlan, engine: Engine | None = None, listener: Emit = ignore_event
    ) -> None:
        """Prepare; widths at other sizes follow the rule and the limits of the ``plan``."""
        assert ranking.record is not None
        self._task, self._ranking, self._plan = task, ranking, plan
        self._record: SweepRecord = ranking.record
        self._coupling, self._listener = couple_channels(task.traced), listener
        kept = KeptScores(_kept_in(self._record.folder), task.steps)
        self._trainings = Trainings(task, self._coupling, kept, engine, listener, training_seconds(self._record))

    def search(self, seeds: Seeds, *, reinitialize: bool = False) -> Suggestion:
        """Find the smallest size that is level with the dense model, and write the suggestion at that size.

        One seed decides nothing, and leaves the suggestion as it is.
        """
        folder = self._record.folder
        if looks_of(seeds)[-1] < 2:
            return Suggestion(self._plan, folder)
        with editing(folder):
            target = search_size(self._trainings, self._expected_at, self._expected, seeds)
            self._listener(Notice(target.sentence))
            found = self._expected_at(target.share).model_copy(update={"target": target})
            return write_suggestion(
                folder, self._task.traced, found, self._coupling, reinitialize=reinitialize, record=self._record
            )

    def ladder(self, sizes: Sizes, seeds: Seeds) -> LadderProof:
        """Prove the suggestion at several sizes, and keep the result in the run folder."""
        with editing(self._record.folder):
            found = self._ladder(sizes).run(seeds)
            replace_files(self._record.folder, {LADDER: found.as_bytes()})
        return found

    def costs(
        self,
        seeds: Seeds,
        sizes: Sizes = (),
        *,
        search: bool = False,
        fine_tune: bool = False,
        check_length: bool = False,
    ) -> list[str]:
        """Return what proofs would cost, in sentences; nothing is trained."""
        if sizes:
            return [self._ladder(sizes).cost_words(seeds)]
        said = []
        if search:
            count = search_count(sizes_to_try(self._expected.share), looks_of(seeds))
            said.append(f"the search for the size: {self._trainings.cost_words(count)}")
        here, plan = self._trainings, self._plan
        count = PlanProof(here, plan, self._record, fine_tune=fine_tune, check_length=check_length).count(seeds)
        return [*said, f"the proof: {self._trainings.cost_words(count)}"]

    @property
    def _expected(self) -> SizeTarget:
        return expected_target(alpha_results(self._ranking), quick=self._record.config.quick)

    def _ladder(self, sizes: Sizes) -> Ladder:
        return Ladder(self._trainings, lambda axis, share: self._plan_at({axis: share}), sizes, self._record)

    def _expected_at(self, share: float) -> SlimPlan:
        return self._plan_at(shares_of(self._task.traced, self._expected.at(share)))

    def _plan_at(self, shares: Mapping[str, float]) -> SlimPlan:
        targets: dict[str, Any] = {f"target_{axis}": share for axis, share in shares.items()}
        traced, options = self._task.traced, options_of(self._plan)
        return suggest_widths(traced, self._ranking, coupling=self._coupling, **options, **targets)


def verify_and_save(
    task: Task,
    record: SweepRecord,
    plan: SlimPlan,
    seeds: Seeds,
    engine: Engine | None = None,
    listener: Emit = ignore_event,
    *,
    fine_tune: bool = False,
    check_length: bool = False,
) -> Verification:
    """The proof of a plan (see `verify_task_plan`), kept in the run folder: training by training, then as a whole."""
    folder = record.folder
    kept = _kept_in(folder)
    with editing(folder):
        found = verify_task_plan(
            task, plan, record=record, seeds=seeds, fine_tune=fine_tune, check_length=check_length, keep_in=kept,
            engine=engine, listener=listener,
        )  # fmt: skip
        files = {name: text.encode() for name, text in found.files().items()}
        latency = {LATENCY: files.pop(LATENCY)}
        replace_files(folder, files, unsummed=latency)
    return found


def _kept_in(folder: Path) -> Path:
    """Return the folder of a run's proofs, where their trainings are kept."""
    kept = folder / VERIFIED
    if kept.is_symlink():
        raise FolderError("it is a link, and links are not followed", place=str(kept), hint="remove it")
    return kept

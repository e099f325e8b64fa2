"""All of it in one call, for a notebook: the sweep, its ranking, the suggestion and its proof."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from matplotlib.axes import Axes
from torch import fx

from dst_analyze.baselines.agreement import MethodComparison, compare_methods
from dst_analyze.baselines.measure import baselines_of
from dst_analyze.baselines.values import METHODS, Method
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.deprecation import renamed_arguments, warn_renamed
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.load import rank_run
from dst_analyze.ranking.result import Ranking
from dst_analyze.report import notebook
from dst_analyze.report.page import write_report
from dst_analyze.run.events import Emit, ignore_event
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.artifacts import verify_and_save, write_suggestion
from dst_analyze.slimming.kept import read_plan
from dst_analyze.slimming.planning.plan_types import SlimPlan, Verification
from dst_analyze.slimming.planning.suggest import slim_model, suggest_widths
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.options import SweepOptions
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import existing_policy, run_here
from dst_analyze.sweep.training.trial import ModelSpec, Task


@dataclass(frozen=True, repr=False)
class Analysis:
    """What a sweep found; suggestions and proofs are made when they are asked for."""

    task: Task
    record: SweepRecord

    @property
    def traced(self) -> TracedModel:
        """The model that was swept, traced."""
        return self.task.traced

    @cached_property
    def ranking(self) -> Ranking:
        """The layers by redundancy, with how sure that is."""
        return rank_run(self.record)

    @cached_property
    def coupling(self) -> Coupling:
        """Which channels belong together."""
        return couple_channels(self.traced)

    def suggest_widths(self, *, write: bool = True, reinitialize: bool = False, **asked: Any) -> SlimPlan:
        """Return a suggestion: half of the parameters, unless `suggest_widths` is asked for another share.

        With ``write`` it is kept in the run folder, with the slim model as source and its weights: those that are
        left of the model given, or new ones (``reinitialize``).
        """
        plan = suggest_widths(self.traced, self.ranking, coupling=self.coupling, **asked)
        if write:
            written = write_suggestion(
                self.record.folder, self.traced, plan, self.coupling, reinitialize=reinitialize, record=self.record
            )
            plan = written.plan
            if written.no_source:
                warnings.warn(f"the slim model is not written as source: {written.no_source}", stacklevel=2)
        return plan

    @renamed_arguments(fresh="reinitialize")
    def slim(self, **asked: Any) -> SlimPlan:
        """Return `suggest_widths`; the old name, for one release."""
        warn_renamed("Analysis.slim()", "Analysis.suggest_widths()", stacklevel=3)
        return self.suggest_widths(**asked)

    def slim_model(self, plan: SlimPlan, *, reinitialize: bool = False) -> fx.GraphModule:
        """Return the slim model, with the weights that are left of the model given, or with new ones."""
        return slim_model(self.traced, plan, reinitialize=reinitialize, coupling=self.coupling)

    @renamed_arguments(fresh="reinitialize")
    def build(self, plan: SlimPlan, **asked: Any) -> fx.GraphModule:
        """Return `slim_model`; the old name, for one release."""
        warn_renamed("Analysis.build()", "Analysis.slim_model()", stacklevel=3)
        return self.slim_model(plan, **asked)

    def verify(
        self,
        plan: SlimPlan,
        *,
        seeds: int = 3,
        steps: int | None = None,
        jobs: int | None = None,
        engine: EngineName = "local",
        ray_address: str | None = None,
        listener: Emit = ignore_event,
    ) -> Verification:
        """The suggestion trained against the dense model and others of its size; kept in the run folder.

        ``jobs``, ``engine`` and ``ray_address`` as in `run_sweep`.
        """
        task = self.task
        if steps is not None:
            task = replace(task, steps=steps, recipe=task.recipe.lasting(steps))
        with Workers(jobs, engine, ray_address, here=True).started(task, None) as workers:
            return verify_and_save(task, self.record, plan, seeds, workers, listener)

    def baselines(self, methods: Sequence[Method] = METHODS) -> MethodComparison:
        """The ranking beside those by other ways, measured on the dense model and kept in the run folder."""
        return compare_methods(self.record, self.ranking, baselines_of(self.task, self.record, methods))

    def report(self) -> Path:
        """Write the report into the run folder and return the path of its page."""
        return write_report(self.record.folder, self.ranking)

    # --- the report's figures, each upon the axes given, else upon new ones ---

    def plot_pattern(self, axes: Axes | None = None) -> Axes:
        """Layers x alphas: what remains, in percent."""
        return notebook.pattern(self.record, self.ranking, axes)

    def plot_training(self, alpha: float | None = None, axes: Axes | None = None) -> Axes:
        """What remains of each layer over training, at the strongest alpha unless another is given."""
        return notebook.training(self.record, alpha, axes)

    def plot_graph(self, axes: Axes | None = None, *, fold: bool = True) -> Axes:
        """The architecture, its layers in the colours of their redundancy; blocks built alike are folded into one."""
        return notebook.graph(self.record, self.ranking, axes, fold=fold)

    def plot_widths(self, plan: SlimPlan | None = None, axes: Axes | None = None) -> Axes:
        """Widths before and after, of the plan given, else of the one in the run folder."""
        return notebook.widths(plan or read_plan(self.record), axes)

    def __repr__(self) -> str:
        return (
            f"Analysis({self.record.manifest.model.name!r}, {str(self.ranking.verdict)!r}, {str(self.record.folder)!r})"
        )

    def _repr_html_(self) -> str:
        return self.ranking._repr_html_()


def analyze(
    model: ModelSpec,
    data: Any = None,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    force: bool = False,
    jobs: int | None = None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    listener: Emit = ignore_event,
    progress: bool | None = None,
    **options: Unpack[SweepOptions],
) -> Analysis:
    """Sweep a model, or what a spec names, and rank its layers; arguments are those of `run_sweep`."""
    existing = existing_policy(resume=resume, retry_failed=retry_failed, force=force)
    plan = plan_sweep(model, data, out=out, existing=existing, **options)
    return Analysis(plan.task, run_here(plan, Workers(jobs, engine, ray_address, here=True), listener, progress))

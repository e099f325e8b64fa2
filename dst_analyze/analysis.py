"""`analyze` for notebooks: a sweep in one call, then its ranking, suggestions and proofs from one object."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Unpack

from matplotlib.axes import Axes
from torch import fx

from dst_analyze.baselines.agreement import MethodComparison, compare_methods
from dst_analyze.baselines.measure import baselines_of
from dst_analyze.baselines.values import METHODS, Method
from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.deprecation import renamed_arguments, warn_renamed
from dst_analyze.errors import OptionError
from dst_analyze.integrations.formats import exporters_of
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.load import rank_run
from dst_analyze.ranking.result import Ranking
from dst_analyze.report import notebook
from dst_analyze.report.page import write_report
from dst_analyze.run.events import Emit, ignore_event
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.artifacts import write_suggestion
from dst_analyze.slimming.kept import read_plan
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.suggest import suggest_widths
from dst_analyze.slimming.proof.ladder import sizes_of
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.slimming.proof.result import Seeds, Verification, looks_of
from dst_analyze.slimming.proving import RunProof, verify_and_save
from dst_analyze.slimming.surgery.slim_model import slim_model
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.budget import plan_within
from dst_analyze.sweep.planning.options import SweepOptions
from dst_analyze.sweep.run_sweep import existing_policy, run_here
from dst_analyze.sweep.training.trial import ModelSpec, Task


@dataclass(frozen=True, repr=False)
class Analysis:
    """The results of a sweep; suggestions, proofs and figures are computed on request.

    Attributes:
        task: The model, data and recipe of the sweep.
        record: The sweep as its run folder holds it.

    Example:
        >>> import tempfile, torch
        >>> from dst_analyze import analyze
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> x = torch.randn(64, 4)
        >>> data = x, (x[:, 0] > 0).long()
        >>> analysis = analyze(net, data, alphas=[1e-5], seeds=1, steps=40, out=f"{tempfile.mkdtemp()}/run")
        >>> sorted(analysis.ranking.table["layer"])
        ['0', '2']
    """

    task: Task
    record: SweepRecord

    @property
    def traced(self) -> TracedModel:
        """The traced model of the sweep."""
        return self.task.traced

    @cached_property
    def ranking(self) -> Ranking:
        """The layers ordered by redundancy, with confidence intervals."""
        return rank_run(self.record)

    @cached_property
    def coupling(self) -> Coupling:
        """The groups of channels that must shrink together."""
        return couple_channels(self.traced)

    def suggest_widths(
        self, *, write: bool = True, reinitialize: bool = False, formats: str | Sequence[str] = (), **asked: Any
    ) -> SlimPlan:
        """Return suggested widths, and write them into the run folder.

        Args:
            write: Write the plan, the slim model's source and its weights into the run folder.
            reinitialize: Write newly drawn weights, not those that are left of the given model.
            formats: Other formats to write, such as "onnx" or ("export", "hub"), as ``--format`` names them.
            **asked: Options of `suggest_widths`, such as ``target_params``; the size is by default the one that
                the sweep's masks let one expect to be enough.

        Returns:
            The plan, for `slim_model` and `verify`.
        """
        exporters = exporters_of(formats)
        plan = suggest_widths(self.traced, self.ranking, coupling=self.coupling, **asked)
        if write:
            written = write_suggestion(
                self.record.folder,
                self.traced,
                plan,
                self.coupling,
                reinitialize=reinitialize,
                record=self.record,
                ranking=self.ranking,
                exporters=exporters,
                task=lambda: self.task,
            )
            for export in written.exports:
                if export.reason:
                    warnings.warn(f"not written as {export.format}: {export.reason}", stacklevel=2)
            plan = written.plan
            if written.no_source:
                warnings.warn(f"the slim model is not written as source: {written.no_source}", stacklevel=2)
        return plan

    @renamed_arguments(fresh="reinitialize")
    def slim(self, **asked: Any) -> SlimPlan:
        """Return `suggest_widths()`; the old name, kept for one release."""
        warn_renamed("Analysis.slim()", "Analysis.suggest_widths()", stacklevel=3)
        return self.suggest_widths(**asked)

    def slim_model(self, plan: SlimPlan, *, reinitialize: bool = False) -> fx.GraphModule:
        """Return the slim model with the weights that are left of the given model, or with new ones."""
        return slim_model(self.traced, plan, reinitialize=reinitialize, coupling=self.coupling)

    @renamed_arguments(fresh="reinitialize")
    def build(self, plan: SlimPlan, **asked: Any) -> fx.GraphModule:
        """Return `slim_model()`; the old name, kept for one release."""
        warn_renamed("Analysis.build()", "Analysis.slim_model()", stacklevel=3)
        return self.slim_model(plan, **asked)

    def verify(
        self,
        plan: SlimPlan,
        *,
        seeds: Seeds = "auto",
        fine_tune: bool = False,
        check_length: bool = False,
        steps: int | None = None,
        jobs: int | None = None,
        engine: EngineName = "local",
        ray_address: str | None = None,
        listener: Emit = ignore_event,
    ) -> Verification:
        """Train the suggestion, the dense model and others of the same size; save the result in the run folder.

        Args:
            plan: The suggestion to verify.
            seeds: Number of trainings of each model; "auto" adds seeds until every comparison is decided.
            fine_tune: Also train the same widths on from the weights of a trained dense model.
            check_length: Also train the dense model five times as long.
            steps: Steps of each training; those of the sweep's trials by default.
            jobs: Trainings at once, as in `run_sweep`.
            engine: "local" or "ray", as in `run_sweep`.
            ray_address: Address of a Ray cluster, as in `run_sweep`.
            listener: Called with every event.

        Returns:
            The scores and costs of every model, with a verdict.
        """
        task = self.task
        if steps is not None:
            task = replace(task, steps=steps, recipe=task.recipe.lasting(steps))
        with Workers(jobs, engine, ray_address, here=True).started(task, None) as workers:
            return verify_and_save(
                task, self.record, plan, seeds, workers, listener, fine_tune=fine_tune, check_length=check_length
            )

    def ladder(
        self,
        plan: SlimPlan,
        *,
        rungs: Sequence[float] | None = None,
        by: Literal["params", "macs", "both"] = "params",
        seeds: Seeds = "auto",
        jobs: int | None = None,
        engine: EngineName = "local",
        ray_address: str | None = None,
        listener: Emit = ignore_event,
    ) -> LadderProof:
        """Verify the suggestion at several sizes; save the result in the run folder.

        Args:
            plan: A suggestion, whose rule and limits hold at every size.
            rungs: Shares of the parameters or MACs; 75, 50, 25 and 10 % by default.
            by: What they are shares of.
            seeds: Number of trainings of each model, as in `verify`.
            jobs: Trainings at once, as in `run_sweep`.
            engine: "local" or "ray", as in `run_sweep`.
            ray_address: Address of a Ray cluster, as in `run_sweep`.
            listener: Called with every event.

        Returns:
            The proof of each size, with a verdict for each axis.
        """
        sizes = sizes_of(rungs, ("params", "macs") if by == "both" else (by,))
        with Workers(jobs, engine, ray_address, here=True).started(self.task, None) as workers:
            return RunProof(self.task, self.ranking, plan, workers, listener).ladder(sizes, seeds)

    def smallest(
        self,
        plan: SlimPlan,
        *,
        seeds: Seeds = "auto",
        jobs: int | None = None,
        engine: EngineName = "local",
        ray_address: str | None = None,
        listener: Emit = ignore_event,
    ) -> SlimPlan:
        """Return the smallest plan that is level with the dense model, found by training, and write it.

        Args:
            plan: A suggestion, whose rule and limits hold at every size.
            seeds: Number of trainings of each model, as in `verify`; two at least.
            jobs: Trainings at once, as in `run_sweep`.
            engine: "local" or "ray", as in `run_sweep`.
            ray_address: Address of a Ray cluster, as in `run_sweep`.
            listener: Called with every event.

        Returns:
            The plan, which the run folder has then in place of the one before.
        """
        if looks_of(seeds)[-1] < 2:
            raise OptionError("one seed decides no size", place=f"seeds={seeds}", hint="give 3 or more, or 'auto'")
        with Workers(jobs, engine, ray_address, here=True).started(self.task, None) as workers:
            return RunProof(self.task, self.ranking, plan, workers, listener).search(seeds).plan

    def baselines(self, methods: Sequence[Method] = METHODS) -> MethodComparison:
        """Return the ranking compared with other methods, measured on the dense model and saved in the run folder."""
        return compare_methods(self.record, self.ranking, baselines_of(self.task, self.record, methods))

    def report(self) -> Path:
        """Write the report into the run folder and return the path of its page."""
        return write_report(self.record.folder, self.ranking)

    # --- the report's figures, drawn on the given axes or on new ones ---

    def plot_pattern(self, axes: Axes | None = None) -> Axes:
        """Draw the remaining ratio of each layer at each alpha, in percent."""
        return notebook.pattern(self.record, self.ranking, axes)

    def plot_training(self, alpha: float | None = None, axes: Axes | None = None) -> Axes:
        """Draw each layer's remaining ratio over training, at the strongest alpha unless another is given."""
        return notebook.training(self.record, alpha, axes)

    def plot_graph(self, axes: Axes | None = None, *, fold: bool = True) -> Axes:
        """Draw the model's graph, coloured by redundancy; ``fold`` draws repeated blocks once."""
        return notebook.graph(self.record, self.ranking, axes, fold=fold)

    def plot_widths(self, plan: SlimPlan | None = None, axes: Axes | None = None) -> Axes:
        """Draw the widths before and after, of the given plan or of the one in the run folder."""
        return notebook.widths(plan or read_plan(self.record), axes)

    def __repr__(self) -> str:
        return (
            f"Analysis({self.record.manifest.model.name!r}, {str(self.ranking.verdict)!r}, {str(self.record.folder)!r})"
        )

    def _repr_html_(self) -> str:
        return notebook.first_screen(self.record, self.ranking) + self.ranking._repr_html_()


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
    """Run a sweep and return its results: the layers ranked, with suggestions and proofs on request.

    Args:
        model: A module, a function that builds one, or a spec such as "model.py:Net", as in `run_sweep`.
        data: Training data, or a pair of (train, test), as in `run_sweep`.
        out: The run folder; "reports/NAME-HASH" by default.
        resume: Finish an incomplete run.
        retry_failed: Finish an incomplete run and repeat its failed trials.
        force: Replace an existing run.
        jobs: Trials at once; above 1 they run in worker processes.
        engine: "local" or "ray".
        ray_address: Address of a Ray cluster, with ``engine="ray"``.
        listener: Called with every event.
        progress: Show progress bars in a notebook; False for none.
        **options: The remaining options of `run_sweep`, such as ``alphas``, ``seeds`` and ``steps``.

    Returns:
        The results, with ``ranking``, ``suggest_widths()``, ``verify()`` and ``report()``.

    Raises:
        OptionError: An option has an invalid value.
        ModelError: The model cannot be loaded, traced or trained.
        DataError: The data do not fit the model.
        FolderError: The run folder exists and neither ``resume`` nor ``force`` is given.

    Example:
        >>> import tempfile, torch
        >>> from dst_analyze import analyze
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> x = torch.randn(64, 4)
        >>> data = x, (x[:, 0] > 0).long()
        >>> analysis = analyze(net, data, alphas=[1e-5], seeds=1, steps=40, out=f"{tempfile.mkdtemp()}/run")
        >>> analysis.record.complete
        True
    """
    existing = existing_policy(resume=resume, retry_failed=retry_failed, force=force)
    workers = Workers(jobs, engine, ray_address, here=True)
    plan = plan_within(model, data, jobs=workers.count, out=out, existing=existing, told=listener, **options)
    return Analysis(plan.task, run_here(plan, workers, listener, progress))

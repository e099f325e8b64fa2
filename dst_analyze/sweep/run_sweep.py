"""`run_sweep`: run the missing trials of a sweep with an engine and write each to the run folder as it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from dst_analyze.errors import DstError, OptionError
from dst_analyze.run.alpha_search import schedule_of
from dst_analyze.run.events import (
    Emit,
    SweepExtended,
    SweepFinished,
    SweepStarted,
    TimeEstimated,
    TrialFailed,
    TrialFinished,
    broadcast,
    ignore_event,
)
from dst_analyze.run.progress import progress_shown
from dst_analyze.run.reader import read_run
from dst_analyze.run.record import SweepRecord, TrialOutput
from dst_analyze.run.writer import Existing, RunFolder, open_run
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.jobs import Trial, WarmUp
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.budget import plan_within
from dst_analyze.sweep.planning.description.header import header_of
from dst_analyze.sweep.planning.estimates.cost import estimate_of
from dst_analyze.sweep.planning.options import SweepOptions
from dst_analyze.sweep.planning.plan import Plan
from dst_analyze.sweep.training.trial import ModelSpec, Task, WarmUpResult
from dst_analyze.sweep.training.warm_start import Origin, missing_starts


def run_sweep(
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
) -> SweepRecord:
    """Train a model once per alpha and seed, and record the remaining ratio of each layer.

    Results do not depend on ``jobs`` or ``engine``. A complete run in the folder is read, not repeated.

    Args:
        model: A module, a function that builds one, or a spec such as "model.py:Net" or "example:lenet-5".
        data: Whatever train_data() of a model file may return (a DataLoader, a Dataset, tensors), a pair of
            (train, test), or the name of a data set; the model file's own data by default.
        out: The run folder; "reports/NAME-HASH" by default.
        resume: Finish an incomplete run.
        retry_failed: Finish an incomplete run and repeat its failed trials.
        force: Replace an existing run.
        jobs: Trials at once; above 1 they run in worker processes, and a script needs ``if __name__ == "__main__"``.
        engine: "local" for this machine, "ray" for Ray tasks.
        ray_address: The Ray cluster to use; by default the connected one, else a new one on this machine.
        listener: Called with every event.
        progress: Show progress bars in a notebook; False for none.
        **options: Further options, see `SweepOptions`: ``alphas``, ``seeds``, ``steps`` or ``epochs``, ``lr``, ...

    Returns:
        The record of the run, for `rank_layers`.

    Raises:
        OptionError: An option has an invalid value.
        ModelError: The model cannot be loaded, traced or trained.
        DataError: The data do not fit the model.
        FolderError: The run folder exists and neither ``resume`` nor ``force`` is given.

    Example:
        >>> import tempfile, torch
        >>> from dst_analyze import run_sweep
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
        >>> x = torch.randn(64, 4)
        >>> data = x, (x[:, 0] > 0).long()
        >>> record = run_sweep(net, data, alphas=[1e-5], seeds=1, steps=40, out=f"{tempfile.mkdtemp()}/run")
        >>> record.complete, list(record.layers["layer"])
        (True, ['0', '2'])
    """
    existing = existing_policy(resume=resume, retry_failed=retry_failed, force=force)
    workers = Workers(jobs, engine, ray_address, here=True)
    plan = plan_within(model, data, jobs=workers.count, out=out, existing=existing, told=listener, **options)
    return run_here(plan, workers, listener, progress)


def run_here(plan: Plan, workers: Workers, listener: Emit = ignore_event, progress: bool | None = None) -> SweepRecord:
    """Run a plan from a Python program, with progress bars in a notebook."""
    with progress_shown(plan.manifest, progress) as bars:
        estimate_time = workers.engine == "local" and bars is not ignore_event
        with workers.started(plan.task, plan.request, trials_of(plan)) as engine:
            return run_plan(plan, broadcast(bars, listener), engine, estimate_time=estimate_time)


def run_plan(
    plan: Plan, emit: Emit = ignore_event, engine: Engine | None = None, *, estimate_time: bool = False
) -> SweepRecord:
    """Run the trials of a plan that are missing from its folder; without an engine, in this process.

    ``estimate_time``: emit an estimate of the time on this machine first.
    """
    with open_folder(plan, emit) as folder:
        return run_trials(plan, folder, emit, engine, estimate_time=estimate_time)


def open_folder(plan: Plan, emit: Emit = ignore_event) -> AbstractContextManager[RunFolder]:
    """Hold the run folder of a plan, ready for its trials; the lock lasts as long as the block."""
    header = header_of(plan.task.config, plan.manifest, plan.task.traced, plan.coupling)
    return open_run(plan.out, header, plan.existing, emit)


def run_trials(
    plan: Plan,
    folder: RunFolder,
    emit: Emit = ignore_event,
    engine: Engine | None = None,
    *,
    estimate_time: bool = False,
) -> SweepRecord:
    """`run_plan` in a folder that is open already."""
    engine = engine or InProcessEngine()
    made = folder.manifest
    task = replace(
        plan.task, threads=made.threads, warm_up_threads=made.warm_up_threads or made.threads, config=folder.config
    )
    seen = folder.look()
    total = len(seen.schedule.keys)
    emit(SweepStarted(str(plan.out), total, len(seen.results), task.steps, engine.jobs, task.threads))
    warmed: dict[Origin, bytes | None] = {}
    if plan.first is not None:
        warmed[plan.task.config.seeds[0], False] = plan.first.weights
        if not task.recipe.warm_up:
            folder.write_trial(plan.first.output)
            seen = folder.look()
    if estimate_time and seen.missing and (plan.first or not task.own_loop):
        here = isinstance(engine, InProcessEngine)
        emit(_time_estimated(plan, engine.jobs, len(seen.results), in_workers=not here))
    while seen.missing:
        if task.recipe.warm_up:
            starts = map(WarmUp, missing_starts(seen.missing, warmed))
            with closing(engine.run(task, starts, emit)) as trained:
                results = dict(trained)
            _refuse_unlearned(task, results)
            warmed |= {start: result.weights for start, result in results.items()}
        ready = replace(task, warmed={start: weights for start, weights in warmed.items() if weights is not None})
        with closing(engine.run(ready, map(Trial, seen.missing), emit)) as outputs:
            for output in outputs:
                folder.write_trial(output)
                emit(_ended(output))
        seen = folder.look()
        if len(seen.schedule.keys) > total:
            total = len(seen.schedule.keys)
            emit(SweepExtended(total))
    record = read_run(plan.out)
    emit(SweepFinished(str(plan.out), record.complete))
    return record


def _refuse_unlearned(task: Task, trained: Mapping[Origin, WarmUpResult]) -> None:
    """Stop a sweep whose model learns nothing without masks: its ranking would be noise."""
    judged = {start: result for start, result in trained.items() if not start[1]}
    if not judged or not all(result.not_learned for result in judged.values()):
        return
    recipe = task.recipe
    if recipe.hook is not None:
        changes = "a smaller rate in the file's optimizer()"
    elif recipe.family == "sgd":
        changes = f"--optimizer adamw, or a smaller rate (--lr {recipe.lr / 10:.2g})"
    else:
        changes = f"another rate (--lr {recipe.lr / 10:.2g})"
    raise DstError(
        f"the model does not learn, so there is nothing to rank: {next(iter(judged.values())).not_learned} with "
        f"{recipe.describe().partition(';')[0]}",
        place="the training that all trials start from",
        hint=f"{changes}; more --steps; inputs from 0 to 1 or normalised; --warm-up 0 sweeps without this check",
    )


def _time_estimated(plan: Plan, jobs: int, done: int, *, in_workers: bool) -> TimeEstimated:
    if plan.first is not None:
        rounds = math.ceil(max(trials_of(plan) - done, 1) / jobs)
        return TimeEstimated(rounds * plan.first.seconds, rounds * plan.first.seconds)
    cost = estimate_of(plan, jobs, in_workers=in_workers)
    likely, most = (cost.busy * cost.seconds(max(trials - done, 1)) for trials in (cost.trials, cost.most_trials))
    return TimeEstimated(likely, most, cost.trials, cost.most_trials, cost.busy)


def trials_of(plan: Plan) -> int:
    """Return the number of trials known before the sweep starts; the search for alphas may add more."""
    return len(schedule_of(plan.task.config, plan.manifest.first_alphas, {}).keys)


def existing_policy(*, resume: bool, retry_failed: bool, force: bool) -> Existing:
    """Return the policy that the three switches set for an existing run."""
    if force and (resume or retry_failed):
        raise OptionError(
            "it replaces the run, while --resume and --retry-failed continue it: they exclude each other",
            place="--force",
            hint="give one of them",
        )
    return "force" if force else "retry" if retry_failed else "resume" if resume else "refuse"


def _ended(output: TrialOutput) -> TrialFinished | TrialFailed:
    result, seconds = output.result, round(output.seconds, 3)
    if result.status == "done":
        return TrialFinished(result.key, result.loss, result.score, result.remaining, seconds)
    return TrialFailed(result.key, result.status, result.reason, seconds)

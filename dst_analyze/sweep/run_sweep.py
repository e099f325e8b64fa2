"""The sweep: the trials that are missing are run by an engine and written to the run folder as they finish."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from dst_analyze.errors import DstError, OptionError
from dst_analyze.model.inputs.stand_in import describe_inputs
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
from dst_analyze.run.record import ExampleInputs, SweepRecord, TrialOutput
from dst_analyze.run.writer import Existing, RunHeader, open_run
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.jobs import Trial, WarmUp
from dst_analyze.sweep.engines.workers import EngineName, Workers
from dst_analyze.sweep.planning.cost import estimate_of
from dst_analyze.sweep.planning.graph_summary import layer_groups, summarize_graph
from dst_analyze.sweep.planning.options import SweepOptions
from dst_analyze.sweep.planning.plan import Plan, plan_sweep
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
    """Train a model, or what a spec names, once per alpha and seed, and record how much of each layer remains.

    ``data`` is what train_data() of a model file may return, or a pair of (train, test); without it the file's own
    are used. ``options`` are the fields of `SweepConfig`: alphas, seeds, epochs or steps, batch_size, lr, include,
    exclude, threshold, estimator, operator. The run folder is ``out``, else reports/<model>-<hash>; a run that is
    complete there is read, not repeated; ``resume`` finishes one that is not, ``retry_failed`` also runs failed trials
    again, ``force`` starts over. ``jobs`` above 1 trains in as many worker processes at once, with the same results;
    a script that asks for it must be importable (``if __name__ == "__main__"``). ``engine="ray"`` trains in Ray tasks
    instead: in the cluster at ``ray_address``, in that of a process that has called ray.init(), or in one of this
    machine, started for this sweep. ``listener`` gets every event; ``progress`` shows bars, in a notebook unless False.
    """
    existing = existing_policy(resume=resume, retry_failed=retry_failed, force=force)
    plan = plan_sweep(model, data, out=out, existing=existing, **options)
    return run_here(plan, Workers(jobs, engine, ray_address, here=True), listener, progress)


def run_here(plan: Plan, workers: Workers, listener: Emit = ignore_event, progress: bool | None = None) -> SweepRecord:
    """Run a plan from a program, with bars in a notebook."""
    with progress_shown(plan.manifest, progress) as bars:
        estimate_time = workers.engine == "local" and bars is not ignore_event
        with workers.started(plan.task, plan.request, trials_of(plan)) as engine:
            return run_plan(plan, broadcast(bars, listener), engine, estimate_time=estimate_time)


def run_plan(
    plan: Plan, emit: Emit = ignore_event, engine: Engine | None = None, *, estimate_time: bool = False
) -> SweepRecord:
    """Run the trials of a plan that its folder does not hold yet; without an engine, in this process.

    ``estimate_time``: say how long that will take on this machine.
    """
    engine = engine or InProcessEngine()
    with open_run(plan.out, _header(plan), plan.existing, emit) as folder:
        task = replace(plan.task, threads=folder.manifest.threads, config=folder.config)
        seen = folder.look()
        total = len(seen.schedule.keys)
        emit(SweepStarted(str(plan.out), total, len(seen.results), task.steps, engine.jobs, task.threads))
        if estimate_time and seen.missing:
            emit(_time_estimated(plan, engine.jobs, len(seen.results)))
        warmed: dict[Origin, bytes | None] = {}
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


def _header(plan: Plan) -> RunHeader:
    traced, coupling = plan.task.traced, plan.coupling
    inputs = describe_inputs(traced.inputs)
    return RunHeader(
        plan.task.config,
        plan.manifest,
        traced.table.rename(columns={"name": "layer"}),
        summarize_graph(traced),
        None if isinstance(coupling, DstError) else layer_groups(traced, coupling),
        None if inputs is None else ExampleInputs(**inputs),
    )


def _time_estimated(plan: Plan, jobs: int, done: int) -> TimeEstimated:
    cost = estimate_of(plan, jobs)
    return TimeEstimated(cost.seconds(max(cost.trials - done, 1)), cost.seconds(max(cost.most_trials - done, 1)))


def trials_of(plan: Plan) -> int:
    """How many there are, as far as it is known before the first has ended."""
    return len(schedule_of(plan.task.config, plan.manifest.first_alphas, {}).keys)


def existing_policy(*, resume: bool, retry_failed: bool, force: bool) -> Existing:
    """What three switches mean for a run that is there already."""
    if force and (resume or retry_failed):
        raise OptionError(
            "it starts over, --resume and --retry-failed go on: they exclude each other",
            place="--force",
            hint="give one of them",
        )
    return "force" if force else "retry" if retry_failed else "resume" if resume else "refuse"


def _ended(output: TrialOutput) -> TrialFinished | TrialFailed:
    result, seconds = output.result, round(output.seconds, 3)
    if result.status == "done":
        return TrialFinished(result.key, result.loss, result.score, result.remaining, seconds)
    return TrialFailed(result.key, result.status, result.reason, seconds)

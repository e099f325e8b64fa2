"""The sweep: the trials that are missing are run by an engine and written to the run folder as they finish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack

from dst_analyze.errors import OptionError
from dst_analyze.run.alpha_search import course_of
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
from dst_analyze.run.writer import Existing, RunHeader, open_run
from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.jobs import Trial, WarmUp
from dst_analyze.sweep.engines.process_engine import ProcessEngine
from dst_analyze.sweep.engines.resources import cores, default_jobs
from dst_analyze.sweep.planning.cost import estimate_of
from dst_analyze.sweep.planning.graph_summary import summarize_graph
from dst_analyze.sweep.planning.options import SweepOptions
from dst_analyze.sweep.planning.plan import Plan, Request, plan_sweep
from dst_analyze.sweep.training.trial import ModelSpec, Task
from dst_analyze.sweep.training.warm_start import Origin, missing_starts

EngineName = Literal["local", "ray"]


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
    return run_here(plan, jobs, engine, ray_address, listener, progress)


def run_here(
    plan: Plan,
    jobs: int | None,
    engine: EngineName = "local",
    ray_address: str | None = None,
    listener: Emit = ignore_event,
    progress: bool | None = None,
) -> SweepRecord:
    """Run a plan from a program: in its own process, unless it asks for several jobs or for Ray."""
    with progress_shown(plan.manifest, progress) as bars:
        estimate_time = engine == "local" and bars is not ignore_event
        with chosen_engine(plan.task, plan.request, engine, jobs, ray_address, trials_of(plan), here=True) as workers:
            return run_plan(plan, broadcast(bars, listener), workers, estimate_time=estimate_time)


def run_plan(
    plan: Plan, emit: Emit = ignore_event, engine: Engine | None = None, *, estimate_time: bool = False
) -> SweepRecord:
    """Run the trials of a plan that its folder does not hold yet; without an engine, in this process.

    ``estimate_time``: say how long that will take on this machine.
    """
    engine = engine or InProcessEngine()
    config = plan.task.config
    traced = plan.task.traced
    head = RunHeader(config, plan.manifest, traced.table.rename(columns={"name": "layer"}), summarize_graph(traced))
    with open_run(plan.out, head, plan.existing, emit) as folder:
        task = replace(plan.task, threads=folder.manifest.threads, config=folder.config)
        seen = folder.look()
        total = len(seen.course.keys)
        emit(SweepStarted(str(plan.out), total, len(seen.results), task.steps, engine.jobs, task.threads))
        if estimate_time and seen.missing:
            emit(_time_estimated(plan, engine.jobs, len(seen.results)))
        warmed: dict[Origin, bytes | None] = {}
        while seen.missing:
            if task.recipe.warm_up:
                starts = map(WarmUp, missing_starts(seen.missing, warmed))
                with closing(engine.run(task, starts, emit)) as trained:
                    warmed |= dict(trained)
            ready = replace(task, warmed={start: weights for start, weights in warmed.items() if weights is not None})
            with closing(engine.run(ready, map(Trial, seen.missing), emit)) as outputs:
                for output in outputs:
                    folder.write_trial(output)
                    emit(_ended(output))
            seen = folder.look()
            if len(seen.course.keys) > total:
                total = len(seen.course.keys)
                emit(SweepExtended(total))
        record = read_run(plan.out)
        emit(SweepFinished(str(plan.out), record.complete))
    return record


def _time_estimated(plan: Plan, jobs: int, done: int) -> TimeEstimated:
    cost = estimate_of(plan, jobs)
    return TimeEstimated(cost.seconds(max(cost.trials - done, 1)), cost.seconds(max(cost.most_trials - done, 1)))


@contextmanager
def chosen_engine(
    task: Task,
    request: Request | None,
    name: EngineName,
    jobs: int | None,
    ray_address: str | None,
    job_count: int | None = None,
    *,
    here: bool = False,
) -> Iterator[Engine]:
    """Workers, as many as asked for, else as many as pay: processes of this machine, or Ray's.

    ``job_count`` is how many there are, None if more than cores; ``request`` is how a worker plans the task itself if
    it cannot be sent. ``here`` for a program that calls us: its own process, unless it wants several jobs or Ray.
    """
    if here and name == "local" and ray_address is None and check_jobs(jobs or 1) == 1:
        yield InProcessEngine()
        return
    pays = jobs_of(task, jobs, job_count)
    if name == "local":
        if ray_address is not None:
            raise OptionError("local workers have no address", place="--ray-address", hint="add --engine ray")
        yield ProcessEngine(pays, request)
        return
    try:
        from dst_analyze.sweep.engines import ray_engine
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise OptionError("Ray is not installed", place="--engine ray", hint="pip install 'dst-analyze[ray]'") from None
    with ray_engine.connected(ray_address, pays * task.threads):
        yield ray_engine.RayEngine(task, jobs, request)


def jobs_of(task: Task, jobs: int | None, job_count: int | None) -> int:
    """How many jobs run at once: as many as asked for, else as many as pay."""
    if jobs is not None:
        return check_jobs(jobs)
    return default_jobs(task.threads, cores() if job_count is None else job_count, task.traced.params)


def trials_of(plan: Plan) -> int:
    """How many there are, as far as it is known before the first has ended."""
    return len(course_of(plan.task.config, plan.manifest.first_alphas, {}).keys)


def check_jobs(jobs: int) -> int:
    """Return the number of jobs, or raise an OptionError if it is none."""
    if jobs < 1:
        raise OptionError(f"{jobs} trials at once make no sweep", place="--jobs", hint="give a number from 1")
    return jobs


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

"""`dst-analyze MODEL`: the whole job, from a model to its report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dst_analyze.cli.browser import open_in_browser
from dst_analyze.cli.default_group import DEFAULT, PROGRAM
from dst_analyze.cli.option_types import Sectioned
from dst_analyze.cli.options import (
    COMMON,
    data_options,
    machine_options,
    model_options,
    output_options,
    proof_options,
    slim_asked,
    slim_options,
    sweep_options,
    training_options,
    trying_options,
    worker_options,
)
from dst_analyze.errors import DstError
from dst_analyze.sweep.engines import forkserver

if TYPE_CHECKING:
    from dst_analyze.run.events import Emit, Event
    from dst_analyze.slimming.proof.result import Seeds
    from dst_analyze.sweep.engines.workers import Workers
    from dst_analyze.sweep.planning.plan import Plan


@click.command(DEFAULT, cls=Sectioned, common=COMMON, hidden=True, add_help_option=False)
@model_options
@data_options
@sweep_options
@training_options
@machine_options
@worker_options
@slim_options
@proof_options
@output_options
@trying_options
@click.pass_context
def analyze(
    ctx: click.Context,
    /,
    model: str,
    model_args: tuple[str, ...],
    debug: bool,
    out: Path | None,
    resume: bool,
    retry_failed: bool,
    force: bool,
    jobs: int | None,
    engine: Literal["local", "ray"],
    ray_address: str | None,
    reinitialize: bool,
    formats: tuple[str, ...],
    verify: bool,
    verify_seeds: Seeds,
    fine_tune: bool,
    check_length: bool,
    baselines: str | None,
    open_page: bool,
    tensorboard: bool,
    wandb: str | None,
    mlflow: str | None,
    quiet: bool,
    verbose: bool,
    as_json: bool,
    dry_run: bool,
    fast_dev_run: bool,
    print_config: bool,
    **options: Any,
) -> int:
    """Do the whole job: sweep, ranking, slimmer architecture, report."""
    if engine == "local" and not (dry_run or print_config):
        forkserver.start_forkserver()  # workers import torch while this process does
    from dst_analyze.cli.configfile import WHERE, as_toml, keeping

    if print_config:
        click.echo(as_toml(ctx.command, ctx.params), nl=False)
        return 0
    from dst_analyze.baselines.values import methods_of
    from dst_analyze.cli.model_args import parse_model_args
    from dst_analyze.cli.terminal import console
    from dst_analyze.integrations.formats import exporters_of
    from dst_analyze.run.events import broadcast, ignore_event
    from dst_analyze.run.progress import JsonLines, Lines
    from dst_analyze.slimming.planning.budget import check_asked
    from dst_analyze.sweep.engines.workers import Workers
    from dst_analyze.sweep.planning.budget import parse_budget, plan_within
    from dst_analyze.sweep.planning.smoke_run import plan_fast
    from dst_analyze.sweep.run_sweep import existing_policy, open_folder, run_trials, trials_of

    asked = slim_asked(options)
    check_asked(asked)  # before hours of training, not after
    methods, exporters = methods_of(baselines), exporters_of(formats)
    given = {name: value for name, value in options.items() if value is not None}
    given["model_args"] = parse_model_args(model_args)
    existing = existing_policy(resume=resume, retry_failed=retry_failed, force=force)
    workers = Workers(jobs, engine, ray_address)
    with redirect_stdout(sys.stderr):  # what a user's file prints is no result
        if fast_dev_run:
            parse_budget(given.pop("budget", 1))  # it chooses nothing here, but has to be one
            plan = plan_fast(model, out=out, options=given)
            asked["rehearsal"] = True  # so few steps are no evidence, but the way to a slim model is to be tried
        else:
            says = ignore_event if quiet or as_json else _say
            plan = plan_within(model, jobs=workers.count, out=out, existing=existing, emit=says, **given)
    if given.get("budget") is not None and not (quiet or as_json):
        _say_evidence(plan)
    if dry_run:
        axes = [name for name in asked if name.startswith("target_")]
        _show_cost(plan, workers, verify_seeds if verify else None, axes, as_json=as_json)
        return 0
    events = JsonLines(sys.stdout) if as_json else None
    with redirect_stdout(sys.stderr), _interruptible(plan, ctx.obj, quiet=quiet or as_json), ExitStack() as job:
        track = job.enter_context(_tracking(tensorboard=tensorboard, wandb=wandb, mlflow=mlflow))
        with _listening(plan, events, quiet=quiet) as shown:
            emit = broadcast(keeping(as_toml(ctx.command, _as_planned(ctx.params, plan), WHERE)), track, shown)
            estimate_time = engine == "local" and not (quiet or fast_dev_run)  # what a cluster takes is not seen here
            with workers.started(plan.task, plan.request, trials_of(plan)) as trainers:
                folder = job.enter_context(open_folder(plan, emit))  # until the report is written
                record = run_trials(plan, folder, emit, trainers, estimate_time=estimate_time)
        from dst_analyze.pipeline import Wanted, finish  # here, as the report's figures take seconds to import
        from dst_analyze.slimming.proof.kept_scores import AskedProof

        lines = events or (ignore_event if quiet else Lines(plan.manifest, console(stderr=True)))
        proof = AskedProof(seeds=verify_seeds, fine_tune=fine_tune, check_length=check_length) if verify else None
        wanted = Wanted(asked, reinitialize, proof, methods, exporters)
        heard = broadcast(lines, track)
        outcome = finish(plan, record, wanted, workers, heard, warn=lambda text: click.echo(text, err=True))
    if not as_json:
        from dst_analyze.cli.summary import show_outcome

        show_outcome(console(), outcome, tables=verbose)
    if open_page:
        open_in_browser(outcome.page)
    exported = isinstance(outcome.suggestion, DstError) or outcome.suggestion.exported
    return 0 if record.complete and exported else 1


@contextmanager
def _interruptible(plan: Plan, args: Sequence[str], *, quiet: bool) -> Iterator[None]:
    """Let Ctrl-C say what was kept, and the command that goes on."""
    from dst_analyze.cli.terminal import escape_control
    from dst_analyze.run.reader import folder_status

    try:
        yield
    except KeyboardInterrupt:
        if not quiet:
            seen = folder_status(plan.out, plan.task.config, plan.manifest.first_alphas)
            kept, trials = len(seen.results), len(seen.schedule.keys)
            said = f"{kept} of {trials} trials are kept in {plan.out}" if kept else "no trial had ended yet"
            again = shlex.join([PROGRAM, *(arg for arg in args if arg != "--force")])
            resume = "" if "--resume" in args or not kept else " --resume"
            click.echo(f"\n{escape_control(said)}\ngo on with: {escape_control(again + resume)}", err=True)
        raise


def _say(event: Event) -> None:
    """Print what planning has to say."""
    from dst_analyze.run.events import Notice

    if isinstance(event, Notice):
        click.echo(event.text, err=True)


def _as_planned(params: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the options given, what a budget has chosen in its place: another machine would choose otherwise."""
    if params.get("budget") is None:
        return params
    config = plan.task.config
    return {**params, "budget": None, "steps": config.steps, "alphas": config.alphas}


def _say_evidence(plan: Plan) -> None:
    """Print what sweeps of this length are worth."""
    from dst_analyze.ranking.length_evidence import long_run_share

    recipe = plan.task.recipe
    share = long_run_share(recipe.steps, warm_up=recipe.warm_up > 0, unit=recipe.threshold_scale)
    if share is None:
        click.echo("no sweep as short as this has been compared with a long run: its order may well change", err=True)
    else:
        what = "pairs of layers that differ clearly"
        click.echo(f"of the {what}, sweeps of this length order about {share:.0%} as long runs do", err=True)


def _show_cost(plan: Plan, workers: Workers, verify_seeds: Seeds | None, axes: Sequence[str], *, as_json: bool) -> None:
    """Show what a sweep would cost, and a proof of a size on the ``axes`` that were asked for."""
    from dst_analyze.cli.terminal import console, show_rows
    from dst_analyze.slimming.planning.ladder import SHARES
    from dst_analyze.slimming.proof.result import CONTENDERS, looks_of
    from dst_analyze.sweep.planning.estimates.cost import estimate_of
    from dst_analyze.sweep.planning.estimates.dry_run import words
    from dst_analyze.sweep.run_sweep import trials_of

    with redirect_stdout(sys.stderr):
        cost = estimate_of(plan, workers.count(plan.task, trials_of(plan)))
    seeds = () if verify_seeds is None else looks_of(verify_seeds)
    models = len(CONTENDERS) - (len(axes) == 1)  # of one axis, uniform widths have their size already
    trainings = [models * count for count in seeds]
    if not axes and seeds and seeds[-1] > 1:  # the search for the size may try every rung
        trainings.append(trainings[-1] + len(SHARES) * seeds[-1])
    if as_json:
        click.echo(json.dumps(cost.as_json()))
    else:
        show_rows(console(), words(plan, cost, trainings))


@contextmanager
def _listening(plan: Plan, events: Emit | None, *, quiet: bool) -> Iterator[Emit]:
    """Whoever is told of a sweep's events at once: a program, or bars on the terminal."""
    from dst_analyze.cli.terminal import console
    from dst_analyze.run.events import ignore_event
    from dst_analyze.run.progress import watching

    if events is not None or quiet:
        yield events or ignore_event
        return
    with watching(plan.manifest, console(stderr=True)) as bars:
        yield bars


@contextmanager
def _tracking(*, tensorboard: bool, wandb: str | None, mlflow: str | None) -> Iterator[Emit]:
    """The trackers that were asked for, from a sweep's start to its report."""
    from dst_analyze.integrations.mlflow import log_to_mlflow
    from dst_analyze.integrations.tensorboard import drawing
    from dst_analyze.integrations.wandb import log_to_wandb
    from dst_analyze.run.events import broadcast

    with ExitStack() as stack:
        trackers = [drawing()] if tensorboard else []
        trackers += [log_to_wandb(wandb)] if wandb else []
        trackers += [log_to_mlflow(mlflow)] if mlflow else []
        yield broadcast(*map(stack.enter_context, trackers))

"""The command line: arguments in, exit code out. The only place that prints; torch is imported once it is needed."""

from __future__ import annotations

import json
import sys
import traceback
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from dst_analyze.cli.default_group import DEFAULT, PROGRAM, DefaultGroup, print_examples, print_version, usage_error
from dst_analyze.cli.options import (
    Sectioned,
    choice,
    data_options,
    data_root_option,
    debug_option,
    folder,
    json_option,
    machine_options,
    model_options,
    open_option,
    output_options,
    proof_options,
    run_argument,
    slim_asked,
    slim_options,
    sweep_options,
    training_options,
    trying_options,
    worker_options,
)
from dst_analyze.errors import DstError
from dst_analyze.sweep.engines import forkserver

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 in part, 2 bad input, 130 interrupted."""
    args = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name the terminal cannot spell must not end a run
    try:
        return int(commands.main(args, prog_name=PROGRAM, standalone_mode=False) or 0)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        return _failed(usage_error(error, args, commands.commands), args)
    except DstError as error:
        return _failed(error, args)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return _failed(DstError(said, hint="run with --debug to see where this comes from"), args)
    finally:
        forkserver.stop_forkserver()


def _failed(error: DstError, args: Sequence[str]) -> int:
    from dst_analyze.cli.terminal import console, error_text, escape_control

    if "--debug" in args:
        click.echo(escape_control(traceback.format_exc()), err=True)
    console(stderr=True).print(error_text(error), soft_wrap=True)
    return error.exit_code


@click.group(cls=DefaultGroup)
@click.option("--version", is_flag=True, callback=print_version, expose_value=False, is_eager=True)
@click.option("--list-examples", is_flag=True, callback=print_examples, expose_value=False, is_eager=True)
def commands() -> None:
    """Which layers of a PyTorch model are redundant, and how sure is that?

    MODEL is mymodel.py, mymodel.py:Net, package.module:factory, torchvision:resnet18 or timm:NAME. Its code is run.

    \b
    dst-analyze mymodel.py --dry-run                  what it would train, how long, in how much memory
    dst-analyze mymodel.py --alphas 1e-7,1e-6,1e-5    the whole job: sweep, ranking, slimmer model, report
    dst-analyze --config run.toml --open              the same from a file of options; opens the report
    dst-analyze inspect torchvision:resnet18
    dst-analyze --list-examples
    dst-analyze example:lenet-300-100
    dst-analyze rank reports/mymodel-1a2b3c4d --by params --top 10
    """


@commands.command(DEFAULT, cls=Sectioned, hidden=True, add_help_option=False)
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
    verify: bool,
    verify_seeds: int,
    baselines: str | None,
    open_page: bool,
    tensorboard: bool,
    quiet: bool,
    as_json: bool,
    dry_run: bool,
    fast_dev_run: bool,
    print_config: bool,
    **options: Any,
) -> int:
    """Sweep over the alphas and show what remains of each layer."""
    if engine == "local" and not (dry_run or print_config):
        forkserver.start_forkserver()  # workers import torch while this process does
    from dst_analyze.cli.configfile import WHERE, as_toml, keeping

    if print_config:
        click.echo(as_toml(ctx.command, ctx.params), nl=False)
        return 0
    from dst_analyze.baselines.values import methods_of
    from dst_analyze.cli.terminal import console, escape_control
    from dst_analyze.integrations.tensorboard import drawing
    from dst_analyze.model.loading.load import parse_model_args
    from dst_analyze.run.events import Notice, ReportWritten, broadcast, ignore_event
    from dst_analyze.run.progress import JsonLines, Lines, watching
    from dst_analyze.slimming.planning.budget import check_asked
    from dst_analyze.slimming.planning.plan_types import CONTENDERS
    from dst_analyze.sweep.planning.cost import estimate_of
    from dst_analyze.sweep.planning.dry_run import words
    from dst_analyze.sweep.planning.plan import plan_sweep
    from dst_analyze.sweep.planning.smoke_run import plan_fast
    from dst_analyze.sweep.run_sweep import chosen_engine, existing_policy, jobs_of, run_plan, trials_of

    asked = slim_asked(options)
    check_asked(asked)  # before hours of training, not after
    methods = methods_of(baselines)
    given = {name: value for name, value in options.items() if value is not None}
    given["model_args"] = parse_model_args(model_args)
    existing = existing_policy(resume=resume, retry_failed=retry_failed, force=force)
    with redirect_stdout(sys.stderr):  # what a user's file prints is no result
        if fast_dev_run:
            plan = plan_fast(model, out=out, options=given)
            asked["rehearsal"] = True  # so few steps are no evidence, but the way to a slim model is to be tried
        else:
            plan = plan_sweep(model, out=out, existing=existing, **given)
        cost = estimate_of(plan, jobs_of(plan.task, jobs, trials_of(plan))) if dry_run else None
    if cost is not None:
        described = words(plan, cost, verify_seeds * len(CONTENDERS) if verify else 0)
        rows = [f"{name:<12}{escape_control(text)}" for name, text in described]
        click.echo(json.dumps(asdict(cost)) if as_json else "\n".join(rows))
        return 0
    events, listeners = JsonLines(sys.stdout), [keeping(as_toml(ctx.command, ctx.params, WHERE))]
    with redirect_stdout(sys.stderr), ExitStack() as stack:
        if tensorboard:
            listeners.append(stack.enter_context(drawing()))
        hired = chosen_engine(plan.task, plan.request, engine, jobs, ray_address, trials_of(plan))
        workers = stack.enter_context(hired)
        if as_json:
            listeners.append(events)
        elif not quiet:
            listeners.append(stack.enter_context(watching(plan.manifest, console(stderr=True))))
        estimate_time = engine == "local" and not (quiet or fast_dev_run)  # what a cluster takes is not seen from here
        record = run_plan(plan, broadcast(*listeners), workers, estimate_time=estimate_time)
    from dst_analyze.baselines.measure import add_baselines
    from dst_analyze.report.page import write_report  # here, as its figures take seconds to import
    from dst_analyze.slimming.artifacts import rank_and_suggest, verify_and_save

    told = events if as_json else ignore_event if quiet else Lines(plan.manifest, console(stderr=True))
    with redirect_stdout(sys.stderr):
        again = bool(asked or reinitialize)
        ranking, suggestion = rank_and_suggest(plan.task.traced, record, asked, again=again, reinitialize=reinitialize)
        proof = None
        if not isinstance(suggestion, DstError):
            if suggestion.plan.is_advice:
                told(suggestion.event())
            if verify:
                told(Notice(f"the report so far: {write_report(record.folder, ranking)}"))
                with chosen_engine(plan.task, plan.request, engine, jobs, ray_address) as workers:
                    proof = verify_and_save(plan.task, record, suggestion.plan, verify_seeds, workers, told)
        if methods:
            add_baselines(plan.task, record, methods, (lambda _: None) if quiet or as_json else _say, failed=_say)
    page = write_report(record.folder, ranking)
    told(ReportWritten(str(page)))
    if not as_json:
        from dst_analyze.cli.summary import show_outcome

        show_outcome(console(), record, ranking, suggestion, proof, page)
    if open_page:
        _open(page)
    return 0 if record.complete else 1


def _open(page: Path) -> None:
    """Show a page in the browser that BROWSER names, or the system's."""
    if not webbrowser.open(page.resolve().as_uri()):
        click.echo("no browser was found to open the report in", err=True)


@commands.command()
@run_argument
@slim_options
@folder("--out", "Where to write.  [default: the run folder]")
@data_root_option
@debug_option
def slim(
    run_folder: Path, out: Path | None, data_root: Path | None, reinitialize: bool, debug: bool, **options: Any
) -> None:
    """Suggest a slimmer architecture from a run, build it, and write it as code. Runs the model's file.

    \b
    dst-analyze slim reports/mymodel-1a2b3c4d --target-params 0.3
    dst-analyze slim reports/mymodel-1a2b3c4d --target-macs 0.5 --keep 'head*' --out smaller
    """
    from dst_analyze.channels.coupling import couple_channels
    from dst_analyze.cli.terminal import console, escape_control, show, show_plan
    from dst_analyze.ranking.load import rank_run
    from dst_analyze.report.page import write_report
    from dst_analyze.run.reader import read_run
    from dst_analyze.slimming.artifacts import task_of, write_suggestion
    from dst_analyze.slimming.planning.suggest import suggest_widths
    from dst_analyze.text import wrapped

    record = read_run(run_folder)
    with redirect_stdout(sys.stderr):
        traced = task_of(record, data_root=data_root).traced
        coupling, ranking = couple_channels(traced), rank_run(record)
        plan = suggest_widths(traced, ranking, coupling=coupling, **slim_asked(options))
        written = write_suggestion(out or record.folder, traced, plan, coupling, reinitialize=reinitialize)
    if out is None:
        write_report(record.folder, ranking)
    stdout = console()
    show_plan(stdout, plan)
    if written.no_source:
        show(stdout, *wrapped([f"not written as source: {written.no_source}"], stdout.width))
    click.echo(f"\nslim model  {escape_control(written.built_by)}")
    if out is None:
        click.echo(f"prove it    {PROGRAM} verify {escape_control(str(run_folder))}")


@commands.command()
@run_argument
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Trainings of each model."
)
@worker_options
@data_root_option
@debug_option
def verify(
    run_folder: Path,
    seeds: int,
    jobs: int | None,
    engine: Literal["local", "ray"],
    ray_address: str | None,
    data_root: Path | None,
    debug: bool,
) -> None:
    """Train a run's suggestion against the dense model and others of its size. Runs the model's file.

    \b
    dst-analyze verify reports/mymodel-1a2b3c4d --seeds 5
    """
    if engine == "local":
        forkserver.start_forkserver()
    from dst_analyze.cli.terminal import console, show, verification_table
    from dst_analyze.report.page import write_report
    from dst_analyze.run.progress import Lines
    from dst_analyze.run.reader import read_run
    from dst_analyze.slimming.artifacts import read_plan, task_of, verify_and_save
    from dst_analyze.sweep.run_sweep import chosen_engine
    from dst_analyze.text import wrapped

    record, plan = read_run(run_folder), read_plan(run_folder)
    with redirect_stdout(sys.stderr):
        task = task_of(record, data_root=data_root)
        # None: a worker that planned the task by itself would take the defaults of today.
        with chosen_engine(task, None, engine, jobs, ray_address) as workers:
            found = verify_and_save(task, record, plan, seeds, workers, Lines(record.manifest, console(stderr=True)))
    write_report(run_folder)
    stdout = console()
    show(stdout, verification_table(found, stdout.width), "", *wrapped([found.verdict], stdout.width))


def _say(text: str) -> None:
    click.echo(text, err=True)


@commands.command()
@model_options
@json_option
@debug_option
def inspect(
    model: str,
    model_args: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    debug: bool,
    as_json: bool,
) -> None:
    """Show a model's layers, and what can be analysed, without training. Runs the model's file.

    \b
    dst-analyze inspect mymodel.py:Net --model-arg depth=16
    dst-analyze inspect torchvision:resnet18 --exclude 'layer1*' --json
    """
    from dst_analyze.cli.inspection import as_json as described
    from dst_analyze.cli.inspection import inspect_model, masked_form
    from dst_analyze.cli.terminal import console, escape_control, inspection_notes, layer_table, show
    from dst_analyze.model.loading.load import parse_model_args

    arguments = parse_model_args(model_args)
    loaded, traced = inspect_model(model, arguments, include, exclude)
    form = masked_form(loaded, traced, arguments)
    if as_json:
        click.echo(json.dumps(described(loaded, traced, form), indent=2))
        return
    stdout = console()
    count = f"{len(traced.layers)} layers, {traced.params:,} parameters, {traced.macs:,} MACs per sample"
    show(stdout, f"{escape_control(loaded.name)}: {count}, called with {traced.inputs.describe()}", "")
    show(stdout, layer_table(traced, stdout.width), "")
    show(stdout, f"masked form: {escape_control(form)}", *map(escape_control, inspection_notes(traced)))


@commands.command()
@run_argument
@folder("--figures", "Write each figure into this folder, too.")
@choice("--format", "svg", "png", "pdf", text="With --figures: what kind of files.")
@open_option
@debug_option
def report(
    run_folder: Path,
    figures: Path | None,
    format: str,  # noqa: A002 - the option's name
    open_page: bool,
    debug: bool,
) -> None:
    """Write the report of a run folder again, from that folder alone.

    \b
    dst-analyze report reports/mymodel-1a2b3c4d --open
    dst-analyze report reports/mymodel-1a2b3c4d --figures figures --format pdf
    """
    from dst_analyze.cli.terminal import escape_control
    from dst_analyze.report.page import write_figures, write_report

    page = write_report(run_folder)
    for path in (page, *(write_figures(run_folder, figures, format) if figures else ())):
        click.echo(escape_control(str(path)))
    if open_page:
        _open(page)


@commands.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN_FOLDER_OR_CSV")
@choice("--by", "redundancy", "params", "macs", "beyond-null", text="What decides the order.")
@click.option("--top", type=int, metavar="N", help="The first N layers only.")
@choice("--format", "table", "csv", "json", "markdown", text="How to print it.")
@debug_option
def rank(run: Path, by: str, top: int | None, format: str, debug: bool) -> None:  # noqa: A002 - the option's name
    """Rank layers by redundancy, with how sure that is.

    A CSV file has the columns layer, alpha, remaining, and optionally seed, params, macs, group, null, control, resets.

    \b
    dst-analyze rank reports/mymodel-1a2b3c4d --by params --top 10
    dst-analyze rank ratios.csv --format markdown
    """
    from dst_analyze.cli.terminal import console
    from dst_analyze.ranking.load import ranking_of

    ranking = ranking_of(run)
    printed = {
        "table": lambda: ranking.text(console().width, by=by, top=top) + "\n",
        "csv": lambda: ranking.to_csv(by=by, top=top),
        "json": lambda: ranking.to_json(by=by, top=top) + "\n",
        "markdown": lambda: ranking.markdown(by=by, top=top) + "\n",
    }
    click.echo(printed[format](), nl=False)


@commands.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN RUN ...")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write them side by side on a page, too.")
@debug_option
def compare(runs: tuple[Path, ...], html: Path | None, debug: bool) -> None:
    """Show how far several runs agree, layer by layer; each is a run folder or a CSV file as for `rank`.

    \b
    dst-analyze compare reports/one reports/two ratios.csv
    dst-analyze compare reports/before reports/after --html both.html
    """
    from dst_analyze.cli.terminal import console
    from dst_analyze.ranking.compare import compare_rankings
    from dst_analyze.ranking.load import ranking_of

    if html is not None:
        from dst_analyze.report.compare_page import write_comparison

        compared = write_comparison(html, runs)
    else:
        compared = compare_rankings({str(run): ranking_of(run) for run in runs})
    click.echo(compared.text(console().width))

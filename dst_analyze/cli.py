"""The command line: arguments in, exit code out. The only place that prints; torch is imported once it is needed."""

from __future__ import annotations

import difflib
import json
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dst_analyze.errors import DstError, ModelError, OptionError
from dst_analyze.version import __version__

if TYPE_CHECKING:
    from dst_analyze.model.loading import LoadedModel
    from dst_analyze.model.tracing import TracedModel

PROGRAM = "dst-analyze"
DEFAULT = "analyze"
INTERRUPTED = 130
_SMALL = 50_000_000  # parameters: 200 MB
_SHOWN = 10  # layers of the ranking after a sweep; `rank` shows all


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
        wrong = OptionError(error.format_message(), hint=_usage_hint(args))
        return _failed(wrong, args)
    except DstError as error:
        return _failed(error, args)
    except Exception as error:
        unexpected = DstError(f"{type(error).__name__}: {error}", hint="run with --debug to see where this comes from")
        return _failed(unexpected, args)


def _failed(error: DstError, args: Sequence[str]) -> int:
    from dst_analyze.terminal import console, error_text, visible

    if "--debug" in args:
        click.echo(visible(traceback.format_exc()), err=True)
    console(stderr=True).print(error_text(error), soft_wrap=True)
    return error.exit_code


def _usage_hint(args: Sequence[str]) -> str:
    close = difflib.get_close_matches(args[0], commands.commands, n=1) if args else []
    if close and close[0] != args[0]:
        return f"did you mean `{PROGRAM} {close[0]}`?"
    return f"`{PROGRAM} --help` lists the commands and options"


class DefaultGroup(click.Group):
    """A group whose first argument may be a model instead of a command's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] in self.commands:
            return super().parse_args(ctx, args or ["--help"])
        for own in ("--help", "--version"):
            if own in args:
                return super().parse_args(ctx, [own])
        return super().parse_args(ctx, [DEFAULT, *args])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(PROGRAM, "MODEL [OPTIONS]")
        formatter.write_usage(PROGRAM, "COMMAND ...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of the default command are the program's."""
        default = self.commands[DEFAULT]
        default.format_options(click.Context(default, parent=ctx), formatter)
        self.format_commands(ctx, formatter)


def _alphas(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | str | None:
    return value if value == "auto" else _numbers(ctx, param, value)


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Numbers separated by commas; whether they make sense is the sweep's to say."""
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1e-5,1e-4") from None


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        # The package's metadata know torch's version without importing it.
        click.echo(f"{PROGRAM} {__version__} (torch {metadata.version('torch')}, Python {platform.python_version()})")
        ctx.exit()


@click.group(cls=DefaultGroup)
@click.option("--version", is_flag=True, callback=_print_version, expose_value=False, is_eager=True)
def commands() -> None:
    """Which layers of a PyTorch model are redundant, and how sure is that?

    MODEL is mymodel.py, mymodel.py:Net, package.module:factory, torchvision:resnet18 or timm:NAME. Its code is run.

    \b
    dst-analyze mymodel.py --alphas 1e-5,1e-4,1e-3
    dst-analyze inspect torchvision:resnet18
    dst-analyze rank reports/mymodel-1a2b3c4d --by params --top 10
    """


Decorated = Callable[..., Any]


def choice(name: str, *values: str, text: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


def model_options(command: Decorated) -> Decorated:
    """What every command that takes a model takes too."""
    for option in (
        click.option("--debug", is_flag=True, help="Show the whole traceback of an error."),
        click.option(
            "--exclude", multiple=True, metavar="PATTERN", help="Leave layers of such names alone; repeatable."
        ),
        click.option(
            "--include", multiple=True, metavar="PATTERN", help="Analyse only layers of such names; repeatable."
        ),
        click.option(
            "--model-arg", "model_args", multiple=True, metavar="NAME=VALUE", help="An argument for the model."
        ),
        click.argument("model"),
    ):
        command = option(command)
    return command


def slim_options(command: Decorated) -> Decorated:
    """How small a model should become, and how."""
    for option in (
        click.option("--rule", type=click.Choice(["density", "sqrt", "units"]), help="How a budget is shared out."),
        click.option("--include-unclear", is_flag=True, help="Narrow layers too that the ranking calls unclear."),
        click.option(
            "--keep", multiple=True, metavar="PATTERN", help="Leave such layers as wide as they are; repeatable."
        ),
        click.option("--min-width", type=click.IntRange(1), metavar="N", help="No layer narrower.  [default: 1]"),
        click.option("--round-to", type=click.IntRange(1), metavar="N", help="Widths in multiples of N.  [default: 8]"),
        click.option(
            "--target-latency", type=float, metavar="SHARE", help="... of its measured time for a forward pass."
        ),
        click.option("--target-macs", type=float, metavar="SHARE", help="... of its MACs."),
        click.option(
            "--target-params", type=float, metavar="SHARE", help="Share of the parameters to keep.  [default: 0.5]"
        ),
    ):
        command = option(command)
    return command


_SLIM = ("target_params", "target_macs", "target_latency", "round_to", "min_width", "keep", "include_unclear", "rule")


def _slim_asked(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a suggestion, taken out of all others."""
    return {name: value for name in _SLIM if (value := options.pop(name, None)) not in (None, (), False)}


@commands.command(DEFAULT, hidden=True, add_help_option=False)
@model_options
@click.option(
    "--alphas",
    callback=_alphas,
    metavar="A,B,...",
    help="Strengths of pruning, a trial for each; auto finds some that leave 80 to 10 % of the model.  [default: auto]",
)
@click.option(
    "--target-remaining",
    callback=_numbers,
    metavar="R,S,...",
    help="Search the alpha that leaves each of these shares of the weights, such as 0.5,0.2.",
)
@click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Repeat each alpha with N seeds.")
@click.option("--steps", type=int, metavar="N", help="Training steps per trial.  [default: 600]")
@click.option("--epochs", type=int, metavar="N", help="The same in passes over the training data.")
@click.option("--until-stable", is_flag=True, help="End a trial once the order of its layers no longer changes.")
@click.option("--max-epochs", type=int, metavar="N", help="With --until-stable: the longest a trial may take.")
@click.option(
    "--control", type=click.Choice(["shuffled-labels"]), help="Repeat the sweep on data that have nothing to teach."
)
@click.option("--batch-size", type=int, metavar="N", help="Samples per batch.  [default: 64]")
@click.option(
    "--data",
    metavar="NAME",
    help="npz:PATH, imagefolder:PATH, mnist, fashionmnist, kmnist, cifar10, cifar100, svhn or digits, "
    "in place of the model file's own.",
)
@click.option(
    "--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie.  [default: data]"
)
@click.option("--download", is_flag=True, help="Fetch the data set if it is not there.")
@click.option("--optimizer", type=click.Choice(["sgd", "adam", "adamw"]), help="[default: sgd, momentum 0.9]")
@click.option("--lr", type=float, metavar="RATE", help="Learning rate.  [default: 0.05; 0.001 for Adam]")
@choice("--schedule", "step", "cosine", "onecycle", "constant", text="How the learning rate falls.")
@click.option("--weight-decay", type=float, metavar="X", help="On weights, never on thresholds.  [default: 0]")
@click.option(
    "--threshold-clock",
    type=float,
    metavar="X",
    help="The thresholds' learning rate over the weights'; 1 is the paper.  [default: 9000 / steps, from 1 to 30]",
)
@choice("--device", "auto", "cpu", "cuda", "mps", text="Where to train.")
@click.option("--amp", is_flag=True, help="Matmuls and convolutions in bfloat16.")
@choice("--threshold", "vector", "scalar", "matrix", text="One threshold per row, per layer or per weight.")
@choice("--estimator", "long-tail", "clipped", text="How gradients pass the mask's step.")
@choice("--operator", "auto", "eager", "compiled", text="How masked weights are computed.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Run folder.  [default: reports/NAME-HASH]")
@click.option("--resume", is_flag=True, help="Finish a run: train what is missing or damaged in its folder.")
@click.option("--retry-failed", is_flag=True, help="The same, and train again what diverged or failed.")
@click.option("--force", is_flag=True, help="Start over: replace the run folder if there is one.")
@click.option("--jobs", type=int, metavar="N", help="Trials at once, same results.  [default: by cores and model size]")
@choice("--engine", "local", "ray", text="Train in processes of this machine, or in Ray tasks.")
@click.option(
    "--ray-address", metavar="HOST:PORT", help="A Ray cluster, or `auto`.  [default: a Ray of this machine alone]"
)
@slim_options
@click.option("--quiet", is_flag=True, help="Show the result only.")
@click.option("--json", "as_json", is_flag=True, help="Events as JSON lines on stdout, and nothing else there.")
def analyze(
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
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Sweep over the alphas and show what remains of each layer."""
    from dst_analyze.sweep import processes

    if engine == "local":
        processes.warm_up()  # workers import torch while this process does
    try:
        from dst_analyze.model.loading import parse_model_args
        from dst_analyze.slimming.budget import check_asked
        from dst_analyze.sweep.events import ReportWritten
        from dst_analyze.sweep.grid import chosen_engine, run_plan, what_to_do
        from dst_analyze.sweep.notes import notes_of
        from dst_analyze.sweep.plan import plan_sweep
        from dst_analyze.terminal import console, note_text, plan_table, plan_words, show, sweep_table, visible
        from dst_analyze.text import wrapped
        from dst_analyze.watch import JsonLines, watching

        asked = _slim_asked(options)
        check_asked(asked)  # before hours of training, not after
        given = {name: value for name, value in options.items() if value is not None}
        existing = what_to_do(resume=resume, retry_failed=retry_failed, force=force)
        events = JsonLines(sys.stdout)
        with redirect_stdout(sys.stderr):  # what a user's file prints is no result
            plan = plan_sweep(model, model_args=parse_model_args(model_args), out=out, existing=existing, **given)
            with chosen_engine(plan, engine, jobs, ray_address) as workers:
                if as_json:
                    record = run_plan(plan, events, workers)
                elif quiet:
                    record = run_plan(plan, engine=workers)
                else:
                    with watching(plan.manifest, console(stderr=True)) as watch:
                        record = run_plan(plan, watch, workers)
        from dst_analyze.ranking.source import rank_run
        from dst_analyze.slimming.suggestion import suggested_once

        with redirect_stdout(sys.stderr):
            suggestion = suggested_once(plan.task.traced, record, asked, again=bool(asked))
        from dst_analyze.report.page import write_report  # here, as its figures take seconds to import

        page = write_report(record.folder)
        if as_json:
            if not isinstance(suggestion, DstError):
                events(suggestion.event())
            events(ReportWritten(str(page)))
        else:
            stdout = console()
            ranking = rank_run(record)
            show(stdout, *map(note_text, notes_of(record)), sweep_table(record, ranking, stdout.width))
            click.echo(f"\n{ranking.text(stdout.width, top=_SHOWN)}")
            if isinstance(suggestion, DstError):
                refused = f"no slimmer architecture: {suggestion.cause}", f"hint: {suggestion.hint}"
                show(stdout, "", *wrapped(refused, stdout.width))
            else:
                words = wrapped(plan_words(suggestion.plan), stdout.width)
                show(stdout, "", plan_table(suggestion.plan, stdout.width), *words)
            click.echo(f"\nrun folder  {visible(str(record.folder))}\nreport      {visible(str(page))}")
            if not isinstance(suggestion, DstError):
                click.echo(f"slim model  {visible(str(suggestion.source))}")
                click.echo(f"prove it    {PROGRAM} verify {visible(str(record.folder))}")
        return 0 if record.complete else 1
    finally:
        processes.cool_down()


@commands.command()
@click.argument("run_folder", type=click.Path(path_type=Path))
@slim_options
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="Where to write.  [default: the run folder]"
)
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie.")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def slim(run_folder: Path, out: Path | None, data_root: Path | None, debug: bool, **options: Any) -> None:
    """Suggest a slimmer architecture from a run, build it, and write it as code. Runs the model's file."""
    from dst_analyze.report.page import write_report
    from dst_analyze.slimming.coupling import couple
    from dst_analyze.slimming.plan import suggest_widths
    from dst_analyze.slimming.suggestion import task_of, write_suggestion
    from dst_analyze.sweep.reading import read_run
    from dst_analyze.terminal import console, plan_table, plan_words, show, visible
    from dst_analyze.text import wrapped

    record = read_run(run_folder)
    with redirect_stdout(sys.stderr):
        traced = task_of(record, data_root=data_root).traced
        coupling = couple(traced)
        plan = suggest_widths(traced, record, coupling=coupling, **_slim_asked(options))
        written = write_suggestion(out or record.folder, traced, plan, coupling)
    if out is None:
        write_report(record.folder)
    stdout = console()
    show(stdout, plan_table(plan, stdout.width), *wrapped(plan_words(plan), stdout.width))
    click.echo(f"\nsource      {visible(str(written.source))}")
    if out is None:
        click.echo(f"prove it    {PROGRAM} verify {visible(str(run_folder))}")


@commands.command()
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.option(
    "--seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Trainings of each model."
)
@click.option("--data-root", type=click.Path(path_type=Path), metavar="DIR", help="Where data sets lie.")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def verify(run_folder: Path, seeds: int, data_root: Path | None, debug: bool) -> None:
    """Train a run's suggestion against the dense model and others of its size. Runs the model's file."""
    from dst_analyze.report.page import write_report
    from dst_analyze.slimming.suggestion import read_plan, task_of, write_verification
    from dst_analyze.slimming.verify import verify_plan
    from dst_analyze.sweep.layout import VERIFIED
    from dst_analyze.sweep.reading import read_run
    from dst_analyze.terminal import console, show, verification_table
    from dst_analyze.text import wrapped

    record, plan = read_run(run_folder), read_plan(run_folder)
    stderr = console(stderr=True)

    def said(name: str, seed: int, score: float | None) -> None:
        show(stderr, f"{name}, seed {seed}: {'diverged' if score is None else f'{score:.4g}'}")

    with redirect_stdout(sys.stderr):
        task = task_of(record, data_root=data_root)
        found = verify_plan(task, plan, record=record, seeds=seeds, keep_in=run_folder / VERIFIED, listener=said)
    write_verification(run_folder, found)
    write_report(run_folder)
    stdout = console()
    show(stdout, verification_table(found, stdout.width), "", *wrapped([found.verdict], stdout.width))


@commands.command()
@model_options
@click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")
def inspect(
    model: str,
    model_args: tuple[str, ...],
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    debug: bool,
    as_json: bool,
) -> None:
    """Show a model's layers, and what can be analysed, without training."""
    from dst_analyze.model.loading import parse_model_args
    from dst_analyze.terminal import console, inspection_notes, layer_table, show, visible

    loaded, traced = _looked_at(model, parse_model_args(model_args), include, exclude)
    if as_json:
        click.echo(json.dumps(_as_json(loaded, traced), indent=2))
        return
    stdout = console()
    count = f"{len(traced.layers)} layers, {traced.params:,} parameters, {traced.macs:,} MACs per sample"
    show(stdout, f"{visible(loaded.name)}: {count}, called with {traced.inputs.describe()}", "")
    show(stdout, layer_table(traced, stdout.width), "")
    show(stdout, *map(visible, inspection_notes(traced)))


def _looked_at(
    spec: str, args: dict[str, Any], include: Sequence[str], exclude: Sequence[str]
) -> tuple[LoadedModel, TracedModel]:
    """The model without its memory where that works, so that any size fits; the real one where it does not."""
    from dst_analyze.model.example import find_example_inputs
    from dst_analyze.model.loading import load_model
    from dst_analyze.model.tracing import trace_model

    def trace(loaded: LoadedModel) -> TracedModel:
        return trace_model(loaded.model, find_example_inputs(loaded), include=include, exclude=exclude)

    loaded = load_model(spec, model_args=args, device="meta")
    if any(parameter.is_meta for parameter in loaded.model.parameters()):
        try:
            traced = trace(loaded)
            if traced.rung == 1 or traced.params > _SMALL:
                return loaded, traced
        except ModelError:  # code that asks for values gets no answer on meta
            pass
        # With values, tracing may come further, as it will in a sweep.
        loaded = load_model(spec, model_args=args)
    return loaded, trace(loaded)


def _as_json(loaded: LoadedModel, traced: TracedModel) -> dict[str, Any]:
    from dst_analyze.model.tracing import FACTS

    return {
        "schema_version": 1,
        "model": loaded.name,
        "spec": loaded.spec,
        "inputs": traced.inputs.describe(),
        "params": traced.params,
        "macs": traced.macs,
        "rung": traced.rung,
        "coverage": {"weights": traced.coverage.weights, "parameters": traced.coverage.parameters},
        "layers": [{fact: getattr(layer, fact) for fact in FACTS} for layer in traced.layers],
        "skipped": [{"name": s.name, "reason": s.reason, "place": s.place, "params": s.params} for s in traced.skipped],
        "uncounted": traced.uncounted,
        "notes": traced.notes,
    }


@commands.command()
@click.argument("run_folder", type=click.Path(path_type=Path))
@click.option(
    "--figures", type=click.Path(path_type=Path), metavar="DIR", help="Write each figure into this folder, too."
)
@choice("--format", "svg", "png", "pdf", text="With --figures: what kind of files.")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def report(run_folder: Path, figures: Path | None, format: str, debug: bool) -> None:  # noqa: A002 - the option's name
    """Write the report of a run folder again, from that folder alone."""
    from dst_analyze.report.page import write_figures, write_report
    from dst_analyze.terminal import visible

    click.echo(visible(str(write_report(run_folder))))
    for path in write_figures(run_folder, figures, format) if figures else ():
        click.echo(visible(str(path)))


@commands.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN_FOLDER_OR_CSV")
@choice("--by", "redundancy", "params", "macs", "beyond-null", text="What decides the order.")
@click.option("--top", type=int, metavar="N", help="The first N layers only.")
@choice("--format", "table", "csv", "json", "markdown", text="How to print it.")
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def rank(run: Path, by: str, top: int | None, format: str, debug: bool) -> None:  # noqa: A002 - the option's name
    """Rank layers by redundancy, with how sure that is.

    A CSV file has the columns layer, alpha, remaining, and optionally seed, params, macs, group, null, control, resets.
    """
    from dst_analyze.ranking.source import ranking_of
    from dst_analyze.terminal import console

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
@click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
def compare(runs: tuple[Path, ...], html: Path | None, debug: bool) -> None:
    """Show how far several runs agree, layer by layer; each is a run folder or a CSV file as for `rank`."""
    from dst_analyze.ranking.compare import compare_rankings
    from dst_analyze.ranking.source import ranking_of
    from dst_analyze.terminal import console

    if html is not None:
        from dst_analyze.report.comparing import write_comparison

        compared = write_comparison(html, runs)
    else:
        compared = compare_rankings({str(run): ranking_of(run) for run in runs})
    click.echo(compared.text(console().width))

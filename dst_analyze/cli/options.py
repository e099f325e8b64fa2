"""The options of the command line, in the sections of its help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dst_analyze.cli.default_group import complete_model

Decorated = Callable[..., Any]
Decorator = Callable[[Decorated], Decorated]

_SECTION = "dst_section"


class Sectioned(click.Command):
    """A command whose help groups options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is not None and isinstance(parameter, click.Option):
                sections.setdefault(section_of(parameter), []).append(shown)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def section(title: str, *options: Decorator) -> Decorator:
    """Return one decorator for several options, in the given order, under one title in the help."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
            setattr(command.__click_params__[-1], _SECTION, title)  # type: ignore[attr-defined]
        return command

    return decorate


def section_of(parameter: click.Parameter) -> str:
    """Return the title under which the help shows an option."""
    return getattr(parameter, _SECTION, "Options")


def choice(name: str, *values: str, text: str) -> Decorator:
    """Return an option with fixed values, of which the first is the default."""
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


def folder(name: str, text: str) -> Decorator:
    """Return an option that takes a folder."""
    return click.option(name, type=click.Path(path_type=Path), metavar="DIR", help=text)


def _configured(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Make the settings of an options file the defaults of the command line."""
    if value is not None and not ctx.resilient_parsing:
        from dst_analyze.cli.configfile import read_options

        ctx.default_map = read_options(value, ctx.command)


def _alphas(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | str | None:
    return value if value == "auto" else _numbers(ctx, param, value)


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Return numbers separated by commas; `SweepConfig` checks their values."""
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1e-5,1e-4") from None


LISTS_OF_NUMBERS = (_alphas, _numbers)
"""Callbacks of options that take a list of numbers."""

debug_option = click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
open_option = click.option("--open", "open_page", is_flag=True, help="Open the report in a browser.")
data_root_option = folder("--data-root", "Folder of the data sets.  [default: data]")
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run the model unasked, of another user's folder or elsewhere.",
)
run_argument = click.argument("run_folder", type=click.Path(path_type=Path))

model_options = section(
    "Model",
    click.argument("model", shell_complete=complete_model),
    click.option(
        "--model-arg",
        "model_args",
        multiple=True,
        metavar="NAME=VALUE",
        help="Pass an argument to the model; repeatable.",
    ),
    click.option(
        "--include", multiple=True, metavar="PATTERN", help="Analyse only layers whose name matches; repeatable."
    ),
    click.option(
        "--exclude", multiple=True, metavar="PATTERN", help="Do not analyse layers whose name matches; repeatable."
    ),
)

data_options = section(
    "Data",
    click.option(
        "--data",
        metavar="NAME",
        help="npz:PATH, imagefolder:PATH, mnist, fashionmnist, kmnist, cifar10, cifar100, svhn or digits, "
        "in place of the data in the model file.",
    ),
    data_root_option,
    click.option("--download", is_flag=True, help="Download the data set if it is missing."),
    click.option("--batch-size", type=int, metavar="N", help="Samples per batch.  [default: 64]"),
)

sweep_options = section(
    "Sweep",
    click.option(
        "--alphas",
        callback=_alphas,
        metavar="A,B,...",
        help="Strengths of pruning, a trial for each; auto searches alphas that leave about 80, 30 and 10 % of the "
        "weights.  "
        "[default: auto]",
    ),
    click.option(
        "--alpha-scale",
        type=float,
        metavar="X",
        help="Train with the alphas times X; 1 takes them literally.  [default: computed so that an alpha prunes as "
        "much as in the paper's longer training]",
    ),
    click.option(
        "--target-remaining",
        callback=_numbers,
        metavar="R,S,...",
        help="Search alphas that leave these shares of the weights, such as 0.5,0.2; the search starts at --alphas.",
    ),
    click.option(
        "--seeds", type=int, default=1, show_default=True, metavar="N", help="Repeat each alpha with N seeds."
    ),
    click.option("--steps", type=int, metavar="N", help="Training steps per trial.  [default: 1125]"),
    click.option(
        "--epochs", type=int, metavar="N", help="Training length in passes over the data, in place of --steps."
    ),
    click.option(
        "--budget",
        metavar="TIME",
        help="Choose steps and alphas for a sweep that takes this long, such as 90s, 5min or 1h.",
    ),
    click.option("--until-stable", is_flag=True, help="End a trial when the order of its layers no longer changes."),
    click.option("--max-epochs", type=int, metavar="N", help="Longest trial with --until-stable, in epochs."),
    click.option(
        "--control",
        type=click.Choice(["shuffled-labels"]),
        help="Repeat the sweep with shuffled labels, to see which part of the ranking comes from the data.",
    ),
)

training_options = section(
    "Training",
    choice(
        "--recipe",
        "short",
        "paper",
        text="Defaults for a short sweep, or those of the paper: 160 epochs, rate 0.1, clock 1.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(["sgd", "adam", "adamw"]),
        help="[default: by the model: sgd, momentum 0.9, or adamw]",
    ),
    click.option(
        "--lr",
        type=float,
        metavar="RATE",
        help="Learning rate.  [default: 0.05; 0.001 for Adam, or 0.0003 where the model is large]",
    ),
    choice("--schedule", "step", "cosine", "onecycle", "constant", text="Schedule of the learning rate."),
    click.option(
        "--weight-decay", type=float, metavar="X", help="Weight decay of weights; thresholds have none.  [default: 0]"
    ),
    click.option(
        "--threshold-clock",
        type=float,
        metavar="X",
        help="Learning rate of thresholds relative to that of weights; the paper uses 1.  [default: 9000 / steps, from "
        "1 to 30]",
    ),
    click.option(
        "--threshold-scale",
        type=click.Choice(["layer", "one"]),
        help="Unit of thresholds: the mean magnitude of their layer's weights, or one unit for all layers, as in the "
        "paper.  [default: layer; one from 9000 steps on]",
    ),
    click.option(
        "--on-collapse",
        type=click.Choice(["hold", "reset"]),
        help="What to do with a layer that keeps at most 1 %: hold it there, or reset its thresholds as in the paper.  "
        "[default: hold; reset with --recipe paper]",
    ),
    click.option(
        "--weights",
        metavar="FILE",
        help="File of trained weights to start from, in place of the model's initialisation.",
    ),
    click.option(
        "--warm-up",
        type=int,
        metavar="N",
        help="Steps of training before weights are masked; the paper uses 0.  [default: the same as --steps; 0 from "
        "9000 steps on]",
    ),
    choice("--threshold", "vector", "scalar", "matrix", text="One threshold per row, per layer or per weight."),
    choice("--estimator", "long-tail", "clipped", text="Gradient estimator of the mask's step function."),
    choice("--backend", "auto", "eager", "compiled", text="How masked weights are computed."),
)

worker_options = section(
    "Machine",
    click.option(
        "--jobs",
        type=int,
        metavar="N",
        help="Trainings in parallel; results stay the same.  [default: by cores and model size]",
    ),
    choice("--engine", "local", "ray", text="Train in processes of this machine, or in Ray tasks."),
    click.option(
        "--ray-address", metavar="HOST:PORT", help="Address of a Ray cluster, or `auto`.  [default: a local Ray]"
    ),
)

machine_options = section(
    "Machine",
    choice("--device", "auto", "cpu", "cuda", "mps", text="Device to train on."),
    click.option("--amp", is_flag=True, help="Compute matmuls and convolutions in bfloat16."),
)

slim_options = section(
    "Slimmer architecture",
    click.option(
        "--target-params", type=float, metavar="SHARE", help="Share of the parameters to keep.  [default: 0.5]"
    ),
    click.option("--target-macs", type=float, metavar="SHARE", help="Share of the MACs to keep."),
    click.option(
        "--target-latency", type=float, metavar="SHARE", help="Share of the measured time of a forward pass to keep."
    ),
    click.option(
        "--round-to", type=click.IntRange(1), metavar="N", help="Round widths to multiples of N.  [default: 8]"
    ),
    click.option("--min-width", type=click.IntRange(1), metavar="N", help="Smallest width of a layer.  [default: 1]"),
    click.option(
        "--keep", multiple=True, metavar="PATTERN", help="Keep the width of layers whose name matches; repeatable."
    ),
    click.option("--only-clear", is_flag=True, help="Keep the width of layers that the ranking calls unclear."),
    click.option(
        "--rule",
        type=click.Choice(["balance", "density", "sqrt", "units"]),
        help="Rule that divides the budget among layers.",
    ),
    click.option(
        "--reinitialize", is_flag=True, help="Write the slim model with new weights in place of those that remain."
    ),
)

proof_options = section(
    "Proof",
    click.option(
        "--verify", is_flag=True, help="Train the slim model and compare it with the dense one and others of its size."
    ),
    click.option(
        "--verify-seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Seeds per model."
    ),
    click.option(
        "--baselines",
        metavar="METHOD,...",
        help="Rank the layers by other methods too, for comparison: magnitude, sensitivity.",
    ),
)

trying_options = section(
    "Trying it out",
    click.option("--dry-run", is_flag=True, help="Show what would be trained, its time and memory, and stop."),
    click.option("--fast-dev-run", is_flag=True, help="Run everything once, with two batches and a few steps."),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_configured,
        help="Read options from a file such as a run's run.toml; the command line wins.",
    ),
    click.option("--print-config", is_flag=True, help="Print an options file with the options given, and stop."),
)

output_options = section(
    "Run folder and output",
    folder("--out", "Run folder.  [default: reports/NAME-HASH]"),
    click.option("--resume", is_flag=True, help="Finish a run: train missing and damaged trials in its folder."),
    click.option("--retry-failed", is_flag=True, help="As --resume, and repeat trials that diverged or failed."),
    click.option("--force", is_flag=True, help="Start over: replace an existing run folder."),
    open_option,
    click.option("--tensorboard", is_flag=True, help="Write scalars of every trial and layer to RUN/tensorboard."),
    click.option("--wandb", metavar="PROJECT", help="Log curves, tables and the report to Weights & Biases."),
    click.option("--mlflow", metavar="URI", help="Log curves, tables and the report to MLflow."),
    click.option("--quiet", is_flag=True, help="Show only the result."),
    click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines on stdout, and nothing else."),
    debug_option,
)

_SLIM = ("target_params", "target_macs", "target_latency", "round_to", "min_width", "keep", "only_clear", "rule")


def slim_asked(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of `slim` from all options, and return those that are set."""
    return {name: value for name in _SLIM if (value := options.pop(name, None)) not in (None, (), False)}

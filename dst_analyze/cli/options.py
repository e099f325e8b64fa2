"""The options of the command line, in the sections that its help shows; what they mean is for other modules to say."""

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
    """A command whose help shows its options under the titles of their sections."""

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
    """Several options as one decorator, in the order they are written, under one title in the help."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
            setattr(command.__click_params__[-1], _SECTION, title)  # type: ignore[attr-defined]
        return command

    return decorate


def section_of(parameter: click.Parameter) -> str:
    """The title under which the help shows an option."""
    return getattr(parameter, _SECTION, "Options")


def choice(name: str, *values: str, text: str) -> Decorator:
    return click.option(name, type=click.Choice(values), default=values[0], show_default=True, help=text)


def folder(name: str, text: str) -> Decorator:
    return click.option(name, type=click.Path(path_type=Path), metavar="DIR", help=text)


def _configured(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """What a file sets is what the command line has for defaults."""
    if value is not None and not ctx.resilient_parsing:
        from dst_analyze.cli.configfile import read_options

        ctx.default_map = read_options(value, ctx.command)


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


LISTS_OF_NUMBERS = (_alphas, _numbers)
"""What reads such a list from the command line."""

debug_option = click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
json_option = click.option("--json", "as_json", is_flag=True, help="Machine-readable, on stdout.")
open_option = click.option("--open", "open_page", is_flag=True, help="Open the report in a browser.")
data_root_option = folder("--data-root", "Where data sets lie.  [default: data]")
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run the model unasked, of another user's folder or elsewhere.",
)
run_argument = click.argument("run_folder", type=click.Path(path_type=Path))

model_options = section(
    "Model",
    click.argument("model", shell_complete=complete_model),
    click.option("--model-arg", "model_args", multiple=True, metavar="NAME=VALUE", help="An argument for the model."),
    click.option("--include", multiple=True, metavar="PATTERN", help="Analyse only layers of such names; repeatable."),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave layers of such names alone; repeatable."),
)

data_options = section(
    "Data",
    click.option(
        "--data",
        metavar="NAME",
        help="npz:PATH, imagefolder:PATH, mnist, fashionmnist, kmnist, cifar10, cifar100, svhn or digits, "
        "in place of the model file's own.",
    ),
    data_root_option,
    click.option("--download", is_flag=True, help="Fetch the data set if it is not there."),
    click.option("--batch-size", type=int, metavar="N", help="Samples per batch.  [default: 64]"),
)

sweep_options = section(
    "Sweep",
    click.option(
        "--alphas",
        callback=_alphas,
        metavar="A,B,...",
        help="Strengths of pruning, a trial for each; auto finds some that leave 80 to 10 % of the model.  "
        "[default: auto]",
    ),
    click.option(
        "--alpha-scale",
        type=float,
        metavar="X",
        help="Train with the alphas times X; 1 takes them literally.  [default: how far the paper's training carries "
        "a threshold over how far this one does, so that an alpha prunes as it does in the paper]",
    ),
    click.option(
        "--target-remaining",
        callback=_numbers,
        metavar="R,S,...",
        help="Search the alpha that leaves each of these shares of the weights, such as 0.5,0.2; --alphas are where "
        "the search starts.",
    ),
    click.option(
        "--seeds", type=int, default=1, show_default=True, metavar="N", help="Repeat each alpha with N seeds."
    ),
    click.option("--steps", type=int, metavar="N", help="Training steps per trial.  [default: 2250]"),
    click.option("--epochs", type=int, metavar="N", help="The same in passes over the training data."),
    click.option("--until-stable", is_flag=True, help="End a trial once the order of its layers no longer changes."),
    click.option("--max-epochs", type=int, metavar="N", help="With --until-stable: the longest a trial may take."),
    click.option(
        "--control",
        type=click.Choice(["shuffled-labels"]),
        help="Repeat the sweep on data that have nothing to teach.",
    ),
)

training_options = section(
    "Training",
    choice(
        "--recipe", "short", "paper", text="Defaults for a short sweep, or the paper's: 160 epochs, rate 0.1, clock 1."
    ),
    click.option("--optimizer", type=click.Choice(["sgd", "adam", "adamw"]), help="[default: sgd, momentum 0.9]"),
    click.option("--lr", type=float, metavar="RATE", help="Learning rate.  [default: 0.05; 0.001 for Adam]"),
    choice("--schedule", "step", "cosine", "onecycle", "constant", text="How the learning rate falls."),
    click.option("--weight-decay", type=float, metavar="X", help="On weights, never on thresholds.  [default: 0]"),
    click.option(
        "--threshold-clock",
        type=float,
        metavar="X",
        help="The thresholds' learning rate over the weights'; 1 is the paper.  [default: 9000 / steps, from 1 to 30]",
    ),
    click.option(
        "--threshold-scale",
        type=click.Choice(["layer", "one"]),
        help="Thresholds count in the mean magnitude of their layer's weights, or all in one unit, as in the paper.  "
        "[default: layer; one from 9000 steps on]",
    ),
    click.option(
        "--on-collapse",
        type=click.Choice(["hold", "reset"]),
        help="What becomes of a layer that keeps at most 1 %: held there, or all weights back, as in the paper.  "
        "[default: hold; reset with --recipe paper]",
    ),
    click.option("--weights", metavar="FILE", help="Trained weights to start from, in place of the model's own."),
    click.option(
        "--warm-up",
        type=int,
        metavar="N",
        help="Steps that weights are trained before they are masked; 0 is the paper.  [default: as many as --steps, "
        "which are the dense trial's; 0 from 9000 on]",
    ),
    choice("--threshold", "vector", "scalar", "matrix", text="One threshold per row, per layer or per weight."),
    choice("--estimator", "long-tail", "clipped", text="How gradients pass the mask's step."),
    choice("--backend", "auto", "eager", "compiled", text="How masked weights are computed."),
)

worker_options = section(
    "Machine",
    click.option(
        "--jobs", type=int, metavar="N", help="Trainings at once, same results.  [default: by cores and model size]"
    ),
    choice("--engine", "local", "ray", text="Train in processes of this machine, or in Ray tasks."),
    click.option(
        "--ray-address", metavar="HOST:PORT", help="A Ray cluster, or `auto`.  [default: a Ray of this machine alone]"
    ),
)

machine_options = section(
    "Machine",
    choice("--device", "auto", "cpu", "cuda", "mps", text="Where to train."),
    click.option("--amp", is_flag=True, help="Matmuls and convolutions in bfloat16."),
)

slim_options = section(
    "Slimmer architecture",
    click.option(
        "--target-params", type=float, metavar="SHARE", help="Share of the parameters to keep.  [default: 0.5]"
    ),
    click.option("--target-macs", type=float, metavar="SHARE", help="... of its MACs."),
    click.option("--target-latency", type=float, metavar="SHARE", help="... of its measured time for a forward pass."),
    click.option("--round-to", type=click.IntRange(1), metavar="N", help="Widths in multiples of N.  [default: 8]"),
    click.option("--min-width", type=click.IntRange(1), metavar="N", help="No layer narrower.  [default: 1]"),
    click.option("--keep", multiple=True, metavar="PATTERN", help="Leave such layers as wide as they are; repeatable."),
    click.option("--only-clear", is_flag=True, help="Leave layers alone that the ranking calls unclear."),
    click.option(
        "--rule", type=click.Choice(["balance", "density", "sqrt", "units"]), help="How a budget is shared out."
    ),
    click.option(
        "--reinitialize", is_flag=True, help="Write the slim model with new weights, not with those it was given."
    ),
)

proof_options = section(
    "Proof",
    click.option("--verify", is_flag=True, help="Train the suggestion against the dense model and others of its size."),
    click.option(
        "--verify-seeds", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Trainings of each."
    ),
    click.option(
        "--baselines",
        metavar="WAY,...",
        help="Rank the layers in other ways too, for comparison: magnitude, sensitivity.",
    ),
)

trying_options = section(
    "Trying it out",
    click.option("--dry-run", is_flag=True, help="Say what would be trained, how long and in how much memory."),
    click.option("--fast-dev-run", is_flag=True, help="The whole job once, with two batches and a few steps."),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_configured,
        help="Options from a file such as a run's run.toml; the command line wins.",
    ),
    click.option("--print-config", is_flag=True, help="Print such a file with the options given, and stop."),
)

output_options = section(
    "Run folder and output",
    folder("--out", "Run folder.  [default: reports/NAME-HASH]"),
    click.option("--resume", is_flag=True, help="Finish a run: train what is missing or damaged in its folder."),
    click.option("--retry-failed", is_flag=True, help="The same, and train again what diverged or failed."),
    click.option("--force", is_flag=True, help="Start over: replace the run folder if there is one."),
    open_option,
    click.option("--tensorboard", is_flag=True, help="Scalars of every trial and layer, in RUN/tensorboard."),
    click.option("--quiet", is_flag=True, help="Show the result only."),
    click.option("--json", "as_json", is_flag=True, help="Events as JSON lines on stdout, and nothing else there."),
    debug_option,
)

_SLIM = ("target_params", "target_macs", "target_latency", "round_to", "min_width", "keep", "only_clear", "rule")


def slim_asked(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a suggestion, taken out of all others."""
    return {name: value for name in _SLIM if (value := options.pop(name, None)) not in (None, (), False)}

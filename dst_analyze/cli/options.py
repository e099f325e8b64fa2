"""The options of the command line, in the sections of its help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dst_analyze.cli.default_group import complete_model
from dst_analyze.cli.option_types import SeedCount, alphas, choice, folder, numbers, section


def _configured(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Make the settings of an options file the defaults of the command line."""
    if value is not None and not ctx.resilient_parsing:
        from dst_analyze.cli.configfile import read_options

        ctx.default_map = read_options(value, ctx.command)


debug_option = click.option("--debug", is_flag=True, help="Show the whole traceback of an error.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
open_option = click.option("--open", "open_page", is_flag=True, help="Open the report in a browser.")
data_root_option = folder("--data-root", "Folder of named data sets.  [default: data]")
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Run the model's file without asking.",
)
given_model_option = click.option("--model", metavar="SPEC", help="The model, if the run names none (a Study).")
run_argument = click.argument("run_folder", type=click.Path(path_type=Path))

fine_tune_option = click.option("--fine-tune", is_flag=True, help="Prove the widths with trained weights, too.")
check_length_option = click.option("--check-length", is_flag=True, help="Say whether a longer training is better.")

model_options = section(
    "Model",
    click.argument("model", shell_complete=complete_model),
    click.option(
        "--model-arg",
        "model_args",
        multiple=True,
        metavar="NAME=VALUE",
        help="Argument of the model; repeatable.",
    ),
    click.option(
        "--include", multiple=True, metavar="PATTERN", help="Analyse only layers named like this; repeatable."
    ),
    click.option("--exclude", multiple=True, metavar="PATTERN", help="Leave out layers named like this; repeatable."),
)

data_options = section(
    "Data",
    click.option(
        "--data",
        metavar="NAME",
        help="mnist, cifar10, npz:PATH, imagefolder:PATH, ...",
    ),
    data_root_option,
    click.option("--download", is_flag=True, help="Download the data set if it is missing."),
    click.option("--batch-size", type=int, metavar="N", help="Samples per batch.  [default: 64]"),
)

sweep_options = section(
    "Sweep",
    click.option(
        "--alphas",
        callback=alphas,
        metavar="A,B,...",
        help="Strengths of pruning.  [default: auto]",
    ),
    click.option(
        "--alpha-scale",
        type=float,
        metavar="X",
        help="Multiply alphas by X; 1 takes them literally.",
    ),
    click.option(
        "--target-remaining",
        callback=numbers,
        metavar="R,S,...",
        help="Search alphas that leave these shares.",
    ),
    click.option("--seeds", type=int, default=1, show_default=True, metavar="N", help="Seeds per alpha."),
    click.option("--steps", type=int, metavar="N", help="Training steps per trial.  [default: 1500]"),
    click.option("--epochs", type=int, metavar="N", help="Passes over the data, in place of --steps."),
    click.option("--quick", is_flag=True, help="No sweep: one training, pruned by magnitude."),
    click.option("--budget", metavar="TIME", help="Choose the length for a time, as 5min."),
    click.option("--until-stable", is_flag=True, help="End trials whose order of layers is stable."),
    click.option("--max-epochs", type=int, metavar="N", help="Most epochs with --until-stable."),
    click.option(
        "--control",
        type=click.Choice(["shuffled-labels"]),
        metavar="shuffled-labels",
        help="Repeat every trial with shuffled labels.",
    ),
)

training_options = section(
    "Training",
    choice(
        "--recipe",
        "short",
        "paper",
        metavar="NAME",
        text="short, or paper for 160 epochs.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(["sgd", "adam", "adamw"]),
        metavar="NAME",
        help="sgd, adam or adamw.  [default: by the model]",
    ),
    click.option(
        "--lr",
        type=float,
        metavar="RATE",
        help="Learning rate.  [default: 0.05; 0.001 for Adam]",
    ),
    choice(
        "--schedule",
        "step",
        "cosine",
        "onecycle",
        "constant",
        metavar="NAME",
        text="step, cosine, onecycle or constant.",
    ),
    click.option("--weight-decay", type=float, metavar="X", help="Weight decay; thresholds have none.  [default: 0]"),
    click.option(
        "--threshold-clock",
        type=float,
        metavar="X",
        help="Rate over the weights'.  [default: 9000 / steps]",
    ),
    click.option(
        "--threshold-scale",
        type=click.Choice(["layer", "one"]),
        metavar="UNIT",
        help="Their unit: by layer, or one.  [default: layer]",
    ),
    click.option(
        "--on-collapse",
        type=click.Choice(["hold", "reset"]),
        metavar="ACTION",
        help="hold or reset layers left with 1 %.  [default: hold]",
    ),
    click.option(
        "--weights",
        metavar="FILE",
        help="Trained weights to start from.",
    ),
    click.option(
        "--warm-up",
        type=int,
        metavar="N",
        help="Steps before weights are masked.  [default: --steps]",
    ),
    choice(
        "--threshold",
        "vector",
        "scalar",
        "matrix",
        metavar="KIND",
        text="vector, scalar or matrix.",
    ),
    choice("--estimator", "long-tail", "clipped", metavar="NAME", text="long-tail or clipped."),
    choice(
        "--backend",
        "auto",
        "eager",
        "compiled",
        metavar="NAME",
        text="Masking: auto, eager or compiled.",
    ),
)

worker_options = section(
    "Machine",
    click.option(
        "--jobs",
        type=int,
        metavar="N",
        help="Trainings at once.  [default: as many as fit]",
    ),
    choice("--engine", "local", "ray", metavar="NAME", text="local processes, or ray tasks."),
    click.option("--ray-address", metavar="HOST:PORT", help="A Ray cluster, or auto.  [default: a local Ray]"),
)

machine_options = section(
    "Machine",
    choice("--device", "auto", "cpu", "cuda", "mps", metavar="NAME", text="auto, cpu, cuda or mps."),
    click.option("--amp", is_flag=True, help="Compute matmuls and convolutions in half precision."),
    choice("--amp-dtype", "bfloat16", "float16", metavar="NAME", text="bfloat16 or float16."),
)

slim_options = section(
    "Slimmer architecture",
    click.option(
        "--target",
        type=click.Choice(["auto"]),
        metavar="auto",
        help="Size that the masks show to be enough.  [default]",
    ),
    click.option("--target-params", type=float, metavar="SHARE", help="Share of the parameters to keep."),
    click.option("--target-macs", type=float, metavar="SHARE", help="Share of the MACs to keep."),
    click.option("--target-latency", type=float, metavar="SHARE", help="Share of the measured forward time to keep."),
    click.option("--round-to", type=click.IntRange(1), metavar="N", help="Widths: multiples of N.  [default: auto]"),
    click.option("--min-width", type=click.IntRange(1), metavar="N", help="Smallest width of a layer.  [default: 1]"),
    click.option("--keep", multiple=True, metavar="PATTERN", help="Layers that keep their width; repeatable."),
    click.option("--only-clear", is_flag=True, help="Layers that are unclear keep their width."),
    click.option(
        "--rule",
        type=click.Choice(["balance", "density", "sqrt", "units"]),
        metavar="NAME",
        help="balance, density, sqrt or units.  [default: balance]",
    ),
    click.option("--reinitialize", is_flag=True, help="Give the slim model new weights."),
    click.option(
        "--format",
        "formats",
        multiple=True,
        metavar="NAME,...",
        help="Also onnx, export, hub, sparse or explorer.",
    ),
)

proof_options = section(
    "Proof",
    click.option("--verify", is_flag=True, help="Train the slim model beside others of its size."),
    click.option(
        "--verify-seeds",
        type=SeedCount(),
        default="auto",
        show_default=True,
        metavar="N|auto",
        help="Seeds of that proof.",
    ),
    fine_tune_option,
    check_length_option,
    click.option(
        "--baselines",
        metavar="METHOD,...",
        help="Rank by magnitude and sensitivity, too.",
    ),
)

trying_options = section(
    "Trying it out",
    click.option("--dry-run", is_flag=True, help="Show trials, time and memory; train nothing."),
    click.option("--fast-dev-run", is_flag=True, help="Run everything once with a few steps."),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_configured,
        help="Read options from a file such as run.toml.",
    ),
    click.option("--print-config", is_flag=True, help="Print the given options as such a file."),
)

output_options = section(
    "Run folder and output",
    folder("--out", "Run folder.  [default: reports/NAME-HASH]"),
    click.option("--resume", is_flag=True, help="Finish a run: train what is missing or damaged."),
    click.option("--retry-failed", is_flag=True, help="As --resume, and repeat trials that failed."),
    click.option("--force", is_flag=True, help="Start over: replace an existing run folder."),
    open_option,
    click.option("--tensorboard", is_flag=True, help="Write scalars to RUN/tensorboard."),
    click.option("--wandb", metavar="PROJECT", help="Log to Weights & Biases."),
    click.option("--mlflow", metavar="URI", help="Log to MLflow."),
    click.option("--quiet", is_flag=True, help="Show only the result."),
    click.option("--verbose", "-v", is_flag=True, help="Show the tables above the result, too."),
    click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines on stdout."),
    debug_option,
)

COMMON = (
    "--data",
    "--weights",
    "--alphas",
    "--seeds",
    "--steps",
    "--target-params",
    "--verify",
    "--out",
    "--resume",
    "--jobs",
    "--dry-run",
)
"""What `dst-analyze --help` shows; `--help-all` shows every option."""

_SLIM = (
    "target", "target_params", "target_macs", "target_latency", "round_to", "min_width", "keep", "only_clear", "rule"
)  # fmt: skip


def slim_asked(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of `slim` from all options, and return those that are set."""
    return {name: value for name in _SLIM if (value := options.pop(name, None)) not in (None, (), False)}

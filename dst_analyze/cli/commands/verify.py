"""`dst-analyze verify`: the suggestion of a run, trained against others of its size."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

import click

from dst_analyze.cli.option_types import SeedCount
from dst_analyze.cli.options import (
    data_root_option,
    debug_option,
    given_model_option,
    run_argument,
    trust_option,
    worker_options,
)
from dst_analyze.sweep.engines import forkserver


@click.command(short_help="Train a run's slim model against others of its size.")
@run_argument
@click.option(
    "--seeds",
    type=SeedCount(),
    default="auto",
    metavar="N|auto",
    help="Seeds per model.  [default: auto, up to 10]",
)
@worker_options
@data_root_option
@trust_option
@given_model_option
@debug_option
def verify(
    run_folder: Path,
    seeds: int | Literal["auto"],
    jobs: int | None,
    engine: Literal["local", "ray"],
    ray_address: str | None,
    data_root: Path | None,
    trust: bool,
    model: str | None,
    debug: bool,
) -> None:
    """Train a run's suggestion against the dense model and others of its size. Runs the model's file.

    \b
    dst-analyze verify reports/mymodel-1a2b3c4d --seeds 5
    """
    if engine == "local":
        forkserver.start_forkserver()
    from dst_analyze.cli.terminal import console, show, verification_table
    from dst_analyze.cli.trust import ask_trust
    from dst_analyze.report.page import write_report
    from dst_analyze.run.progress import Lines
    from dst_analyze.run.reader import read_run
    from dst_analyze.run.writer import editing
    from dst_analyze.slimming.artifacts import verify_and_save
    from dst_analyze.slimming.kept import read_plan
    from dst_analyze.sweep.engines.workers import Workers
    from dst_analyze.sweep.planning.reload import reload_task
    from dst_analyze.text import wrapped

    record = read_run(run_folder)
    ask_trust(record, trust=trust)
    plan = read_plan(record)
    with redirect_stdout(sys.stderr), editing(run_folder):
        task = reload_task(record, data_root=data_root, model=model)
        # None: a worker that planned the task by itself would take the defaults of today.
        with Workers(jobs, engine, ray_address).started(task, None) as workers:
            found = verify_and_save(task, record, plan, seeds, workers, Lines(record.manifest, console(stderr=True)))
        write_report(run_folder)
    stdout = console()
    show(stdout, verification_table(found, stdout.width), "", *wrapped([found.verdict], stdout.width))

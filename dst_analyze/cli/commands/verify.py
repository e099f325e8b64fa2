"""`dst-analyze verify`: the suggestion of a run, trained against others of its size."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Literal

import click

from dst_analyze.cli.option_types import SeedCount, numbers
from dst_analyze.cli.options import (
    check_length_option,
    data_root_option,
    debug_option,
    fine_tune_option,
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
@click.option(
    "--target",
    type=click.Choice(["auto"]),
    metavar="auto",
    help="First find the smallest size that is level.",
)
@click.option("--ladder", is_flag=True, help="Prove the suggestion at several sizes.")
@click.option("--rungs", callback=numbers, metavar="R,S,...", help="Sizes of the ladder.  [default: 0.75,0.5,0.25,0.1]")
@click.option(
    "--by",
    type=click.Choice(["params", "macs", "both"]),
    default="params",
    show_default=True,
    metavar="AXIS",
    help="Shares of params, macs or both.",
)
@fine_tune_option
@check_length_option
@click.option("--dry-run", is_flag=True, help="Show trainings and time; train nothing.")
@worker_options
@data_root_option
@trust_option
@given_model_option
@debug_option
def verify(
    run_folder: Path,
    seeds: int | Literal["auto"],
    target: Literal["auto"] | None,
    ladder: bool,
    rungs: tuple[float, ...] | None,
    by: Literal["params", "macs", "both"],
    fine_tune: bool,
    check_length: bool,
    dry_run: bool,
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
    dst-analyze verify reports/mymodel-1a2b3c4d --target auto
    dst-analyze verify reports/mymodel-1a2b3c4d --ladder --rungs 0.5,0.25,0.1
    """
    if engine == "local" and not dry_run:
        forkserver.start_forkserver()
    from dst_analyze.cli.proof_tables import ladder_proof_table
    from dst_analyze.cli.terminal import console, show, verification_table
    from dst_analyze.cli.trust import ask_trust
    from dst_analyze.errors import OptionError
    from dst_analyze.ranking.load import rank_run
    from dst_analyze.report.page import write_report
    from dst_analyze.run.progress import Lines
    from dst_analyze.run.reader import read_run
    from dst_analyze.run.writer import editing
    from dst_analyze.slimming.kept import read_plan
    from dst_analyze.slimming.proof.ladder import sizes_of
    from dst_analyze.slimming.proof.result import looks_of
    from dst_analyze.slimming.proving import RunProof, verify_and_save
    from dst_analyze.sweep.engines.workers import Workers
    from dst_analyze.sweep.planning.reload import reload_task
    from dst_analyze.text import wrapped

    if target == "auto" and looks_of(seeds)[-1] < 2:
        raise OptionError("one seed decides no size", place="--target auto", hint="give --seeds 3 or more, or auto")
    if target == "auto" and ladder:
        raise OptionError("a ladder has sizes of its own", place="--target auto", hint="give one of the two")
    if rungs and not ladder:
        raise OptionError("there is no ladder for these sizes", place="--rungs", hint="add --ladder")
    extras = {"fine_tune": fine_tune, "check_length": check_length}
    if ladder and any(extras.values()):
        raise OptionError(
            "a ladder has neither", place="--fine-tune, --check-length", hint="give them without --ladder"
        )
    sizes = sizes_of(rungs, ("params", "macs") if by == "both" else (by,)) if ladder else ()
    record = read_run(run_folder)
    ask_trust(record, trust=trust)
    plan = read_plan(record)
    stdout = console()
    with redirect_stdout(sys.stderr), editing(run_folder):
        task = reload_task(record, data_root=data_root, model=model)
        ranking = rank_run(record)
        # None: a worker that planned the task by itself would take the defaults of today.
        with Workers(jobs, engine, ray_address).started(task, None) as workers:
            lines = Lines(record.manifest, console(stderr=True))
            proof = RunProof(task, ranking, plan, workers, lines)
            if dry_run:
                costs = proof.costs(seeds, sizes, search=target == "auto", **extras)
            elif ladder:
                found = proof.ladder(sizes, seeds)
                shown, said = ladder_proof_table(found, stdout.width), list(found.verdicts.values())
            else:
                plan = proof.search(seeds).plan if target == "auto" else plan
                proven = verify_and_save(task, record, plan, seeds, workers, lines, **extras)
                shown, said = verification_table(proven, stdout.width), [proven.verdict, proven.length]
        if not dry_run:
            write_report(run_folder, ranking)
    if dry_run:
        show(stdout, *wrapped(costs, stdout.width))
    else:
        show(stdout, shown, "", *wrapped(said, stdout.width))

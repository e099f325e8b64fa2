"""`dst-analyze slim`: a slimmer architecture from a run, built and written as code."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import click

from dst_analyze.cli.default_group import PROGRAM
from dst_analyze.cli.option_types import folder
from dst_analyze.cli.options import (
    data_root_option,
    debug_option,
    given_model_option,
    run_argument,
    slim_asked,
    slim_options,
    trust_option,
)


@click.command(short_help="Suggest a slimmer model from a run, and write it.")
@run_argument
@slim_options
@folder("--out", "Where to write.  [default: the run folder]")
@data_root_option
@trust_option
@given_model_option
@debug_option
def slim(
    run_folder: Path,
    out: Path | None,
    data_root: Path | None,
    trust: bool,
    reinitialize: bool,
    model: str | None,
    formats: tuple[str, ...],
    debug: bool,
    **options: Any,
) -> int:
    """Suggest a slimmer architecture from a run, build it, and write it as code. Runs the model's file.

    \b
    dst-analyze slim reports/mymodel-1a2b3c4d --target-params 0.3
    dst-analyze slim reports/mymodel-1a2b3c4d --target-macs 0.5 --keep 'head*' --out smaller
    dst-analyze slim reports/mymodel-1a2b3c4d --format onnx,hub
    """
    from dst_analyze.channels.coupling import couple_channels
    from dst_analyze.cli.terminal import CHANGE_HEADS, console, escape_control, export_lines, show, show_plan
    from dst_analyze.cli.trust import ask_trust
    from dst_analyze.integrations.formats import exporters_of
    from dst_analyze.ranking.load import rank_run
    from dst_analyze.report.page import write_report
    from dst_analyze.run.reader import read_run
    from dst_analyze.run.writer import editing
    from dst_analyze.slimming.artifacts import write_suggestion
    from dst_analyze.slimming.planning.suggest import suggest_widths
    from dst_analyze.sweep.planning.reload import reload_model, reload_task
    from dst_analyze.text import wrapped

    exporters = exporters_of(formats)  # before anything is computed
    record = read_run(run_folder)
    ask_trust(record, trust=trust)
    with redirect_stdout(sys.stderr), editing(run_folder) if out is None else nullcontext():
        traced = reload_model(record, data_root=data_root, model=model)
        coupling, ranking = couple_channels(traced), rank_run(record)
        plan = suggest_widths(traced, ranking, coupling=coupling, **slim_asked(options))
        written = write_suggestion(
            out or record.folder,
            traced,
            plan,
            coupling,
            reinitialize=reinitialize,
            record=record,
            ranking=ranking,
            spec=model,
            exporters=exporters,
            task=lambda: reload_task(record, data_root=data_root, model=model),
        )
        if out is None:
            write_report(record.folder, ranking)
    stdout = console()
    show_plan(stdout, plan)
    if written.no_source:
        show(stdout, *wrapped([f"not written as source: {written.no_source}"], stdout.width))
    click.echo(f"\nslim model  {escape_control(written.built_by)}")
    if written.change is not None:
        click.echo(f"{CHANGE_HEADS[written.change.name]:<12}{escape_control(str(written.change))}")
    elif written.no_change:
        show(stdout, *wrapped([f"no patch    {written.no_change}; see changes.csv"], stdout.width))
    for line in export_lines(written):
        click.echo(line)
    if out is None:
        click.echo(f"prove it    {escape_control(shlex.join([PROGRAM, 'verify', str(run_folder)]))}")
    return 0 if written.exported else 1

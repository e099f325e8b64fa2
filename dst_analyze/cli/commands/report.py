"""`dst-analyze report`: the report of a run folder, written again."""

from __future__ import annotations

from pathlib import Path

import click

from dst_analyze.cli.browser import open_in_browser
from dst_analyze.cli.option_types import choice, folder
from dst_analyze.cli.options import debug_option, open_option, run_argument


@click.command(short_help="Write a run's report again.")
@run_argument
@folder("--figures", "Write each figure into this folder, too.")
@choice("--format", "svg", "png", "pdf", text="With --figures: what kind of files.")
@click.option("--columns", type=click.IntRange(1, 2), metavar="1|2", help="With --figures: columns of a paper.")
@open_option
@debug_option
def report(
    run_folder: Path,
    figures: Path | None,
    format: str,  # noqa: A002 - the option's name
    columns: int | None,
    open_page: bool,
    debug: bool,
) -> None:
    """Write the report of a run folder again, from that folder alone.

    \b
    dst-analyze report reports/mymodel-1a2b3c4d --open
    dst-analyze report reports/mymodel-1a2b3c4d --figures figures --format pdf --columns 1
    """
    from dst_analyze.cli.terminal import escape_control
    from dst_analyze.report.page import write_figures, write_report
    from dst_analyze.run.events import Event, Notice

    def warn(event: Event) -> None:
        if isinstance(event, Notice):
            click.echo(escape_control(event.text), err=True)

    page = write_report(run_folder, listener=warn)
    written = write_figures(run_folder, figures, format, columns) if figures else ()
    for path in (page, *written):
        click.echo(escape_control(str(path)))
    if open_page:
        open_in_browser(page)

"""`dst-analyze compare`: how far several runs agree."""

from __future__ import annotations

from pathlib import Path

import click

from dst_analyze.cli.options import debug_option


@click.command(short_help="Show how far several runs agree.")
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

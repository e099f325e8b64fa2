"""`dst-analyze rank`: the ranking of a run folder or of a table of ratios."""

from __future__ import annotations

from pathlib import Path

import click

from dst_analyze.cli.options import choice, debug_option


@click.command()
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
    from dst_analyze.text import escape_control

    ranking = ranking_of(run)
    printed = {
        "table": lambda: ranking.text(console().width, by=by, top=top) + "\n",
        "csv": lambda: escape_control(ranking.to_csv(by=by, top=top)),
        "json": lambda: ranking.to_json(by=by, top=top) + "\n",
        "markdown": lambda: ranking.markdown(by=by, top=top) + "\n",
    }
    click.echo(printed[format](), nl=False)

"""`dst-analyze rank`: the ranking of a run folder or of a table of ratios."""

from __future__ import annotations

from pathlib import Path

import click

from dst_analyze.cli.option_types import choice
from dst_analyze.cli.options import debug_option

CONDITION_TRUE = 3
"""The exit code of `--fail-if`, as 1 and 2 are for jobs and inputs that failed."""


@click.command(short_help="Rank layers by redundancy, with how sure that is.")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN_FOLDER_OR_CSV")
@choice(
    "--by",
    "redundancy",
    "params",
    "macs",
    "beyond-null",
    metavar="KEY",
    text="Or params, macs, beyond-null.",
)
@click.option("--top", type=int, metavar="N", help="The first N layers only.")
@choice("--format", "table", "csv", "json", "markdown", metavar="KIND", text="table, csv, json or markdown.")
@click.option("--fail-if", multiple=True, metavar="CONDITION", help="Exit with 3 if true, e.g. 'redundant>30%'.")
@debug_option
def rank(
    run: Path,
    by: str,
    top: int | None,
    format: str,  # noqa: A002 - the option's name
    fail_if: tuple[str, ...],
    debug: bool,
) -> int:
    """Rank layers by redundancy, with how sure that is.

    A CSV file has the columns layer, alpha, remaining, and optionally seed, params, macs, group, null, control, resets.

    \b
    dst-analyze rank reports/mymodel-1a2b3c4d --by params --top 10
    dst-analyze rank ratios.csv --format markdown
    dst-analyze rank reports/mymodel-1a2b3c4d --fail-if 'redundant>30%' --fail-if 'unclear>=4'
    """
    from dst_analyze.cli.terminal import console
    from dst_analyze.ranking.conditions import Condition
    from dst_analyze.ranking.load import ranking_of
    from dst_analyze.text import escape_control

    conditions = [Condition.parsed(text) for text in fail_if]
    ranking = ranking_of(run)
    true = [condition.said(ranking) for condition in conditions if condition.holds(ranking)]
    printed = {
        "table": lambda: ranking.text(console().width, by=by, top=top) + "\n",
        "csv": lambda: escape_control(ranking.to_csv(by=by, top=top)),
        "json": lambda: ranking.to_json(by=by, top=top) + "\n",
        "markdown": lambda: ranking.markdown(by=by, top=top) + "\n",
    }
    click.echo(printed[format](), nl=False)
    for said in true:
        click.echo(f"failed: {said}", err=True)
    return CONDITION_TRUE if true else 0

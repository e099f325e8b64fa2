"""The page: a run folder becomes report.html, one file that needs nothing else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dst_analyze.ranking.formats import place, places, signed
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.source import rank_run
from dst_analyze.ranking.table import by_reason, export_table, remaining_table
from dst_analyze.report.figures import pattern_svg
from dst_analyze.slimming.values import SlimPlan, Verification
from dst_analyze.sweep.files import write_csv, write_text
from dst_analyze.sweep.layout import CHANGES, PLAN, REPORT, TABLE, VERIFICATION
from dst_analyze.sweep.notes import notes_of
from dst_analyze.sweep.reading import read_csv, read_json, read_run
from dst_analyze.sweep.record import Json, SweepRecord, alpha_label

J = TypeVar("J", bound=Json)


def write_report(run_folder: Path | str) -> Path:
    """Write report.html and table.csv into a run folder, from that folder alone; returns the page's path."""
    record = read_run(run_folder)
    ranking = rank_run(record)
    write_csv(record.folder / TABLE, export_table(record, ranking))
    page = record.folder / REPORT
    write_text(page, render(record, ranking))
    return page


def render(record: SweepRecord, ranking: Ranking | None = None) -> str:
    """The page as text; the same record gives the same bytes."""
    ranking = ranking or rank_run(record)
    environment = Environment(
        loader=PackageLoader("dst_analyze.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, part=part, score=score, count=count, alpha=alpha_label)
    environment.filters.update(place=place, places=lambda row: places(row.rank_low, row.rank_high), signed=signed)
    table = remaining_table(record, ranking)
    return environment.get_template("template.html").render(
        record=record,
        config=record.config,
        manifest=record.manifest,
        notes=notes_of(record),
        figure=Markup(pattern_svg(table)),  # matplotlib escapes the names it draws
        layers=list(zip(record.layers.to_dict("records"), table.to_numpy().tolist(), strict=True)),
        ranking=ranking,
        ranked=list(ranking.table.itertuples(index=False)),
        plan=_read(record.folder / PLAN, SlimPlan),
        changes=_changes(record.folder / CHANGES),
        verification=_read(record.folder / VERIFICATION, Verification),
        skipped=by_reason(record.manifest.model.skipped),
    )


def _read(path: Path, kind: type[J]) -> J | None:
    return read_json(path, kind) if path.exists() else None


def _changes(path: Path) -> list[dict[str, str]]:
    """The lines of somebody's source that a plan changes."""
    columns = ("layer", "before", "after")
    return read_csv(path, columns, numbers=()).to_dict("records") if path.exists() else []


def percent(ratio: float | None) -> str:
    return "–" if ratio is None or math.isnan(ratio) else f"{100 * ratio:.1f}"


def part(ratio: float) -> str:
    """The length of a bar, 0 to 1."""
    return "0" if math.isnan(ratio) else f"{ratio:.3f}"


def score(value: float | None, kind: str) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if kind == "accuracy" else f"{value:.4g}"


def count(number: float | None) -> str:
    """Thousands set apart; a dash for what could not be counted."""
    return "–" if number is None or math.isnan(number) else f"{int(number):,}"

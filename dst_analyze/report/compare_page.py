"""The page that shows several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from dst_analyze.ranking.compare import Comparison, compare_rankings
from dst_analyze.ranking.formats.serialize import agreement, rank_text, signed
from dst_analyze.ranking.load import rank_run, ranking_of
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.figures import plots, sized
from dst_analyze.report.figures.heatmap import Heatmap, heatmap_of, heatmap_of_ranking
from dst_analyze.report.figures.sized import FigureSet
from dst_analyze.report.overview.answer import Standing, score_words
from dst_analyze.report.overview.strip import Strip, strip_of
from dst_analyze.report.overview.tiles import Tile
from dst_analyze.report.rendering import count, rendered
from dst_analyze.report.rows import shown_name
from dst_analyze.report.summary import Summary, summary_of
from dst_analyze.run.files.atomic_io import write_text
from dst_analyze.run.reader import read_run
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.kept import read_suggestion
from dst_analyze.text import elide, escape_control

_MOST_DOTS = 60  # layers in the figure; the table has all of them


@dataclass(frozen=True)
class Side:
    """One run as a column of the page; a CSV file has a ranking only."""

    number: int
    name: str
    verdict: str
    facts: list[tuple[str, str]]
    heat: Heatmap
    score: str = ""  # the head of the heat map's row of scores
    summary: Summary | None = None  # None for a table of ratios
    strip: Strip | None = None


@dataclass(frozen=True)
class Line:
    """One layer, with its rank and label in each run."""

    layer: str
    elsewhere: str
    cells: list[tuple[str, str, str]]  # rank, redundancy and label in each run
    apart: str
    differs: bool  # by a third of all ranks or more


def write_comparison(page: Path, runs: Sequence[Path]) -> Comparison:
    """Compare run folders or CSV files of ratios, and write the page."""
    records = {str(run): read_run(run) if run.is_dir() else None for run in runs}
    rankings = {
        name: ranking_of(Path(name)) if record is None else rank_run(record) for name, record in records.items()
    }
    compared = compare_rankings(rankings)
    write_text(page, render_comparison(compared, rankings, records))
    return compared


def render_comparison(
    compared: Comparison, rankings: Mapping[str, Ranking], records: Mapping[str, SweepRecord | None]
) -> str:
    """Return the page as HTML."""
    figure_set = FigureSet()
    sides = [
        _side(number, name, ranking, records[name], figure_set)
        for number, (name, ranking) in enumerate(rankings.items(), 1)
    ]
    tables = {run: ranking.table.set_index("layer") for run, ranking in rankings.items()}
    label = "Redundancy of each layer in each run; the table below has the same values"
    return rendered(
        "compare.html",
        title=" and ".join(elide(Path(name).name, 40) for name in rankings),
        kind="comparison",
        data={},
        styles=figure_set.styles,
        compared=compared,
        numbers=_tiles(compared),
        sides=sides,
        dots=figure_set.put("dots", label, _dots, compared, tables) if len(compared.table) else None,
        dots_shown=min(len(compared.table), _MOST_DOTS),
        lines=[_line(row, tables, len(compared.table)) for row in compared.table.to_dict("records")],
    )


def _side(number: int, name: str, ranking: Ranking, record: SweepRecord | None, figure_set: FigureSet) -> Side:
    shown, verdict = escape_control(name), str(ranking.verdict)
    if record is None:
        return Side(number, shown, verdict, [], heatmap_of_ranking(ranking, figure_set.styles))
    kept, kind = read_suggestion(record), record.manifest.data.score
    summary = summary_of(record, ranking, kept.plan, kept.proof)
    evidence = summary.answer.standing is not Standing.NO_EVIDENCE
    return Side(
        number,
        shown,
        verdict,
        list(_facts(record).items()),
        heatmap_of(record, ranking, figure_set.styles),
        score=f"{kind} (dense {score_words(record.dense.score, kind)})",
        summary=summary,
        strip=strip_of(record, ranking, kept.plan, evidence=evidence),
    )


def _tiles(compared: Comparison) -> list[Tile]:
    """Return the comparison in numbers: agreement, layers, labels and the layer that moves most."""
    table = compared.table
    if not len(table):
        return []
    labels = table[[column for column in table.columns if column.startswith("label ")]]
    differ, most = int((labels.nunique(axis=1) > 1).sum()), table.loc[table["apart"].astype(float).idxmax()]
    lost = sum(map(len, compared.unmatched.values()))
    rest = f"; {lost} have no counterpart" if lost else ""
    opposed = (
        f", {len(compared.opposed)} of them redundant in one run and needed in another" if compared.opposed else ""
    )
    moved = f"{shown_name(str(most['layer']))}, the layer whose rank differs most."
    return [
        Tile(
            "agreement",
            agreement(compared.agreement),
            "Kendall's W: 1 is the same order, 0 no common order.",
            known=False,
        ),
        Tile("layers compared", str(len(table)), f"ranked in every run{rest}.", known=False),
        Tile("labels that differ", str(differ), f"of {len(table)} layers{opposed}.", known=False),
        Tile(
            "ranks apart", rank_text(float(most["apart"])), moved if most["apart"] else "No rank differs.", known=False
        ),
    ]


def _facts(record: SweepRecord) -> dict[str, str]:
    manifest = record.manifest
    seeds = len(record.config.seeds)
    return {
        "model": shown_name(manifest.model.name),
        "data": manifest.data.description,
        "parameters": count(manifest.model.params),
        "MACs per sample": count(manifest.model.macs),
        "training": f"{manifest.steps:,} steps, {seeds} seed{'s' if seeds != 1 else ''}",
    }


def _line(row: Mapping[str, object], tables: Mapping[str, pd.DataFrame], layers: int) -> Line:
    cells, apart = [], float(str(row["apart"]))
    for run, table in tables.items():
        found = table.loc[row[f"name {run}"]]
        cells.append(
            (rank_text(float(str(row[f"rank {run}"]))), signed(float(found["redundancy"])), str(found["label"]))
        )
    others = dict.fromkeys(str(row[f"name {run}"]) for run in tables if row[f"name {run}"] != row["layer"])
    return Line(
        layer=shown_name(str(row["layer"])),
        elsewhere=", ".join(shown_name(name) for name in others),
        cells=cells,
        apart=rank_text(apart),
        differs=apart >= max(1.0, layers / 3),
    )


def _dots(compared: Comparison, tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Return a dot plot of redundancy with a marker per run, limited to the layers furthest apart."""
    most = compared.table.nlargest(_MOST_DOTS, "apart").sort_index()
    rows = [
        (at, f"run {number}", float(table.at[row[f"name {run}"], "redundancy"]))
        for at, row in enumerate(most.to_dict("records"))
        for number, (run, table) in enumerate(tables.items(), 1)
    ]
    frame = pd.DataFrame(rows, columns=["layer", "run", "redundancy"])
    names = list(most["layer"])
    figure, axes = sized.canvas(7.6, 0.8 + 0.24 * len(names), names=names)
    figure.subplots_adjust(top=1 - 0.28 / figure.get_figheight())
    sns.scatterplot(
        frame, x="redundancy", y="layer", hue="run", style="run", ax=axes, s=42, legend=len(tables) <= 6,
        palette=[plots.PALETTE[at % len(plots.PALETTE)] for at in range(len(tables))],
    )  # fmt: skip
    axes.axvline(0, color=plots.PALETTE[4], linewidth=1, linestyle="--")
    axes.set_yticks(range(len(names)), [plots.axis_name(name) for name in names])
    axes.set(ylim=(len(names) - 0.5, -0.5), ylabel="", xlabel="redundancy: sparser than the typical layer to the right")
    if len(tables) <= 6:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(tables), borderaxespad=0.1)
    return figure

"""The page that shows several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from dst_analyze.ranking.compare import Comparison, compare_rankings
from dst_analyze.ranking.formats.serialize import rank_text, signed
from dst_analyze.ranking.load import rank_run, ranking_of
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.figures import plots, sized
from dst_analyze.report.figures.heatmap import Heatmap, heatmap_of_ranking
from dst_analyze.report.figures.sized import FigureSet
from dst_analyze.report.overview.answer import answer_of, score_words
from dst_analyze.report.rendering import count, rendered
from dst_analyze.report.rows import shown_name
from dst_analyze.run.caveats import Note, notes_of
from dst_analyze.run.files.atomic_io import write_text
from dst_analyze.run.reader import read_run
from dst_analyze.run.record import SweepRecord, alpha_label
from dst_analyze.slimming.kept import read_suggestion
from dst_analyze.text import elide, escape_control, percent

_MOST_DOTS = 60  # layers in the figure; the table has all of them


@dataclass(frozen=True)
class Side:
    """One run as a column of the page; a CSV file has a ranking only."""

    number: int
    name: str
    verdict: str
    facts: list[tuple[str, str]]
    notes: list[Note]
    answer: str
    heat: Heatmap


@dataclass(frozen=True)
class Line:
    """One layer, with its rank and label in each run."""

    layer: str
    elsewhere: str
    cells: list[tuple[str, str, str]]  # rank, redundancy and label in each run
    apart: str


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
        sides=sides,
        dots=figure_set.put("dots", label, _dots, compared, tables) if len(compared.table) else None,
        dots_shown=min(len(compared.table), _MOST_DOTS),
        lines=[_line(row, tables) for row in compared.table.to_dict("records")],
    )


def _side(number: int, name: str, ranking: Ranking, record: SweepRecord | None, figure_set: FigureSet) -> Side:
    return Side(
        number=number,
        name=escape_control(name),
        verdict=str(ranking.verdict),
        facts=list(_facts(record).items()) if record is not None else [],
        notes=notes_of(record) if record is not None else [],
        answer=_answer(record, ranking) if record is not None else "",
        heat=heatmap_of_ranking(ranking, figure_set.styles),
    )


def _answer(record: SweepRecord, ranking: Ranking) -> str:
    """Return the answer of a run, as its own report has it."""
    kept = read_suggestion(record)
    return answer_of(record, ranking, kept.plan, kept.proof).sentence


def _facts(record: SweepRecord) -> dict[str, str]:
    manifest = record.manifest
    kind = manifest.data.score
    at = [
        f"{alpha_label(alpha)}: {percent(record.remaining(alpha))} % left, {score_words(record.score(alpha), kind)}"
        for alpha in record.alphas
    ]
    return {
        "model": shown_name(manifest.model.name),
        "data": manifest.data.description,
        "parameters": count(manifest.model.params),
        "MACs per sample": count(manifest.model.macs),
        f"dense {kind}": score_words(record.dense.score, kind),
        f"weights left and {kind} at alpha": "; ".join(at),
        "training": f"{manifest.steps:,} steps, {len(record.config.seeds)} seeds",
    }


def _line(row: Mapping[str, object], tables: Mapping[str, pd.DataFrame]) -> Line:
    cells = []
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
        apart=rank_text(float(str(row["apart"]))),
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

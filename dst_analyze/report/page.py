"""The report page: report.html, one self-contained file made from a run folder."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from markupsafe import Markup
from matplotlib.figure import Figure

from dst_analyze.baselines.agreement import read_method_comparison
from dst_analyze.ranking.formats.serialize import signed
from dst_analyze.ranking.formats.table import by_reason, export_table
from dst_analyze.ranking.length_evidence import length_caveat
from dst_analyze.ranking.load import rank_run
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.verdict import LABELS
from dst_analyze.report.changes import change_lines, read_changes
from dst_analyze.report.channels import channels_of, strip_alphas
from dst_analyze.report.commands import command_again, commands, next_step
from dst_analyze.report.figures import plots, sized
from dst_analyze.report.figures.colours import ink_on, shade
from dst_analyze.report.figures.heatmap import heatmap_of
from dst_analyze.report.figures.ladder import ladder_figure
from dst_analyze.report.figures.proof import proof_figure
from dst_analyze.report.figures.sized import FigureSet
from dst_analyze.report.graph.columns import ROOM
from dst_analyze.report.graph.drawing import Picture, picture_of
from dst_analyze.report.graph.structure import structure_of
from dst_analyze.report.markdown import markdown_summary
from dst_analyze.report.overview.answer import Standing
from dst_analyze.report.overview.strip import advised, layer_widths, strip_of
from dst_analyze.report.rendering import rendered
from dst_analyze.report.rows import keys_of, rows_of, shown_name
from dst_analyze.report.summary import standings, summary_of
from dst_analyze.report.tables import trial_table, width_table
from dst_analyze.report.verdict_file import verdict_of
from dst_analyze.run.config import Json
from dst_analyze.run.derived import MAKE_AGAIN, damage_of
from dst_analyze.run.events import Emit, Notice, ignore_event
from dst_analyze.run.files.atomic_io import csv_bytes, replace_files
from dst_analyze.run.files.paths import BASELINES, GRAPH, REPORT, REPORTED, SUMMARY, TABLE, TRIAL_TABLE, VERDICT, WIDTHS
from dst_analyze.run.files.safe_read import is_there
from dst_analyze.run.reader import read_json, read_run
from dst_analyze.run.record import ModelGraph, SweepRecord, alpha_label
from dst_analyze.run.writer import editing
from dst_analyze.slimming.kept import KeptSuggestion, read_suggestion
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.result import Verification

J = TypeVar("J", bound=Json)

SECTIONS = (
    ("verdict", "Answer"),
    ("pattern", "What remains"),
    ("architecture", "The network"),
    ("ranking", "All layers"),
    ("course", "Training"),
    ("slim", "The slim network"),
    ("facts", "Facts"),
    ("glossary", "Glossary"),
)


_MOST_LAYERS = 6  # of a group that its row names
_TRACING = {
    1: "torch.fx traced the whole model",
    2: "torch.fx traced around the parts that it cannot trace",
    3: "the model has no graph: its layers are masked in place",
}


def write_report(run_folder: Path | str, ranking: Ranking | None = None, listener: Emit = ignore_event) -> Path:
    """Write report.html, its CSV tables, verdict.json and summary.md into a run folder.

    The model and the data are not needed: everything is read from the run folder.

    Args:
        run_folder: The folder of a run.
        ranking: The ranking of this run, if it is known already; this saves its bootstrap.
        listener: Gets a notice of each damaged file that is left out.

    Returns:
        The path of report.html.

    Raises:
        FolderError: The folder is no run folder, or a file in it is damaged or cannot be written.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from dst_analyze import run_sweep, write_report
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> data = torch.randn(64, 8), torch.randint(0, 2, (64,))
        >>> record = run_sweep(model, data, alphas=(1e-3, 1e-2), steps=4, out="run")
        >>> write_report(record.folder).name
        'report.html'
    """
    with editing(Path(run_folder)):
        record = read_run(run_folder)
        ranking = ranking or rank_run(record)
        kept = read_suggestion(record)
        tables = {TABLE: export_table(record, ranking), TRIAL_TABLE: trial_table(record)}
        if kept.plan is not None:
            tables[WIDTHS] = width_table(kept.plan)
        page = render(record, ranking, kept).encode("utf-8")
        replace_files(
            record.folder,
            {name: csv_bytes(table) for name, table in tables.items()} | _short_forms(record, ranking, kept),
            removed=REPORTED,
            unsummed={REPORT: page},
        )
    for why in left_out(record, kept):
        listener(Notice(f"left out of the report: {why}"))
    return record.folder / REPORT


def _short_forms(record: SweepRecord, ranking: Ranking, kept: KeptSuggestion) -> dict[str, bytes]:
    """Return the files that say the result in short: verdict.json for programs, summary.md for people."""
    proof = kept.proof and kept.proof.untimed()  # these files have checksums, which the same run gives again
    summary = summary_of(record, ranking, kept.plan, proof, left_out(record, kept))
    found = verdict_of(record, ranking, summary, kept.plan, proof, kept.ladder)
    text = markdown_summary(found, summary, command_again(record) if record.config.can_be_made_again else "")
    return {VERDICT: found.as_bytes(), SUMMARY: text.encode()}


def left_out(record: SweepRecord, kept: KeptSuggestion) -> list[str]:
    """Return what a run folder has that cannot be shown, as sentences: it is damaged, or belongs to something else."""
    damaged = damage_of(record, BASELINES)
    return [f"{why}; {MAKE_AGAIN}" for why in (*kept.problems, damaged) if why]


def write_figures(run_folder: Path | str, folder: Path, kind: str, columns: int | None = None) -> list[Path]:
    """Write the report's figures as files (svg, png or pdf), for one or two columns of a paper; return their paths."""
    record = read_run(run_folder)
    ranking = rank_run(record)
    kept, picture = read_suggestion(record), read_picture(record, ranking)
    return sized.write_figures(folder, kind, record, ranking, kept.plan, picture, kept.ladder, columns=columns)


def render(record: SweepRecord, ranking: Ranking | None = None, kept: KeptSuggestion | None = None) -> str:
    """Return the page as HTML; the same record gives the same bytes."""
    ranking = ranking or rank_run(record)
    kept = kept or read_suggestion(record)
    plan, proof = kept.plan, kept.proof
    picture, methods = read_picture(record, ranking, plan=plan, room=ROOM), read_method_comparison(record, ranking)
    changes = read_changes(kept.changes)
    rows, data = rows_of(record, ranking, plan, {name: change.text for name, change in changes.items()})
    names = list(record.layers["layer"])
    keys, alive = keys_of(names), channels_of(record, plan)
    data["strip_alphas"] = [alpha_label(alpha) for alpha in strip_alphas(record)]
    data["strips"] = {keys[name]: found.strips for name, found in alive.items()}
    figure_set = FigureSet()
    summary = summary_of(record, ranking, plan, proof, left_out(record, kept))
    shown = {cell.layer for box in picture.boxes for cell in box.cells} if picture else set()
    return rendered(
        "report.html",
        title=shown_name(record.manifest.model.name),
        kind="report",
        data=data,
        styles=figure_set.styles,
        sections=SECTIONS,
        record=record,
        config=record.config,
        manifest=record.manifest,
        summary=summary,
        no_evidence=summary.answer.standing is Standing.NO_EVIDENCE,
        strip=strip_of(record, ranking, plan, evidence=summary.answer.standing is not Standing.NO_EVIDENCE),
        next=next_step(
            record,
            summary.answer,
            has_source=kept.has_source,
            size=None if plan is None else plan.new_params / plan.params,
        ),
        ranking=ranking,
        rows=rows,
        keys=keys,
        alive={keys[name]: found.words for name, found in alive.items()},
        labels=LABELS,
        has_spare=bool(ranking.table["spare"].notna().any()),
        spare_alpha=_spare_alpha(ranking),
        known_length=length_caveat(
            record.manifest.steps, warm_up=record.manifest.warm_up > 0, unit=record.manifest.unit
        ),
        heat=heatmap_of(record, ranking, figure_set.styles),
        figures=_figures(record, ranking, kept, figure_set),
        picture=picture,
        has_graph=(record.folder / GRAPH).exists(),
        undrawn=[name for name in names if name not in shown] if picture else [],
        legend=_legend(picture.limit) if picture else [],
        skipped=by_reason(record.manifest.model.skipped),
        alpha_sections=_alpha_sections(record, figure_set),
        alphas_drawn=len(plots.drawn_alphas(record)),
        plan=plan,
        has_source=kept.has_source,
        most_layers=_MOST_LAYERS,
        quoted_folder=shlex.quote(str(record.folder)),
        ladder_command=shlex.join(["dst-analyze", "slim", str(record.folder), *plan.ladder_option.split()])
        if plan and plan.ladder
        else "",
        tracing=_TRACING[record.manifest.model.rung],
        scored_on_the_way=bool(record.steps["score"].notna().any()),
        widths_shown=plots.widths_shown(plan) if plan else 0,
        change_lines=list(change_lines(list(changes.values()))),
        changed=[group for group in plan.groups if group.new_width < group.width] if plan else [],
        unchanged=[group for group in plan.groups if group.new_width >= group.width] if plan else [],
        frozen=list(plan.frozen_by_reason.items()) if plan else [],
        verification=proof,
        against=standings(proof) if proof else {},
        proof=list(proof.table.itertuples(index=False)) if proof else [],
        ladder=kept.ladder,
        ladder_rows=list(kept.ladder.table.itertuples(index=False)) if kept.ladder else [],
        proof_figure=_proof_figure(proof, figure_set) if proof else None,
        commands=commands(record, plan, proof, methods),
        methods=methods,
        disagreements=methods.disagreements if methods else {},
    )


# --- contents of the sections ----------------------------------------------------------------------------------------


def _spare_alpha(ranking: Ranking) -> float | None:
    """Return the strongest alpha without measurable loss; None if there is none."""
    known = ranking.table["spare_alpha"].dropna()
    return float(known.iloc[0]) if len(known) else None


def _figures(
    record: SweepRecord, ranking: Ranking, kept: KeptSuggestion, figure_set: FigureSet
) -> Mapping[str, Markup]:
    plan, ladder = kept.plan, kept.ladder
    below = "the table of the ranking has the same values"
    ratios = f"Remaining percentage per layer, one panel per alpha; {below}"
    made = {
        "ratios": figure_set.put("ratios", ratios, plots.ratios_figure, record, ranking),
    }
    if plan is not None:
        label = "Width of each group before and after; the table below has the same values"
        made["widths"] = figure_set.put("widths", label, sized.widths, plan)
    if ladder is not None:
        label = f"{' '.join(ladder.verdicts.values())} The table below has the same values"
        made["ladder"] = figure_set.put("ladder", label, ladder_figure, ladder)
    return made


def _proof_figure(proof: Verification, figure_set: FigureSet) -> Markup:
    label = "Score of each model of the proof against its size; the table below has the same values"
    return figure_set.put("proof", label, proof_figure, proof)


@dataclass(frozen=True)
class AlphaSection:
    """Figures and resets of the trials at one alpha."""

    alpha: str
    resets: list[tuple[str, int]]
    training: Markup
    curves: Markup
    thresholds: Markup


def _alpha_sections(record: SweepRecord, figure_set: FigureSet) -> list[AlphaSection]:
    return [
        _alpha_section(record, alpha, at, figure_set)
        for at, alpha in enumerate(plots.drawn_alphas(record))
        if record.at(alpha)
    ]


def _alpha_section(record: SweepRecord, alpha: float, number: int, figure_set: FigureSet) -> AlphaSection:
    resets: Counter[str] = Counter()
    for trial in record.at(alpha):
        resets.update(trial.resets)

    def put(what: str, draw: Callable[..., Figure]) -> Markup:
        return figure_set.put(f"{draw.__name__}{number}", f"{what} at alpha {alpha_label(alpha)}", draw, record, alpha)

    return AlphaSection(
        alpha=alpha_label(alpha),
        resets=sorted(resets.items(), key=lambda pair: (-pair[1], pair[0])),
        training=put("Remaining percentage of each layer over training", sized.training),
        curves=put("Loss and score over training", sized.curves),
        thresholds=put("Thresholds of each layer", sized.thresholds),
    )


def read_picture(
    record: SweepRecord,
    ranking: Ranking,
    *,
    plan: SlimPlan | None = None,
    fold: bool = True,
    room: tuple[float, float] | None = None,
) -> Picture | None:
    """Return a drawing of the model's graph; None if there is no graph, or one too large to draw.

    With the ``room`` of a frame it stands in columns.
    """
    graph = read_optional(record.folder / GRAPH, ModelGraph)
    if graph is None:
        return None
    structure = structure_of(graph, record.manifest.model.skipped, fold=fold)
    if structure is None:
        return None
    return picture_of(structure, ranking, layer_widths(record.layers, advised(plan)), room=room)


def _legend(limit: float) -> list[tuple[str, str, str]]:
    colours = [shade(step / 4, given=True) for step in range(5)]
    return [(signed(limit * (step / 2 - 1)), fill, ink_on(fill)) for step, fill in enumerate(colours)]


def read_optional(path: Path, kind: type[J]) -> J | None:
    """Return the value of a JSON file in the run folder; None if there is no such file."""
    return read_json(path, kind) if is_there(path) else None

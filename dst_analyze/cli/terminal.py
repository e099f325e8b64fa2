"""The command line's output as rich renderables, with control characters escaped."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dst_analyze.errors import DstError
from dst_analyze.text import NARROWEST_NAME, percent, shorten_middle, shorten_names, wrapped
from dst_analyze.text import elide as elide
from dst_analyze.text import escape_control as escape_control
from dst_analyze.text import short as short

if TYPE_CHECKING:
    from dst_analyze.baselines.agreement import MethodComparison
    from dst_analyze.model.tracing.trace import TracedModel
    from dst_analyze.ranking.result import Ranking
    from dst_analyze.run.caveats import Note
    from dst_analyze.run.record import SweepRecord
    from dst_analyze.slimming.artifacts import Suggestion
    from dst_analyze.slimming.planning.plan_types import SlimPlan
    from dst_analyze.slimming.proof.result import Verification

CHANGE_HEADS = {"slim_model.patch": "patch", "slim_call.py": "own class"}
"""How the change of a user's file, or the call of a library's class, is announced."""
INDENT = 12
"""Cells of the label before a row of text."""
_HELD = "\N{NO-BREAK SPACE}"
_NARROWEST_WHY = 28  # cells of the text beside a row
_GAP = 3  # cells between two columns of this box
_RUNGS = {
    1: "torch.fx traced the whole model",
    2: "torch.fx traced around the parts that it cannot trace",
    3: "outside the graph: masked in place, no width can be suggested",
}


# --- text ----------------------------------------------------------------------------------------------------------


def error_text(error: DstError) -> Text:
    """Return an error as text: cause, place, frames of the user's code, hint."""
    text = Text.assemble(("error: ", "bold red"), escape_control(error.cause))
    if error.place:
        text.append(f"\n  at {escape_control(error.place)}")
    if error.trace:
        text.append(f"\n{escape_control(error.trace.rstrip())}", "dim")
    if error.hint:
        text.append("\nhint: ", "bold").append(escape_control(error.hint))
    return text


def note_text(note: Note) -> Text:
    """Return a note with its title in front."""
    return Text.assemble((f"! {escape_control(note.title)}: ", "bold yellow"), escape_control(note.text))


# --- printing ------------------------------------------------------------------------------------------------------


def console(*, stderr: bool = False) -> Console:
    """Return a console without markup, which breaks no lines when it writes to a file or pipe."""
    made = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    made.soft_wrap = not made.is_terminal
    return made


def show(where: Console, *parts: RenderableType) -> None:
    """Print parts; a table wider than the terminal is printed in full rather than cut."""
    for part in parts:
        if isinstance(part, Table):
            where.width = max(where.width, where.measure(part, options=where.options.update(width=10_000)).maximum)
        where.print(part)


def show_rows(
    where: Console, rows: Iterable[tuple[str, str]], width: int | None = None, *, verbatim: Collection[str] = ()
) -> None:
    """Print rows of a label and a text, which a terminal shows in lines of its width beside the label.

    Rows whose label is in ``verbatim`` are paths or commands: no line break of ours is in what is copied.
    """
    for name, text in rows:
        line = f"{name:<{INDENT}}{escape_control(text)}"
        if name in verbatim or not where.is_terminal:
            where.print(line, soft_wrap=True)
            continue
        held = line.replace(" %", f"{_HELD}%")  # a number stands beside its sign
        lines = fill(held, width or where.width, subsequent_indent=" " * INDENT, break_on_hyphens=False)
        where.print(lines.replace(_HELD, " "), soft_wrap=True)


# --- tables --------------------------------------------------------------------------------------------------------


def sweep_table(record: SweepRecord, ranking: Ranking, width: int) -> Table:
    """Return a table of layers x alphas in percent, with the whole model and its score below."""
    from dst_analyze.ranking.formats.table import remaining_table
    from dst_analyze.run.record import alpha_label

    kind, facts, alphas = record.manifest.data.score, record.layers, record.alphas
    rows = [
        [short(params), short(macs), *map(percent, ratios)]
        for params, macs, ratios in zip(
            facts["params"], facts["macs"], remaining_table(record, ranking).to_numpy(), strict=True
        )
    ]
    model = [short(facts["params"].sum()), short(facts["macs"].sum()), *(percent(record.remaining(a)) for a in alphas)]
    scores = ["", "", *(score_text(record.score(alpha), kind) for alpha in alphas)]
    unit = "accuracy %" if kind == "accuracy" else kind
    shorter = record.manifest.reference == "warm-up" and record.manifest.warm_up
    dense = "dense, trained half as long" if shorter else "dense"
    names = [*facts["layer"], "all layers", f"{unit} ({dense}: {score_text(record.dense.score, kind)})"]
    heads = ["params", "MACs", *map(alpha_label, alphas)]
    table = facts_table("layer", heads, names, [*rows, model, scores], width, below=2)
    table.title = "weights that remain, in %, at each alpha"
    return table


def layer_table(traced: TracedModel, width: int) -> Table:
    """Return a table of each layer's facts."""
    rows = [
        [
            elide(layer.kind, 20),
            "x".join(map(str, layer.shape)),
            short(layer.params),
            f"{short(layer.macs)}{'*' if layer.macs_note else ''}",
            str(layer.rung),
        ]
        for layer in traced.layers
    ]
    heads = ["kind", "shape", "params", "MACs", "rung"]
    return facts_table("layer", heads, [layer.name for layer in traced.layers], rows, width)


def show_plan(where: Console, plan: SlimPlan) -> None:
    """Print a plan: its rows, what it saves, and the other sizes that the same evidence leads to."""
    width = where.width
    if not plan.is_advice:
        show(where, *wrapped(plan.notes[:1], width))
        return
    show(where, plan_table(plan, width), *wrapped(plan_words(plan), width))
    if plan.ladder:
        show(where, "", ladder_table(plan, width), *wrapped([plan.ladder_words], width))


def export_lines(written: Suggestion) -> Iterator[str]:
    """Yield a line for each format that was asked for: where it is, and how far it is the slim model."""
    for export in written.exports:
        files = [name for name in export.files if "/" not in name]
        folders = dict.fromkeys(name.partition("/")[0] for name in export.files if "/" in name)
        paths = ", ".join(str(written.folder / name) for name in (*files, *folders))
        yield escape_control(f"{export.format:<12}{'  '.join(filter(None, (paths, export.words)))}")


def plan_table(plan: SlimPlan, width: int) -> Table:
    """Return a table of each group's width before and after, its density, rank and label."""
    rows = [[str(g.width), str(g.new_width), percent(g.density), g.excess_text, g.place, g.label] for g in plan.groups]
    heads = ["width", "becomes", "density %", "excess", plan.rank_head, "label"]
    names, why = [group.name for group in plan.groups], [group.because for group in plan.groups]
    return facts_table("group", heads, names, rows, width, why=why if any(why) else ())


def ladder_table(plan: SlimPlan, width: int) -> Table:
    """Return a table of parameters, MACs and widths at each size of the ladder."""
    named = plan.ladder_rows
    table = facts_table("", plan.ladder_heads, [name for name, _ in named], [cells for _, cells in named], width)
    table.title = f"widths at other sizes, as shares of the {'MACs' if plan.ladder[0].axis == 'macs' else 'parameters'}"
    return table


def plan_words(plan: SlimPlan) -> Iterator[str]:
    """Yield what a plan saves, its notes, and what is frozen."""
    yield ""
    yield f"parameters {short(plan.params)} -> {short(plan.new_params)} ({plan.new_params / plan.params:.1%})"
    if plan.macs and plan.new_macs is not None:
        yield f"MACs       {short(plan.macs)} -> {short(plan.new_macs)} ({plan.new_macs / plan.macs:.1%})"
    if plan.latency is not None:
        yield f"latency    {plan.latency:.1%} of the dense model's, measured here"
    if plan.target is not None:
        yield plan.target.sentence
    yield from plan.notes
    for branch in plan.depth:
        most = ", ".join(f"{shorten_middle(layer, 40)} {share:.1%}" for layer, share in branch.empty.items())
        layers = ", ".join(shorten_middle(layer, 40) for layer in branch.layers)
        yield (
            f"proposed, not done: leave out the residual branch of {layers}"
            f" ({short(branch.params)} parameters, {short(branch.macs)} MACs): near empty in every trial ({most})"
        )
    for reason, groups in plan.frozen_by_reason.items():
        first = sorted(groups, key=lambda frozen: not frozen.why)  # groups that rank as redundant come first
        more = f" and {len(groups) - 3} more" if len(groups) > 3 else ""
        named = ", ".join(frozen.why or shorten_middle(frozen.group, 40) for frozen in first[:3])
        yield f"frozen: {named}{more}: {reason}"


def verification_table(found: Verification, width: int) -> Table:
    """Return a table of the verified models."""
    rows = []
    for row in found.table.itertuples():
        half = (row.high - row.low) / 2
        spread = f"± {score_text(half, found.score)}" if math.isfinite(half) else ""
        rows.append(
            [
                score_text(row.score, found.score), spread, short(row.params), short(row.macs),
                "–" if math.isnan(row.latency_ms) else f"{row.latency_ms:.3g}", f"{row.memory / 1e6:.3g}",
            ]
        )  # fmt: skip
    unit = "accuracy %" if found.score == "accuracy" else found.score
    heads = [unit, "95 %", "params", "MACs", "ms", "MB"]
    return facts_table("model", heads, [entry.name for entry in found.entries], rows, width)


def ways_table(found: MethodComparison, width: int) -> Table:
    """Return a table of ranking methods and their agreement."""
    from dst_analyze.ranking.formats.serialize import agreement

    rows = [
        [
            agreement(found.tau.at[found.methods[0].name, method.name]),
            agreement(method.itself),
            f"{method.steps:,}",
        ]
        for method in found.methods
    ]
    heads = ["tau to the sweep", "W over its settings", "steps of training"]
    return facts_table("ranked by", heads, [method.name for method in found.methods], rows, width)


def inspection_notes(traced: TracedModel) -> Iterator[str]:
    """Yield notes on coverage, rungs, skipped weights and uncounted operations."""
    from dst_analyze.ranking.formats.table import by_reason

    yield traced.coverage.describe()
    for rung in sorted({layer.rung for layer in traced.layers}):
        yield f"rung {rung}: {_RUNGS[rung]}"
    for note in dict.fromkeys(layer.macs_note for layer in traced.layers if layer.macs_note):
        yield f"* MACs: {note}"
    if traced.uncounted:
        yield f"not in the MACs (torch's FlopCounterMode has no formula): {', '.join(traced.uncounted)}"
    yield from traced.notes
    for reason, entries in by_reason(traced.skipped):
        names = ", ".join(shorten_middle(entry.name, 40) for entry in entries[:3])
        more = f" and {len(entries) - 3} more" if len(entries) > 3 else ""
        place = f" at {entries[0].place}" if entries[0].place else ""
        yield f"skipped, {short(sum(entry.params for entry in entries))} parameters: {reason}: {names}{more}{place}"


def facts_table(
    what: str,
    heads: Sequence[str],
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    below: int = 0,
    why: Sequence[str] = (),
) -> Table:
    """Return a table whose names are shortened if it is too wide; the last ``below`` rows are set apart.

    ``why`` is a text for each row, wrapped if necessary.
    """
    values = sum(max(map(cell_len, column)) + _GAP for column in zip(heads, *rows, strict=True))
    room = max(NARROWEST_NAME, width - values - (_NARROWEST_WHY + _GAP if why else 0))
    last = len(names) - below  # rows apart have sentences in place of names
    shown = [*shorten_names(names[:last], room), *(elide(name, room) for name in names[last:])]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title_justify="left")
    table.add_column(what, no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    if why:
        named = max(map(cell_len, (what, *shown)))
        table.add_column("why", max_width=max(_NARROWEST_WHY, width - values - named - _GAP))
    for number, (name, row) in enumerate(zip(shown, rows, strict=True), 1):
        text = [escape_control(why[number - 1])] if why else []
        table.add_row(name, *row, *text, end_section=below > 0 and number == len(rows) - below)
    return table


def score_text(value: float | None, kind: str) -> str:
    """Return a score in a table: an accuracy in percent, without its sign."""
    if value is None:
        return "–"
    return f"{100 * value:.1f}" if kind == "accuracy" else f"{value:.3g}"

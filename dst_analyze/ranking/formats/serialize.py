"""Rankings as text for terminals, Markdown, CSV and JSON; CSV and JSON can be read back."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd

from dst_analyze.errors import DataError
from dst_analyze.ranking.evidence import Agreement
from dst_analyze.ranking.statistics.measures import Explained, Interval
from dst_analyze.ranking.statistics.pairs import Guesses
from dst_analyze.ranking.verdict import Caveat, Verdict, why_of_note
from dst_analyze.run.record import alpha_label
from dst_analyze.text import (
    elide,
    escape_control,
    from_spreadsheet,
    percent,
    plain_table,
    short,
    spreadsheet_name,
    wrapped,
)

if TYPE_CHECKING:
    from dst_analyze.ranking.result import Ranking

SCHEMA = 2
_TEXTS = {"layer", "label", "reason", "group", "status", "spare_words"}
_COUNTS = {"position", "resets", "seed", "seeds", "layers"}
_MARKS = {**{mark: f"\\{mark}" for mark in "\\`*_[]|#~!$"}, "<": "&lt;", ">": "&gt;", "&": "&amp;", "\n": " "}
_SWEEP = "sweep"


# --- for people ----------------------------------------------------------------------------------------------------


def text(ranking: Ranking, table: pd.DataFrame, width: int, by: str) -> str:
    """Return a table for a terminal, with the verdict and the notes below it."""
    heads, rows = _shown(table, by)
    below = [f"{len(ranking.table) - len(table)} more layers"] if len(table) < len(ranking.table) else []
    said = [f"Verdict: {ranking.verdict}.", *ranking.notes]
    return "\n".join([plain_table(heads, rows, width), *below, *_joint_rows(ranking, width), "", *wrapped(said, width)])


def _joint_rows(ranking: Ranking, width: int) -> list[str]:
    """Return lines of a table with a row for each group of layers that must shrink together."""
    joint = ranking.groups[ranking.groups["layers"] > 1] if ranking.groups is not None else pd.DataFrame()
    if joint.empty:
        return []
    columns = (
        map(str, joint["layers"]),
        joint["label"],
        map(rank_text, joint["rank"]),
        map(signed, joint["redundancy"]),
        map(short, joint["params_given_up"]),
    )
    rows = [[name, *cells] for name, *cells in zip(joint["group"], *columns, strict=True)]
    return ["", plain_table(["shrink together", "layers", "label", "rank", "redundancy", "gives up"], rows, width)]


def markdown(ranking: Ranking, table: pd.DataFrame, by: str) -> str:
    """Return the table, the verdict and the notes as Markdown."""
    heads, rows = _shown(table, by)
    names = [escaped(elide(row[0], 200)) for row in rows]
    lines = [
        _row(["layer", *map(escaped, heads[1:])]),
        _row(["---", *["---:"] * (len(heads) - 1)]),
        *(_row([name, *row[1:]]) for name, row in zip(names, rows, strict=True)),
    ]
    notes = [f"- {escaped(escape_control(note))}" for note in ranking.notes]
    return "\n".join([*lines, "", f"**Verdict: {escaped(ranking.verdict)}.**", "", *notes])


def escaped(words: str) -> str:
    """Return text with everything escaped that Markdown would interpret."""
    return "".join(_MARKS.get(c, c) for c in words)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(table: pd.DataFrame, by: str) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the columns that people read; null, control and spare only if known."""
    gain = "macs_given_up" if by == "macs" else "params_given_up"
    columns = {
        "label": table["label"],
        "rank": map(rank_text, table["rank"]),
        "95 %": map(places, table["rank_low"], table["rank_high"]),
        "redundancy": map(signed, table["redundancy"]),
        "-null": map(signed, table["beyond_null"]),
        "-control": map(signed, table["beyond_control"]),
        "keeps %": map(percent, table["remaining"]),
        "spare %": map(whole_percent, table["spare"]),
        "MACs saved" if by == "macs" else "gives up": map(short, table[gain]),
    }
    known = {"-null": "beyond_null", "-control": "beyond_control", "spare %": "spare"}
    shown = {
        head: list(cells) for head, cells in columns.items() if head not in known or table[known[head]].notna().any()
    }
    rows = [[name, *cells] for name, *cells in zip(table["layer"], *shown.values(), strict=True)]
    return ["layer", *shown], rows


def rank_text(rank: float) -> str:
    """Return a rank, with one decimal if it is shared; a dash if there is none."""
    return "–" if math.isnan(rank) else f"{rank:.0f}" if rank == round(rank) else f"{rank:.1f}"


def places(low: float, high: float) -> str:
    """Return a range of ranks; a dash if there is none."""
    return "–" if math.isnan(low) else rank_text(low) if low == high else f"{rank_text(low)}–{rank_text(high)}"


def agreement(value: float) -> str:
    """Return a tau or a W with two decimals; a dash if there is none."""
    return "–" if math.isnan(value) else f"{value:.2f}"


def whole_percent(share: float) -> str:
    """Return a share (0 to 1) as a percentage without decimals; a dash if it is not known."""
    return "–" if math.isnan(share) else f"{100 * share:.0f}"


def signed(value: float) -> str:
    """Return a number with its sign and two decimals; a dash if it is not known."""
    return "–" if math.isnan(value) else f"{value + 0.0:+.2f}"


# --- for programs --------------------------------------------------------------------------------------------------


def to_json(ranking: Ranking, table: pd.DataFrame) -> str:
    """Return the ranking as JSON, with these rows of its table."""
    return json.dumps({**_sweep(ranking), "table": _frame(table)}, indent=1, allow_nan=False)


def from_json(words: str) -> dict[str, Any]:
    """Return the fields of the ranking that `to_json` wrote."""
    try:
        held = json.loads(words)
        return _fields(held, _to_frame(held["table"]))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _not_a_ranking("JSON", error) from error


def to_csv(ranking: Ranking, table: pd.DataFrame) -> str:
    """Return a row per layer; all else is JSON in the last column of the first row."""
    ratios = ranking.remaining()
    wide = {f"remaining at {alpha_label(float(a))}": list(ratios[a].reindex(table["layer"])) for a in ratios.columns}
    sweep = [json.dumps(_sweep(ranking), allow_nan=False), *[""] * (len(table) - 1)]
    full = pd.DataFrame({**table, **wide, _SWEEP: sweep})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # a name may hold a carriage return
    writer.writerow(full.columns)
    for row in full.itertuples(index=False):
        writer.writerow([_cell(name, value) for name, value in zip(full.columns, row, strict=True)])
    return out.getvalue()


def from_csv(words: str) -> dict[str, Any]:
    """Return the fields of the ranking that `to_csv` wrote."""
    try:
        head, *rows = csv.reader(io.StringIO(words, newline=""))
        sweep = json.loads(rows[0][head.index(_SWEEP)])
        columns = sweep["columns"]
        where = [head.index(name) for name in columns]
        cells = [[_value(name, row[at]) for name, at in zip(columns, where, strict=True)] for row in rows]
        return _fields(sweep, _to_frame({"columns": columns, "rows": cells}))
    except (ValueError, KeyError, TypeError, IndexError, csv.Error) as error:
        raise _not_a_ranking("CSV", error) from error


def _sweep(ranking: Ranking) -> dict[str, Any]:
    """Return all of a ranking except its table."""
    between = ranking.alpha_correlation
    return {
        "schema_version": SCHEMA,
        "verdict": ranking.verdict.value,
        "caveats": [caveat.value for caveat in ranking.caveats],
        "notes": list(ranking.notes),
        "statistics": _plain(asdict(ranking.statistics)),
        "columns": list(ranking.table.columns),
        "by_alpha": _frame(ranking.by_alpha),
        "alpha_correlation": {
            "alphas": [float(alpha) for alpha in between.columns],
            "rows": _plain(between.to_numpy().tolist()),
        },
        "trials": _frame(ranking.trials),
        "groups": None if ranking.groups is None else _frame(ranking.groups),
    }


def _fields(held: dict[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    if held["schema_version"] != SCHEMA:
        raise ValueError(f"it is in format {held['schema_version']}, this version reads format {SCHEMA}")
    statistics: dict[str, Any] = {
        name: math.nan if value is None else value for name, value in held["statistics"].items()
    }
    statistics["interval"] = Interval(**_known(held["statistics"]["interval"]))
    for name, kind in (("null", Explained), ("control", Explained), ("guesses", Guesses)):
        by = held["statistics"][name]
        statistics[name] = None if by is None else kind(**_known(by))
    between = held["alpha_correlation"]
    alphas = between["alphas"]
    verdict = Verdict(held["verdict"])
    return {
        "verdict": verdict,
        "why": why_of_note(verdict, held["notes"][0]),
        "caveats": tuple(Caveat(caveat) for caveat in held["caveats"]),
        "notes": tuple(held["notes"]),
        "statistics": Agreement(**statistics),
        "table": table,
        "by_alpha": _to_frame(held["by_alpha"]),
        "alpha_correlation": pd.DataFrame(between["rows"], index=alphas, columns=alphas, dtype=float),
        "trials": _to_frame(held["trials"]),
        "groups": None if held["groups"] is None else _to_frame(held["groups"]),
    }


def _known(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in numbers.items()}


def _frame(frame: pd.DataFrame) -> dict[str, Any]:
    columns = list(frame.columns)
    rows = zip(*(_plain(frame[name].tolist()) for name in columns), strict=True)
    return {"columns": columns, "rows": [list(row) for row in rows]}


def _to_frame(held: dict[str, Any]) -> pd.DataFrame:
    return typed(pd.DataFrame(held["rows"], columns=held["columns"], dtype=object))


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with each column in its fixed type: text, int, bool or float."""
    return frame.astype({name: _kind(name) for name in frame.columns})


def _kind(name: str) -> type:
    return object if name in _TEXTS else int if name in _COUNTS else bool if name == "control" else float


def _plain(value: Any) -> Any:
    """Return the value with NaN as None: JSON has no NaN."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _cell(name: str, value: Any) -> Any:
    if name in _TEXTS:
        return spreadsheet_name(value)
    return "" if isinstance(value, float) and math.isnan(value) else value


def _value(name: str, cell: str) -> Any:
    kind = _kind(name)
    if kind is object:
        return from_spreadsheet(cell)
    return math.nan if cell == "" else kind(cell)


def _not_a_ranking(kind: str, error: Exception) -> DataError:
    return DataError(f"this {kind} is not a ranking of dst-analyze: {error}", hint="`dst-analyze rank` writes one")

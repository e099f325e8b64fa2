"""Agreement of several rankings: of other data, another budget or another version of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from dst_analyze.errors import OptionError
from dst_analyze.ranking.formats.serialize import rank_text
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.statistics.measures import correlations, kendalls_w, permutation_p, ranks
from dst_analyze.ranking.verdict import CHANCE, NEEDED, REDUNDANT, SAME_ORDER, Verdict
from dst_analyze.text import elide, plain_table, wrapped

_MOST_MATCHED = 4_000_000  # pairs of layers; more are matched by their names alone

AGREE, IN_PART, DISAGREE, UNKNOWN = "the runs agree", "the runs agree in part", "the runs do not agree", "no comparison"


@dataclass(frozen=True, eq=False)
class Comparison:
    """The layers that several runs share, with their rank and label in each run.

    ``table`` has a row per layer found in every run: its name, rank (among these layers) and label in each.
    ``agreement`` is Kendall's W over the runs, ``correlation`` Spearman's between any two, ``unmatched`` the layers of
    each run that have no counterpart, ``opposed`` those that one run calls redundant and another needed.
    """

    verdict: str
    notes: tuple[str, ...]
    agreement: float
    p_value: float
    correlation: pd.DataFrame
    table: pd.DataFrame
    unmatched: dict[str, list[str]]
    opposed: list[str]

    def text(self, width: int) -> str:
        """Return a table for a terminal, with the verdict and the notes below it."""
        runs = list(self.unmatched)
        heads = ["layer", *(str(n) for n in range(1, len(runs) + 1)), "apart", "labels"]
        rows = [
            [
                row["layer"] if row["matched"] == "name" else f"{row['layer']} *",
                *(rank_text(row[f"rank {run}"]) for run in runs),
                rank_text(row["apart"]),
                _labels([row[f"label {run}"] for run in runs]),
            ]
            for _, row in self.table.iterrows()
        ]
        named = [f"{number}  {elide(run, max(width - 4, 20))}" for number, run in enumerate(runs, 1)]
        said = [f"Verdict: {self.verdict}.", *self.notes]
        return "\n".join([*named, "", plain_table(heads, rows, width), "", *wrapped(said, width)])


def compare_rankings(rankings: Mapping[str, Ranking]) -> Comparison:
    """Compare rankings layer by layer, matched by name, else by position between layers of equal names."""
    if len(rankings) < 2:
        raise OptionError("a comparison takes at least two runs", hint="dst-analyze compare RUN RUN ...")
    runs = list(rankings)
    tables = {run: ranking.table.sort_values("position").set_index("layer") for run, ranking in rankings.items()}
    names = {run: list(table.index) for run, table in tables.items()}
    partner = {run: counterparts(names[runs[0]], names[run]) for run in runs}
    common = [
        layer
        for layer in names[runs[0]]
        if all(layer in partner[run] and _ranked(tables[run], partner[run][layer]) for run in runs)
    ]
    values = np.array([[tables[run].at[partner[run][layer], "redundancy"] for layer in common] for run in runs])
    order = ranks(values) if common else values
    table = pd.DataFrame({"layer": common, "matched": [_matched_by(layer, partner) for layer in common]}, dtype=object)
    for run, row in zip(runs, order, strict=True):
        table[f"name {run}"] = [partner[run][layer] for layer in common]
        table[f"rank {run}"] = row
        table[f"label {run}"] = [tables[run].at[partner[run][layer], "label"] for layer in common]
    table["apart"] = np.ptp(order, axis=0) if common else []
    w, p = float("nan"), float("nan")
    if len(common) > 1:
        w, p = kendalls_w(order), permutation_p(order, np.random.default_rng(0))
    between = correlations(order) if common else np.full((len(runs), len(runs)), np.nan)
    opposed = [
        layer
        for layer in common
        if {REDUNDANT, NEEDED} <= {tables[run].at[partner[run][layer], "label"] for run in runs}
    ]
    found = {run: {partner[run][layer] for layer in common} for run in runs}
    unmatched = {run: [name for name in names[run] if name not in found[run]] for run in runs}
    verdict, why = _verdict(between, w, p, len(common))
    notes = [why, *_notes(rankings, table, unmatched, opposed)]
    return Comparison(
        verdict, tuple(notes), w, p, pd.DataFrame(between, index=runs, columns=runs), table, unmatched, opposed
    )


def counterparts(one: Sequence[str], other: Sequence[str]) -> dict[str, str]:
    """Return the counterpart in the other network of each layer in this one; both in graph order.

    Layers of equal names match. Between two of these, unmatched layers are paired in order if both sides have the same
    number of them.
    """
    pairs = {name: name for name in one if name in set(other)}
    free = [[name for name in names if name not in pairs] for names in (one, other)]
    if not (free[0] and free[1]) or len(one) * len(other) > _MOST_MATCHED:
        return pairs
    for tag, a, b, c, d in SequenceMatcher(None, list(one), list(other), autojunk=False).get_opcodes():
        left, right = ([n for n in part if n in only] for part, only in ((one[a:b], free[0]), (other[c:d], free[1])))
        if tag == "replace" and len(left) == len(right):
            pairs |= dict(zip(left, right, strict=True))
    return pairs


def _ranked(table: pd.DataFrame, layer: str) -> bool:
    return not np.isnan(table.at[layer, "redundancy"])


def _matched_by(layer: str, partner: Mapping[str, Mapping[str, str]]) -> str:
    return "name" if all(found[layer] == layer for found in partner.values()) else "position"


def _verdict(between: np.ndarray, w: float, p: float, layers: int) -> tuple[str, str]:
    if layers < 2:
        return UNKNOWN, f"{layers} layers are ranked in every run: at least two are needed to compare."
    lowest = np.nanmin(between) if not np.isnan(between).all() else float("nan")
    if np.isnan(w) or np.isnan(lowest):
        return UNKNOWN, "All layers are tied: there is no order to compare."
    said = f"Kendall's W {w:.2f}, p {p:.2g}, {layers} layers; the two runs furthest apart correlate {lowest:+.2f}"
    if p > CHANCE:
        return DISAGREE, f"Runs that rank at random may agree as well ({said})."
    if lowest < SAME_ORDER:
        return IN_PART, f"The runs agree better than chance, but not every pair of them agrees closely ({said})."
    return AGREE, f"Any two runs give much the same order ({said})."


def _notes(
    rankings: Mapping[str, Ranking], table: pd.DataFrame, unmatched: Mapping[str, list[str]], opposed: Sequence[str]
) -> list[str]:
    notes = []
    for number, ranking in enumerate(rankings.values(), 1):
        if ranking.verdict is not Verdict.CONSISTENT:
            notes.append(f"Run {number} by itself: {ranking.verdict}. Read its ranks accordingly.")
    if opposed:
        notes.append(f"Redundant in one run, needed in another: {_listed(opposed)}.")
    moved = int((table["matched"] == "position").sum())
    if moved:
        notes.append(f"* {moved} layers have other names elsewhere and were matched by their position in the graph.")
    for number, names in enumerate(unmatched.values(), 1):
        if names:
            notes.append(f"Without a counterpart in all others, or not measured, in run {number}: {_listed(names)}.")
    return notes


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(elide(name, 40) for name in names[:5]) + more


def _labels(found: Sequence[str]) -> str:
    return found[0] if len(set(found)) == 1 else " / ".join(found)

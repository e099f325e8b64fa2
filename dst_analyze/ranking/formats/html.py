"""HTML of a ranking for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dst_analyze.html import html_table
from dst_analyze.ranking.formats.serialize import places, rank_text, signed, whole_percent
from dst_analyze.run.record import alpha_label
from dst_analyze.text import percent, short

if TYPE_CHECKING:
    from dst_analyze.ranking.result import Ranking


def as_html(ranking: Ranking) -> str:
    """Return the ranking as an HTML table, with the verdict above and the notes below."""
    remaining = ranking.remaining()
    heads = ["layer", "label", "rank", "95 % interval", "redundancy", "beyond null"]
    heads += [f"keeps % at {alpha_label(float(alpha))}" for alpha in remaining.columns]
    spare = ["spare %"] if ranking.table["spare"].notna().any() else []
    heads += [*spare, "weights given up", "MACs given up", "because"]
    ratios = remaining.to_numpy()
    rows = [
        [
            row.layer,
            row.label,
            rank_text(row.rank),
            places(row.rank_low, row.rank_high),
            signed(row.redundancy),
            signed(row.beyond_null),
            *(percent(ratio) for ratio in ratios[row.position]),
            *(whole_percent(row.spare) for _ in spare),
            short(row.params_given_up),
            short(row.macs_given_up),
            row.reason,
        ]
        for row in ranking.table.itertuples(index=False)
    ]
    return html_table(f"Verdict: {ranking.verdict}.", heads, rows, ranking.notes, words=1)

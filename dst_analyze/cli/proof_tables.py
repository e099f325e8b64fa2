"""Tables of proofs at several sizes for the terminal."""

from __future__ import annotations

import math

from rich.table import Table

from dst_analyze.cli.terminal import facts_table, score_text
from dst_analyze.slimming.proof.ladder_result import LadderProof
from dst_analyze.text import short, size_text


def ladder_proof_table(found: LadderProof, width: int) -> Table:
    """Return a table of every model at every size of a ladder, with how the suggestion stands against it."""
    names, rows = [], []
    for row in found.table.itertuples():
        names.append(f"{size_text(row.share)} {row.model}")
        rows.append(
            [
                score_text(row.score, found.score),
                f"± {score_text(row.half, found.score)}" if math.isfinite(row.half) else "",
                str(row.seeds),
                short(row.params),
                short(row.macs),
                row.standing,
            ]
        )
    unit = "accuracy %" if found.score == "accuracy" else found.score
    return facts_table("size and model", [unit, "95 %", "seeds", "params", "MACs", "suggestion"], names, rows, width)

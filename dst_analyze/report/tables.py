"""The report's numbers as CSV files beside it; no cell of text is taken for a formula."""

from __future__ import annotations

import pandas as pd

from dst_analyze.run.atomic_io import spreadsheet_safe
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.text import spreadsheet_name


def trial_table(record: SweepRecord) -> pd.DataFrame:
    """One row per trial: how it ended. Times are left out, as they are never the same twice."""
    rows = [
        (
            "" if t.alpha is None else t.alpha, t.seed, t.control, t.alpha not in record.probed, t.status, t.steps,
            t.stable, t.remaining, t.loss, t.score, sum(t.resets.values()), spreadsheet_name(t.reason),
        )
        for t in record.trials
    ]  # fmt: skip
    facts = ["alpha", "seed", "control", "used", "status", "steps", "stable"]
    return pd.DataFrame(rows, columns=[*facts, "remaining", "loss", "score", "resets", "reason"])


def width_table(plan: SlimPlan) -> pd.DataFrame:
    """One row per group of channels that shrink together."""
    return spreadsheet_safe(plan.table, ["group", "layers", "why"])

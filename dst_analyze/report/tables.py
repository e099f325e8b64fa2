"""The report's CSV tables; cells that look like formulas are escaped."""

from __future__ import annotations

import pandas as pd

from dst_analyze.run.files.atomic_io import spreadsheet_safe
from dst_analyze.run.record import SweepRecord
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.text import spreadsheet_name


def trial_table(record: SweepRecord) -> pd.DataFrame:
    """Return a row per trial; without times, so that the same run gives the same table."""
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
    """Return a row per group of channels that shrink together."""
    return spreadsheet_safe(plan.table, ["group", "layers", "why"])

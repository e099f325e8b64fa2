"""A sweep as two tables, which trackers show: a row per trial, and a row per trial and layer."""

from __future__ import annotations

import pandas as pd

from dst_analyze.run.events import TrialStep
from dst_analyze.run.record import SweepRecord, TrialKey, last_quarter

TRIAL_COLUMNS = ["trial", "alpha", "seed", "status", "steps", "loss", "score", "remaining"]
LAYER_COLUMNS = ["alpha", "seed", "control", "layer", "remaining"]


def trial_table(record: SweepRecord) -> pd.DataFrame:
    """Return a row per trial: how it ended, its loss and score, and what remains of the model."""
    rows = [(t.key.label, t.alpha, t.seed, t.status, t.steps, t.loss, t.score, t.remaining) for t in record.trials]
    return pd.DataFrame(rows, columns=TRIAL_COLUMNS)


def layer_table(record: SweepRecord) -> pd.DataFrame:
    """Return a row per trial and layer: what remains of the layer, the median over the trial's last quarter."""
    keys = LAYER_COLUMNS[:-1]
    if record.frame.empty:
        return pd.DataFrame(columns=LAYER_COLUMNS)
    return last_quarter(record.frame).groupby(keys, sort=False, as_index=False)["remaining"].median()


def curve_name(trial: TrialKey) -> str:
    """Return what a trial's curves are called: without the signs that trackers give a meaning to."""
    return trial.label.replace(",", "").replace(".", "_")


def step_values(event: TrialStep) -> dict[str, float]:
    """Return a step's loss, score and share left of the model, as far as they are known."""
    values = {"loss": event.loss, "score": event.score, "remaining": event.remaining}
    return {name: value for name, value in values.items() if value is not None}

"""Evidence for widths: from the masks of a sweep, from a table of ratios, from the null, or equal for all groups."""

from __future__ import annotations

import numpy as np

from dst_analyze.channels.groups import Coupling
from dst_analyze.errors import DataError
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.ranking.result import Ranking
from dst_analyze.ranking.statistics.measures import COLLAPSED
from dst_analyze.run.files.masks import read_masks
from dst_analyze.run.files.paths import MASKS, trial_folder
from dst_analyze.run.record import SweepRecord, TrialResult
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence, Masks, from_masks, from_ratios, late_ratios
from dst_analyze.slimming.planning.ranked import Ranked


def equal_evidence(coupling: Coupling) -> Evidence:
    """Return evidence that is the same for every group."""
    return {group.name: GroupEvidence.equal(group.width) for group in coupling.removable}


def table_ratios(traced: TracedModel, ranking: Ranking, ranked: Ranked) -> list[dict[str, float]]:
    """Return the layers' ratios at each usable alpha, for a ranking without a sweep."""
    if not {layer.name for layer in traced.layers} & {*ranked.labels}:
        raise DataError(
            "the ranking is of other layers than this model's",
            hint="layers are named as `dst-analyze inspect` shows them, e.g. "
            + ", ".join(repr(layer.name) for layer in traced.layers[:3]),
        )
    alphas, table = {key.alpha for key in ranked.used}, ranking.remaining()
    return [table[alpha].dropna().to_dict() for alpha in table.columns if alpha in alphas]


def sweep_evidence(coupling: Coupling, record: SweepRecord, ranked: Ranked) -> Evidence:
    """Return evidence from the final masks of the usable trials that do the task, or of all usable ones if none does.

    A layer whose thresholds were reset counts as collapsed, as it does in the ranking: its last mask shows only how
    long ago the reset was.
    """
    parameters = dict(zip(record.layers["layer"], record.layers["parameter"], strict=True))
    if not ranked.used:
        raise ranked.no_evidence()
    trials = working_trials(record, ranked) or _usable(record, ranked)

    def masks_of(trial: TrialResult) -> Masks:
        masks = read_masks(trial_folder(record.folder, trial.key) / MASKS)
        return {n: np.full(mask.shape, COLLAPSED) if n in trial.resets else mask for n, mask in masks.items()}

    return from_masks(coupling, parameters, map(masks_of, trials))


def _usable(record: SweepRecord, ranked: Ranked) -> list[TrialResult]:
    trials = [trial for alpha in record.alphas for trial in record.at(alpha)]
    return [trial for trial in trials if trial.key in ranked.used]


def working_trials(record: SweepRecord, ranked: Ranked) -> list[TrialResult]:
    """Return the usable trials that do the task."""
    return [trial for trial in _usable(record, ranked) if record.does_the_task(trial)]


def null_evidence(coupling: Coupling, record: SweepRecord) -> Evidence:
    """Return evidence from the null, that is, from the initial weights alone."""
    return from_ratios(coupling, list(late_ratios(record, "null").values()))

"""Measured ratios as arrays, a row per trial and a column per layer, with each trial's status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from dst_analyze.errors import DataError
from dst_analyze.ranking.input.frame_input import COLUMNS, TRIAL, checked_frame
from dst_analyze.ranking.statistics.measures import COLLAPSED, floors
from dst_analyze.run.record import UNPRUNED, SweepRecord

USED = "used"


@dataclass(frozen=True)
class Measured:
    """Measured ratios of every trial and layer.

    ``layers`` are in network order (layer, params, macs, group), ``trials`` have control, alpha, seed, status and
    reason. Arrays have a row per trial and a column per layer; NaN where there is no ratio, or no null. ``read`` are
    the ratios as measured, ``ratios`` those that are ranked: a layer that was reset counts as collapsed, because its
    later ratio depends on when the reset came.
    """

    layers: pd.DataFrame
    trials: pd.DataFrame
    read: np.ndarray
    null: np.ndarray
    resets: np.ndarray

    @property
    def ratios(self) -> np.ndarray:
        """The ratios that are ranked; at most `COLLAPSED` for a layer that was reset."""
        return np.where(self.resets > 0, np.minimum(self.read, COLLAPSED), self.read)

    @property
    def params(self) -> np.ndarray | None:
        """Weights of each layer; None if they are not known, and every layer counts the same."""
        counts = self.layers["params"].to_numpy(float)
        return None if np.isnan(counts).any() else counts

    def rows(self, *, control: bool = False) -> np.ndarray:
        """Return a mask of the used trials, of the sweep or of its control."""
        chosen: np.ndarray = ((self.trials["control"] == control) & (self.trials["status"] == USED)).to_numpy(bool)
        return chosen

    def take(self, layers: np.ndarray) -> Measured:
        """Return the measurements of some of the layers."""
        arrays = {name: getattr(self, name)[:, layers] for name in ("read", "null", "resets")}
        return replace(self, layers=self.layers[layers].reset_index(drop=True), **arrays)

    def grouped(self) -> Measured:
        """Return measurements with groups in place of layers; a layer without a group is a group of one."""
        names = [group or layer for group, layer in zip(self.layers["group"], self.layers["layer"], strict=True)]
        order = list(dict.fromkeys(names))
        member = np.array([[name == group for name in names] for group in order], dtype=float)
        weights = np.ones(len(names)) if self.params is None else self.params
        shares = member * weights / (member * weights).sum(axis=1, keepdims=True)
        facts = self.layers.assign(layer=names, layers=1, group="")
        layers = facts.groupby("layer", sort=False)[["params", "macs", "layers"]].sum(min_count=1).reset_index()
        return replace(
            self,
            layers=layers.assign(group=""),
            read=self.ratios @ shares.T,
            null=self.null @ shares.T,
            resets=np.zeros((len(self.trials), len(order))),  # counted layer by layer, above
        )


def measured(source: SweepRecord | pd.DataFrame, groups: Mapping[str, str] | None = None) -> Measured:
    """Return the measurements of a record or a frame, with every trial's status."""
    known = _of_record(source) if isinstance(source, SweepRecord) else _of_frame(checked_frame(source))
    if groups is not None:
        names = list(known.layers["layer"])
        unknown = next((name for name in groups if name not in names), None)
        if unknown is not None:
            raise DataError(f"groups: there is no layer {unknown!r}", hint=f"layers: {', '.join(names[:8])}, ...")
        known = replace(known, layers=known.layers.assign(group=[str(groups.get(name) or "") for name in names]))
    return known


def _of_record(record: SweepRecord) -> Measured:
    facts = record.layers[["layer", "params", "macs"]].assign(group="")
    nothing = pd.DataFrame({name: [] for name in COLUMNS})
    frame = nothing if record.frame.empty else checked_frame(record.frame)
    lost = [
        (trial.control, trial.alpha, trial.seed, trial.status, trial.reason)
        for trial in record.trials
        if trial.alpha in record.alphas and trial.status != "done"
    ]
    return _arrays(frame, facts, pd.DataFrame(lost, columns=[*TRIAL, "status", "reason"]))


def _of_frame(frame: pd.DataFrame) -> Measured:
    facts = frame.drop_duplicates("layer")[["layer", "params", "macs", "group"]].reset_index(drop=True)
    return _arrays(frame, facts, pd.DataFrame(columns=[*TRIAL, "status", "reason"]))


def _arrays(frame: pd.DataFrame, layers: pd.DataFrame, lost: pd.DataFrame) -> Measured:
    seen = frame[TRIAL].drop_duplicates().assign(status=USED, reason="")
    trials = pd.concat([part for part in (seen, lost) if len(part)] or [seen]).sort_values(TRIAL, ignore_index=True)
    row = pd.MultiIndex.from_frame(trials[TRIAL]).get_indexer(pd.MultiIndex.from_frame(frame[TRIAL]))
    column = pd.Index(layers["layer"]).get_indexer(frame["layer"])

    def array(name: str, empty: float) -> np.ndarray:
        values = np.full((len(trials), len(layers)), empty)
        values[row, column] = frame[name]
        return values

    read, null = array("remaining", np.nan), array("null", np.nan)
    return _with_status(Measured(layers, trials, read, null, array("resets", 0.0)))


def _with_status(made: Measured) -> Measured:
    """Return trials with the model's ratio; a trial that cannot order layers loses the status used."""
    weights = np.ones(len(made.layers)) if made.params is None else made.params
    known = ~np.isnan(made.read)
    ratios, total = np.where(known, made.read, 0), (known * weights).sum(axis=1)
    remaining = np.divide(ratios @ weights, total, out=np.full(len(total), np.nan), where=total > 0)
    collapsed = (ratios <= floors(made.params, len(made.layers))).all(axis=1) & known.any(axis=1)
    status, reason = list(made.trials["status"]), list(made.trials["reason"])
    for at, ratio in enumerate(remaining):
        if status[at] != USED:
            continue
        if collapsed[at]:
            status[at], reason[at] = "collapsed", "no layer kept more than one weight"
        elif ratio > UNPRUNED:
            status[at], reason[at] = "unpruned", f"{ratio:.1%} of the weights remained"
    return replace(made, trials=made.trials.assign(status=status, reason=reason, remaining=remaining))

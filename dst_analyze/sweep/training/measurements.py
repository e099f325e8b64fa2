"""Measurements of a model during training, at regular steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pandas as pd
import torch
from torch import nn

from dst_analyze.masking.layer import MaskedLayer
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.run.events import Emit, TrialStep
from dst_analyze.run.record import READING_COLUMNS, STEP_COLUMNS, TrialKey, TrialOutput, TrialResult, last_quarter
from dst_analyze.sweep.training.early_stop import Stability
from dst_analyze.sweep.training.magnitudes import Magnitudes

READINGS = 40
"""Measurements of the masks per trial; ten of them are in the last quarter, which counts."""
SCORES = 5
"""Scores per trial during training, on a few test batches; fewer in short runs, where they would cost time."""
PULSE = 0.5
"""Seconds between two progress events of a trial, at most."""
STEPS_BETWEEN_SCORES = 60
"""The least number of steps between two scores."""
_KEPT = ("layers", "totals", "losses")
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_FEW = 1 << 12  # thresholds of a layer beyond which quantiles are computed from a part of them


class Readings:
    """The measurements of one trial, collected by `on_step` during training.

    ``initial`` are the weights that the null is computed from; by default those that the model has now.
    """

    def __init__(
        self,
        key: TrialKey,
        model: nn.Module | MaskedModel,
        steps: int,
        score: Callable[[], float] | None,
        emit: Emit,
        *,
        initial: Magnitudes | None = None,
        until_stable: bool = False,
    ) -> None:
        self.key, self.steps, self.score, self.emit = key, steps, score, emit
        self.last_event = time.monotonic()
        self.masked = model if isinstance(model, MaskedModel) else None
        self.initial = initial or (Magnitudes(self.masked.layer_weights()) if self.masked else None)
        self.stability = Stability(steps) if until_stable and self.masked else None
        self.every = max(1, steps // READINGS)
        self.layers: list[tuple[Any, ...]] = []
        self.totals: list[tuple[int, float, float | None, float | None]] = []
        self.losses: list[float] = []
        self.scored_at = 0
        self.last_score: float | None = None

    def on_step(self, step: int, loss: float | None) -> bool:
        """Measure the model if it is due; return True if the trial may end."""
        if loss is not None:
            self.losses.append(loss)
        now = time.monotonic()
        if step % self.every and step != self.steps:
            if now - self.last_event >= PULSE:
                self.last_event = now
                remaining = self.totals[-1][3] if self.totals else None
                self.emit(TrialStep(self.key, step, self.steps, loss, remaining, self.last_score))
            return False
        self.last_event = now
        remaining = self._read_layers(step) if self.masked else None
        score = None
        if self.score is not None and step - self.scored_at >= max(STEPS_BETWEEN_SCORES, self.steps // SCORES):
            score = self.last_score = self.score()
            self.scored_at = step
        mean = sum(self.losses) / len(self.losses) if self.losses else None
        self.losses.clear()
        self.totals.append((step, math.nan if mean is None else mean, score, remaining))
        layers = {row[1]: row[2] for row in self.layers[-len(self.masked.layers) :]} if self.masked else None
        self.emit(TrialStep(self.key, step, self.steps, mean, remaining, self.last_score, layers))
        if self.stability is None or remaining is None or layers is None:
            return False
        return self.stability.reached(step, remaining, list(layers.values()))

    def finish(self, step: int) -> None:
        """Take the last reading of a trial that ended between two of them."""
        if step and (not self.totals or self.totals[-1][0] != step):
            self.steps = step
            self.on_step(step, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the readings so far."""
        return {name: list(getattr(self, name)) for name in _KEPT} | {"scored_at": self.scored_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the readings of a checkpoint."""
        for name in _KEPT:
            setattr(self, name, [tuple(row) if isinstance(row, list) else row for row in state[name]])
        self.scored_at = state["scored_at"]

    def _read_layers(self, step: int) -> float:
        """Add one row per layer and return the model's remaining ratio."""
        assert self.masked is not None
        assert self.initial is not None
        thresholds, resets = self.masked.layer_thresholds(), self.masked.resets
        masks = list(zip(self.masked.layers, self.masked.viewed_masks(), strict=True))
        counts = [_counts(layer, mask) for layer, mask in masks]
        remaining = sum(kept for kept, _, _ in counts) / sum(mask.numel() for _, mask in masks)
        null = self.initial.null(remaining)
        for (layer, mask), (kept, rows, columns) in zip(masks, counts, strict=True):
            name = layer.name
            quantiles = _quantiles(thresholds[name])
            share = kept / mask.numel()
            self.layers.append(
                (step, name, share, rows, columns, *quantiles, resets[name], round(float(null[name]), 4))
            )
        return remaining

    def layer_frame(self) -> pd.DataFrame:
        """Return the measurements of layers, one row per layer and measurement."""
        return pd.DataFrame(self.layers, columns=list(READING_COLUMNS))

    def step_frame(self) -> pd.DataFrame:
        """Return the measurements of the whole model, one row per measurement."""
        return pd.DataFrame(self.totals, columns=list(STEP_COLUMNS))

    def remaining(self) -> float | None:
        """Return the model's remaining ratio: the median of the last quarter, as for layers."""
        return float(self._last_quarter().median()) if self.totals and self.masked else None

    def lowest(self) -> float | None:
        """Return the lowest remaining ratio of the last quarter."""
        return float(self._last_quarter().min()) if self.totals and self.masked else None

    def _last_quarter(self) -> pd.Series[float]:
        return last_quarter(self.step_frame())["remaining"]

    def resets(self) -> dict[str, int]:
        """Return how often each layer's thresholds were reset, for layers where they were."""
        return _nonzero(self.masked.resets if self.masked else {})

    def held(self) -> dict[str, int]:
        """Return how often each layer's thresholds were held, for layers where they were."""
        return _nonzero(self.masked.holds if self.masked else {})


def without_readings(key: TrialKey, status: Literal["diverged", "failed"], reason: str, seconds: float) -> TrialOutput:
    """Return what is kept of a trial that ended before anything was read."""
    result = TrialResult(alpha=key.alpha, seed=key.seed, control=key.control, status=status, reason=reason, steps=0)
    layers, steps = (pd.DataFrame(columns=list(columns)) for columns in (READING_COLUMNS, STEP_COLUMNS))
    return TrialOutput(result, layers, steps, None, seconds)


def _nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {layer: count for layer, count in counts.items() if count}


def _counts(layer: MaskedLayer, mask: torch.Tensor) -> tuple[int, int, int | None]:
    """Return the numbers of remaining weights, non-empty rows, and input channels still read (None if unknown)."""
    layout = layer.layout
    rows = _summed(mask, [axis for axis in range(mask.ndim) if axis not in layout.rows])
    columns = _summed(mask, [axis for axis in range(mask.ndim) if axis not in layout.inputs])
    return (
        int(rows.sum(dtype=torch.float64)),
        int(rows.count_nonzero()),
        int(columns.count_nonzero()) if layout.inputs else None,
    )


def _summed(mask: torch.Tensor, axes: list[int]) -> torch.Tensor:
    return mask.sum(axes, dtype=torch.promote_types(mask.dtype, torch.float32)) if axes else mask


def _quantiles(thresholds: torch.Tensor) -> Iterator[float]:
    values = thresholds.flatten()
    values = values[:: -(-values.numel() // _FEW)].sort().values
    positions = [round(q * (values.numel() - 1)) for q in _QUANTILES]
    return (float(f"{value:.6g}") for value in values[positions].tolist())

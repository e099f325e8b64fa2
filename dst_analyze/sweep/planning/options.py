"""The options of a sweep as typed keywords, so that an editor completes them and a type checker knows them.

`SweepConfig` checks their values; a test keeps the keys, and the choices of each, the same here, there and on the
command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class TrainingOptions(TypedDict, total=False):
    """How a model is made and trained, with or without masks."""

    model_args: Mapping[str, Any] | None
    """Arguments for what the spec names."""
    data_root: Path | str
    """Where data sets lie."""
    download: bool
    """Fetch the data set if it is not there."""
    batch_size: int | None
    steps: int | None
    """Training steps; or give ``epochs``."""
    epochs: int | None
    recipe: Literal["short", "paper"]
    optimizer: Literal["sgd", "adam", "adamw"] | None
    lr: float | None
    schedule: Literal["step", "cosine", "onecycle", "constant"]
    weight_decay: float | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    amp: bool
    """Matmuls and convolutions in bfloat16."""


class SweepOptions(TrainingOptions, total=False):
    """What `run_sweep` and `analyze` take besides the model, its data, the run folder and the workers."""

    include: Sequence[str]
    """Patterns: only layers of such names are analysed."""
    exclude: Sequence[str]
    """Patterns: layers of such names are left alone."""
    alphas: Sequence[float] | Literal["auto"]
    """Strengths of pruning, a trial for each."""
    alpha_scale: float | None
    """Train with the alphas times this."""
    target_remaining: Sequence[float]
    """Search the alpha that leaves each of these shares of the weights."""
    seeds: int | Sequence[int]
    """A count, or the seeds themselves."""
    until_stable: bool
    """End a trial once the order of its layers no longer changes."""
    max_epochs: int | None
    control: Literal["shuffled-labels"] | None
    """Repeat the sweep on data that have nothing to teach."""
    threshold_clock: float | None
    """The thresholds' learning rate over the weights'."""
    threshold_scale: Literal["layer", "one"] | None
    """What thresholds count in: the mean magnitude of their layer's weights, or all alike."""
    on_collapse: Literal["hold", "reset"] | None
    """What becomes of a layer that keeps at most 1 %."""
    weights: str
    """A file of trained weights to start from."""
    warm_up: int | None
    """Steps that weights are trained before they are masked."""
    threshold: Literal["vector", "scalar", "matrix"]
    """One threshold per row, per layer or per weight."""
    estimator: Literal["long-tail", "clipped"]
    backend: Literal["auto", "eager", "compiled"]
    """How masked weights are computed."""

"""The options of a sweep as typed keywords, for completion in editors and for type checkers.

`SweepConfig` checks their values. A test compares the keys and choices here, there and on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict


class TrainingOptions(TypedDict, total=False):
    """Options of building and training a model, with or without masks."""

    model_args: Mapping[str, Any] | None
    """Keyword arguments for the function or class that the spec names."""
    data_root: Path | str
    """The folder of the named data sets."""
    download: bool
    """Download the named data set if it is missing."""
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
    """Matmuls and convolutions in half precision."""
    amp_dtype: Literal["bfloat16", "float16"]
    """The kind of half precision; float16 trains with a gradient scaler."""


class MaskingOptions(TypedDict, total=False):
    """Options of masks and their strengths, whoever trains the model: `run_sweep`, `analyze` and `Study`."""

    include: Sequence[str]
    """Patterns of the names of layers to analyse."""
    exclude: Sequence[str]
    """Patterns of the names of layers to leave unmasked."""
    alpha_scale: float | None
    """The factor that alphas are multiplied by."""
    target_remaining: Sequence[float]
    """Search for alphas that leave these shares of the weights."""
    threshold: Literal["vector", "scalar", "matrix"]
    """One threshold per row, per layer or per weight."""
    estimator: Literal["long-tail", "clipped"]
    backend: Literal["auto", "eager", "compiled"]
    """The implementation that computes masked weights."""
    threshold_clock: float | None
    """The thresholds' learning rate as a multiple of the weights'."""
    threshold_scale: Literal["layer", "one"] | None
    """The scale of thresholds: their layer's mean weight magnitude, or 1 for all."""
    on_collapse: Literal["hold", "reset"] | None
    """What to do with a layer that keeps at most 1 % of its weights."""


class SweepOptions(TrainingOptions, MaskingOptions, total=False):
    """Options of `run_sweep` and `analyze` besides the model, its data, the run folder and the workers."""

    alphas: Sequence[float] | Literal["auto"]
    """Strengths of pruning, with one trial per seed each; "auto" searches for them."""
    quick: bool
    """No sweep: one dense training per seed, its weights pruned by magnitude."""
    budget: str | float | None
    """The time that the sweep may take, such as "5min": chooses ``steps`` and ``alphas``."""
    seeds: int | Sequence[int]
    """The number of seeds, or the seeds themselves."""
    until_stable: bool
    """End a trial early once the order of its layers no longer changes."""
    max_epochs: int | None
    control: Literal["shuffled-labels"] | None
    """Repeat the sweep as a control, on data that cannot be learned."""
    weights: str
    """A file of trained weights to start from."""
    warm_up: int | None
    """Training steps before weights are masked."""

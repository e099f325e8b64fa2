"""What a sweep leaves behind, as values: its header, its trials, and what was read while they ran."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal

import pandas as pd
from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer, model_validator

from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.run.config import (
    MOST_TRIALS,
    Count,
    Json,
    Number,
    OnCollapse,
    Share,
    Size,
    SweepConfig,
    ThresholdScale,
)

SCHEMA: Final = 3

_MOST_NODES, _MOST_EDGES, _DEEPEST = 20_000, 100_000, 200  # of a graph; the last of modules within modules

QUANTILE_COLUMNS = ("threshold_min", "threshold_25", "threshold_median", "threshold_75", "threshold_max")

READING_COLUMNS = ("step", "layer", "remaining", "rows", "columns", *QUANTILE_COLUMNS, "resets", "null")
"""Per layer: share of weights left, rows with any left, input channels still read, thresholds, resets so far, and the
share the layer would keep if its initial weights alone decided (see `magnitudes.Magnitudes.null`)."""

ScoreKind = Literal["accuracy", "loss", "score"]
"""An accuracy is a share between 0 and 1; a "score" is any number. Higher is better, but of a loss."""
STEP_COLUMNS = ("step", "loss", "score", "remaining")
"""Per model: mean training loss since the reading before, score on a few test batches, share of weights left."""

UNPRUNED = 0.95
"""Above this share of weights remaining, an alpha has not pruned anything worth reading."""

WORKING = 0.9
"""Share of the dense model's accuracy that a trial must have to say what a model needs."""


@dataclass(frozen=True)
class TrialKey:
    """One trial: an alpha (None: dense, nothing masked), a seed, and whether it is a control on shuffled labels."""

    alpha: float | None
    seed: int
    control: bool = False

    @property
    def name(self) -> str:
        """The trial's folder, ``alpha=1e-05,seed=0``: every digit of alpha, so that no two trials share one."""
        prefix = "control," if self.control else ""
        return f"{prefix}{'dense' if self.alpha is None else f'alpha={self.alpha!r}'},seed={self.seed}"

    @property
    def label(self) -> str:
        """The trial as a reader is told of it."""
        suffix = ", labels shuffled" if self.control else ""
        return f"{'dense' if self.alpha is None else f'alpha {alpha_label(self.alpha)}'}, seed {self.seed}{suffix}"


class TrialResult(Json):
    """How one trial ended. ``remaining`` is the median over the last quarter of training; loss and score are tests."""

    alpha: float | None
    seed: int
    control: bool = False
    status: Literal["done", "diverged", "failed"]
    reason: str = ""  # why it did not end well
    steps: Count
    stable: bool = False  # it ended before its budget, as the layers' order no longer changed
    loss: Number | None = None
    score: Number | None = None
    error: Number | None = None  # standard error of the score, as far as the number of test samples decides it
    remaining: Share | None = None
    lowest: Share | None = None  # the least reading of that quarter: what a search goes by where layers were reset
    resets: dict[str, Count] = Field(default_factory=dict)
    held: dict[str, Count] = Field(default_factory=dict)  # layers that were kept from falling below 1 %, and how often

    @property
    def key(self) -> TrialKey:
        """What the trial is found by: its alpha, its seed, and whether it is a control."""
        return TrialKey(self.alpha, self.seed, self.control)

    @property
    def reached(self) -> float:
        """How far this alpha prunes. Layers that collapse and are reset show more again than it leaves of them."""
        ratio = self.lowest if self.resets and self.lowest is not None else self.remaining
        return ratio if ratio is not None and self.status == "done" else 0.0


class Timing(Json):
    """Wall-clock time of a trial: the one thing about it that is never the same twice, so it is kept apart."""

    seconds: float = Field(ge=0, le=1e12)


class SkippedLayer(Json):
    """A weight that was not analysed, and why."""

    name: str
    reason: str
    place: str = ""
    params: Count = 0

    @property
    def cause(self) -> SkipCause | None:
        """The reason as a value; None if this version does not know it."""
        return SkipCause.of_reason(self.reason)


class ModelSummary(Json):
    """What tracing found, beyond the layers themselves."""

    name: str
    spec: str
    sha256: str | None
    files: dict[str, str] = Field(default_factory=dict)  # SHA-256 of the user's own it ran; empty in older runs
    params: Size
    macs: Count | None
    rung: int = Field(ge=1, le=3)
    coverage: str
    weights: str = ""  # how names in a file of weights were matched, where they are not the model's
    form: str = ""  # in which form it was trained, and why; empty in older runs, which were trained as modules
    skipped: tuple[SkippedLayer, ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class ExampleInputs(Json):
    """What the model is called with, tensors by dtype, shape and range: enough to trace it again without the data."""

    args: tuple[JsonValue, ...] = ()
    kwargs: JsonValue = None


class GraphNode(Json):
    """One operation of the traced model: a layer's module, a function, an input or the output.

    ``inputs`` are the places of the nodes it reads tensors from; constants and sizes are no nodes.
    """

    op: str  # class of the module or name of the function
    scope: str = ""  # path of the module it is, or in whose forward it is called
    layers: tuple[str, ...] = ()  # those whose weights it uses
    place: str = ""  # file and line, of layers
    inputs: tuple[int, ...] = ()


class ModelGraph(Json):
    """What the model looks like, in the order of its operations: all that a picture of it needs."""

    schema_version: Literal[1]
    nodes: tuple[GraphNode, ...] = Field(max_length=_MOST_NODES)

    @model_validator(mode="after")
    def _in_order(self) -> ModelGraph:
        edges = 0
        for number, node in enumerate(self.nodes):
            edges += len(node.inputs)
            if not all(0 <= given < number for given in node.inputs):
                raise ValueError(f"node {number} reads from one that does not come before it")
            if node.scope.count(".") > _DEEPEST:
                raise ValueError(f"node {number} lies in more than {_DEEPEST} modules")
        if edges > _MOST_EDGES:
            raise ValueError(f"it has {edges} edges, more than {_MOST_EDGES}")
        return self


class DataSummary(Json):
    """Which data the sweep saw. ``stand_in``: not the user's, so the pattern is only as good as the likeness."""

    description: str
    name: str = ""  # as given to --data
    stand_in: bool
    score: ScoreKind
    scored_on: Literal["test", "train"]
    sha256: str  # of the tensors; of the first batches where the data come through a loader


class Forecast(Json):
    """How far thresholds can travel at an alpha as it was given, and the share of the initial weights within reach."""

    alpha: float
    travel: float
    pruned: float
    layers: dict[str, float] = Field(default_factory=dict)


class DefaultOptimizer(Json):
    """The optimizer that was chosen for a model whose user has asked for none."""

    family: Literal["sgd", "adamw"]
    lr: float
    rises: bool = False  # the rate, over the first steps
    reason: str = ""


class Manifest(Json):
    """Who wrote a run folder, from what, with which versions."""

    tool: Literal["dst-analyze"] = "dst-analyze"
    schema_version: Literal[3] = SCHEMA
    versions: dict[str, str]
    model: ModelSummary
    data: DataSummary
    steps: Size
    quick: bool = False  # nothing is trained after the warm-up: no sweep
    warm_up: Count = 0  # steps before these, dense, from which all trials of a seed start
    reference: Literal["warm-up", "trained alike"] = "warm-up"  # the dense trial: the warm-up alone, or as the others
    optimizer: str
    default_optimizer: DefaultOptimizer | None = None  # None: asked for, or SGD as in older runs
    clock: Number = 1.0
    unit: ThresholdScale = "one"  # of thresholds
    on_collapse: OnCollapse = "reset"
    gradient_noise: float | None = None  # of the loss on thresholds, before training, where steps are divided by it
    device: str = "cpu"
    # where the search for alphas starts, if there is one
    first_alphas: tuple[float, ...] = Field(default=(), max_length=MOST_TRIALS)
    forecast: tuple[Forecast, ...] = Field(default=(), max_length=MOST_TRIALS)
    warning: str = ""
    threads: Size  # per trial: torch adds in another order with another number of them
    warm_up_threads: Size | None = None  # None: as many as a trial has
    sums: Literal["sweep", "all"] = "sweep"  # which files have checksums: in older folders, not what was derived

    @model_serializer(mode="wrap")
    def _without_none(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what older folders do not have either, so that their files stay as they are."""
        written: dict[str, Any] = values(self)
        if self.warm_up_threads is None:
            written.pop("warm_up_threads", None)
        if not self.quick:
            written.pop("quick", None)
        return written


@dataclass(frozen=True)
class TrialOutput:
    """All that a trial leaves: ``readings`` by step and layer, ``steps`` of the model, ``masks`` packed."""

    result: TrialResult
    readings: pd.DataFrame
    steps: pd.DataFrame
    masks: bytes | None
    seconds: float


@dataclass(frozen=True)
class Target:
    """A remaining ratio asked for, and what came nearest to it."""

    ratio: float
    alpha: float
    reached: float


@dataclass(frozen=True)
class SweepRecord:
    """A finished sweep as a value, made by `read_run` and `run_sweep`.

    Attributes:
        folder: The run folder.
        config: What was asked for.
        manifest: The model, the data and the recipe.
        layers: One row per layer: name, kind, parameters, MACs.
        trials: How each trial ended, those of alphas that a search only tried among them.
        frame: The readings: one row per alpha, seed, step and layer, of the trials that ended well. Its column
            ``control`` is True for trials on shuffled labels.
        steps: The readings of the whole model: loss, score, share left. Its alpha is NaN for the dense trial.
        seconds: Time of all trials together.
        alphas: The alphas that count, weakest first.
        targets: The alpha that was found for each ratio, where ratios were searched for.

    Example:
        >>> import torch, dst_analyze
        >>> model, x, y = torch.nn.Linear(8, 4), torch.randn(64, 8), torch.arange(64) % 4
        >>> record = dst_analyze.run_sweep(model, (x, y), alphas=[1e-6, 1e-5], steps=4, out="run")
        >>> record.alphas, len(record.trials)
        ((1e-06, 1e-05), 3)
    """

    folder: Path
    config: SweepConfig
    manifest: Manifest
    layers: pd.DataFrame
    trials: tuple[TrialResult, ...]
    frame: pd.DataFrame
    steps: pd.DataFrame  # of the whole model: loss, score and share left by trial and step; alpha is NaN for dense
    seconds: float  # of all trials together
    alphas: tuple[float, ...]
    targets: tuple[Target, ...] = ()
    sha256: str = ""  # of the checksums of its head and trials

    @property
    def complete(self) -> bool:
        """True if no trial diverged or failed."""
        return all(trial.status == "done" for trial in self.trials)

    @property
    def dense(self) -> TrialResult:
        """The trial without masks, of the first seed."""
        return next(trial for trial in self.trials if trial.alpha is None)

    def at(self, alpha: float) -> list[TrialResult]:
        """The trials of one alpha that ended well, controls apart."""
        return [t for t in self.trials if t.alpha == alpha and t.status == "done" and not t.control]

    def does_the_task(self, trial: TrialResult) -> bool:
        """Whether a trial scores nearly as well as the dense model; where the score is no accuracy, it is not known."""
        reached, dense = trial.score, self.dense.score
        if self.manifest.data.score != "accuracy" or reached is None or dense is None:
            return True
        return reached >= WORKING * dense

    @property
    def probed(self) -> tuple[float, ...]:
        """Alphas that the search tried and did not need."""
        tried = {trial.alpha for trial in self.trials if trial.alpha is not None}
        return tuple(sorted(tried - set(self.alphas)))

    def remaining(self, alpha: float) -> float | None:
        """The model's remaining ratio at one alpha, mean over seeds."""
        return _mean([trial.remaining for trial in self.at(alpha)])

    def score(self, alpha: float) -> float | None:
        """Return the mean score of the trials of one alpha; None if none has one."""
        return _mean([trial.score for trial in self.at(alpha)])

    @property
    def budget_saved(self) -> float | None:
        """The share of all steps that ending early has saved; None where nobody asked for it."""
        if not self.config.until_stable:
            return None
        return 1 - sum(trial.steps for trial in self.trials) / (self.manifest.steps * len(self.trials))


def last_quarter(frame: pd.DataFrame) -> pd.DataFrame:
    """The readings of the last quarter of each trial: a single last reading depends on when a reset fired."""
    trial = [key for key in ("alpha", "seed", "control") if key in frame]
    last = frame.groupby(trial)["step"].transform("max") if trial else frame["step"].max()
    return frame[frame["step"] > 0.75 * last]


def alpha_label(alpha: float) -> str:
    """``0.0001`` as ``1e-4``: short, and every digit there."""
    if 0.1 <= alpha < 1000:
        return f"{alpha!r}"
    return f"{Decimal(repr(alpha)).normalize():e}"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None

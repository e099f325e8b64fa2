"""The events of a sweep, which bars, lines and JSON display."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from dst_analyze.run.record import TrialKey


@dataclass(frozen=True)
class SweepStarted:
    """The sweep starts; ``done`` of its trials are in the folder already."""

    folder: str
    trials: int
    done: int
    steps: int
    jobs: int
    threads: int


@dataclass(frozen=True)
class TimeEstimated:
    """The estimated time of the missing trials; ``at_most`` if the search uses all its rounds.

    The run has ``trials`` in all, and ``at_most_trials`` if it does.
    """

    seconds: float
    at_most: float
    trials: int = 0
    at_most_trials: int = 0
    busy: float = 1.0  # of this, how many times longer it takes than it would alone on the machine


@dataclass(frozen=True)
class SweepExtended:
    """The search added trials; ``trials`` is the new total."""

    trials: int


@dataclass(frozen=True)
class WarmUpStarted:
    """The training of the weights that all trials of a seed start from begins."""

    seed: int
    control: bool
    steps: int


@dataclass(frozen=True)
class WarmUpStep:
    """The warm-up of a seed has reached a step."""

    seed: int
    control: bool
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class WarmUpFinished:
    """The warm-up of a seed has ended."""

    seed: int
    control: bool
    seconds: float


@dataclass(frozen=True)
class TrialStarted:
    """A trial starts."""

    trial: TrialKey
    steps: int


@dataclass(frozen=True)
class TrialStep:
    """A trial has reached a step; 0 during a warm-up within the trial.

    ``remaining`` is None in the dense trial, ``score`` until it is measured; ``layers`` are remaining ratios by layer,
    if they were read at this step.
    """

    trial: TrialKey
    step: int
    steps: int
    loss: float | None  # None where a loop of the user's does not tell it
    remaining: float | None = None
    score: float | None = None
    layers: dict[str, float] | None = None


@dataclass(frozen=True)
class TrialFinished:
    """The trial ended well; its results are in the run folder."""

    trial: TrialKey
    loss: float | None
    score: float | None
    remaining: float | None
    seconds: float


@dataclass(frozen=True)
class TrialFailed:
    """The trial diverged or failed; the reason is in the run folder."""

    trial: TrialKey
    status: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class TrialRetried:
    """The trial's worker was killed, and the trial starts again."""

    trial: TrialKey
    reason: str


@dataclass(frozen=True)
class Notice:
    """A message to the user that does not stop the sweep."""

    text: str


@dataclass(frozen=True)
class SweepFinished:
    """The sweep has ended; ``complete`` if every trial ended well."""

    folder: str
    complete: bool


@dataclass(frozen=True)
class SuggestionWritten:
    """A slim architecture was written to the run folder, as plan and source."""

    plan: str
    source: str
    params: int
    new_params: int


@dataclass(frozen=True)
class ProofStarted:
    """The proof starts; ``done`` of its trainings are in the folder already.

    There are more trainings, ``most`` in all, as long as a comparison is not decided. The times are 0 if not known.
    """

    trainings: int
    done: int
    steps: int
    jobs: int
    most: int
    seconds: float = field(default=0.0, compare=False)
    most_seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class CandidateTrained:
    """A training of the slim model or of a competitor has ended; without a score it diverged."""

    contender: str
    seed: int
    score: float | None


@dataclass(frozen=True)
class ReportWritten:
    """The report was written."""

    report: str


Event = (
    SweepStarted
    | TimeEstimated
    | SweepExtended
    | WarmUpStarted
    | WarmUpStep
    | WarmUpFinished
    | TrialStarted
    | TrialStep
    | TrialFinished
    | TrialFailed
    | TrialRetried
    | Notice
    | SweepFinished
    | SuggestionWritten
    | ProofStarted
    | CandidateTrained
    | ReportWritten
)
Emit = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Ignore an event; the default listener."""


def broadcast(*listeners: Emit) -> Emit:
    """Return a listener that passes every event to all given listeners."""

    def forward(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return forward


# Names in the JSON stream, which scripts read: they stay when a class is renamed.
_WRITTEN: dict[type[Event], str] = {TimeEstimated: "time_foreseen", CandidateTrained: "proof_trained"}


def to_json(event: Event) -> str:
    """Return an event as one line of JSON: its name, the trial's alpha and seed, its other fields."""
    fields = dataclasses.asdict(event)
    trial = fields.pop("trial", {})
    name = _WRITTEN.get(type(event)) or re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return json.dumps({"event": name, **trial, **fields}, allow_nan=False)

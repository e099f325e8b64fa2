"""What happens in a sweep, as one stream of events: bars, lines and JSON are only ways of showing it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from dst_analyze.run.record import TrialKey


@dataclass(frozen=True)
class SweepStarted:
    """``done`` of the trials are in the folder already."""

    folder: str
    trials: int
    done: int
    steps: int
    jobs: int
    threads: int


@dataclass(frozen=True)
class TimeEstimated:
    """How long what is missing takes, from a few timed steps; ``at_most`` if the search tries all it may."""

    seconds: float
    at_most: float


@dataclass(frozen=True)
class SweepExtended:
    """The search for alphas goes on: ``trials`` is how many there are by now."""

    trials: int


@dataclass(frozen=True)
class WarmUpStarted:
    """The weights that all trials of a seed start from are being trained."""

    seed: int
    control: bool
    steps: int


@dataclass(frozen=True)
class WarmUpStep:
    seed: int
    control: bool
    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class WarmUpFinished:
    seed: int
    control: bool
    seconds: float


@dataclass(frozen=True)
class TrialStarted:
    trial: TrialKey
    steps: int


@dataclass(frozen=True)
class TrialStep:
    """Where a trial stands, at step 0 while it trains the weights it starts from itself.

    ``remaining`` is None in the dense trial, ``score`` where nobody has measured it yet;
    ``layers`` is what remains of each, where they have just been read.
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
    """The trial ended well and stands in the run folder."""

    trial: TrialKey
    loss: float | None
    score: float | None
    remaining: float | None
    seconds: float


@dataclass(frozen=True)
class TrialFailed:
    """The trial diverged or could not be run; that too stands in the run folder."""

    trial: TrialKey
    status: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class TrialRetried:
    """The trial's worker was killed; it starts again."""

    trial: TrialKey
    reason: str


@dataclass(frozen=True)
class Notice:
    """Something a user should know, that stops nothing."""

    text: str


@dataclass(frozen=True)
class SweepFinished:
    """``complete``: every trial ended well."""

    folder: str
    complete: bool


@dataclass(frozen=True)
class SuggestionWritten:
    """A slimmer architecture stands in the run folder: its plan, and its source."""

    plan: str
    source: str
    params: int
    new_params: int


@dataclass(frozen=True)
class ProofStarted:
    """``done`` of the trainings are in the folder already."""

    trainings: int
    done: int
    steps: int
    jobs: int


@dataclass(frozen=True)
class CandidateTrained:
    """A training of the suggestion, or of a model it is tried against, has ended; without a score it diverged."""

    contender: str
    seed: int
    score: float | None


@dataclass(frozen=True)
class ReportWritten:
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
    """Listen to a sweep and do nothing."""


def broadcast(*listeners: Emit) -> Emit:
    """Return one listener that passes every event to all of these."""

    def forward(event: Event) -> None:
        for listener in listeners:
            listener(event)

    return forward


# Names in the stream of events that scripts read: they stay when a class is renamed.
_WRITTEN: dict[type[Event], str] = {TimeEstimated: "time_foreseen", CandidateTrained: "proof_trained"}


def to_json(event: Event) -> str:
    """One line of JSON: the event's name, the trial as alpha and seed, the other fields as they are."""
    fields = dataclasses.asdict(event)
    trial = fields.pop("trial", {})
    name = _WRITTEN.get(type(event)) or re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    return json.dumps({"event": name, **trial, **fields}, allow_nan=False)

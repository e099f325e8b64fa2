"""The result of a proof as a value. Never imports torch, so that reports can read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pandas as pd
from pydantic import Field, model_validator
from scipy.special import stdtrit

from dst_analyze.errors import FolderError
from dst_analyze.html import html_table
from dst_analyze.run.config import Count, Json, Number, Size
from dst_analyze.run.derived import values_sha256
from dst_analyze.run.files.paths import LATENCY, VERIFICATION
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import ScoreKind
from dst_analyze.text import short

SLIM, DENSE = "slim", "dense"
UNIFORM, RANDOM, FAN_IN = "uniform", "random", "fan-in"
CONTENDERS = (DENSE, SLIM, UNIFORM, RANDOM, FAN_IN)
"""The names of the models that a proof trains; the last one only if there is a sweep."""
_CONFIDENCE = 0.95
_MOST_ENTRIES = 100


class Entry(Json):
    """One model of a proof: its costs, and its score with each seed (None if it diverged)."""

    name: str
    about: str
    params: Size
    macs: Count | None
    latency_ms: Number | None = Field(default=None, gt=0)  # None where nobody has kept it
    memory: Count  # bytes of weights, and of what a training step keeps for its backward pass
    scores: tuple[Number | None, ...]

    @property
    def known(self) -> list[float]:
        """The scores of the trainings that did not diverge."""
        return [score for score in self.scores if score is not None]

    @property
    def mean(self) -> float:
        """The mean of the known scores; NaN if there are none."""
        return float(np.mean(self.known)) if self.known else math.nan


class Latencies(Json):
    """How long a forward pass over one batch took, for each model of a proof.

    The file has its checksum within: the run folder's, which are the same for the same run, leave it out.
    """

    schema_version: Literal[1] = 1
    milliseconds: dict[str, Annotated[Number, Field(gt=0)]]
    sha256: str = ""

    @classmethod
    def of(cls, milliseconds: Mapping[str, float]) -> Latencies:
        """Return the latencies with their checksum."""
        values = dict(milliseconds)
        return cls(milliseconds=values, sha256=values_sha256(values))

    @model_validator(mode="after")
    def _whole(self) -> Latencies:
        if self.sha256 != values_sha256(self.milliseconds):
            raise ValueError("its checksum is another one")
        return self


class Verification(Json):
    """The result of a proof: the slim model, the dense one and others of its size, trained alike.

    Made by `verify_plan`.

    Attributes:
        entries: The models with their costs and scores.
        score: What the scores are: "accuracy", "loss" or another "score", of which higher is better.
        steps: Training steps of each model.
        seeds: The seeds that each model was trained with.

    Example:
        >>> from dst_analyze import Verification
        >>> from dst_analyze.slimming.proof.result import Entry
        >>> cost = {"params": 100, "macs": 1000, "latency_ms": 1.0, "memory": 4000}
        >>> slim = Entry(name="slim", about="the suggestion", scores=(0.91, 0.92, 0.93), **cost)
        >>> dense = Entry(name="dense", about="the model as it is", scores=(0.91, 0.92, 0.93), **cost)
        >>> uniform = Entry(name="uniform", about="every group thinned alike", scores=(0.71, 0.72, 0.73), **cost)
        >>> result = Verification(score="accuracy", steps=500, seeds=(0, 1, 2), entries=(dense, slim, uniform))
        >>> result.standing("uniform")
        'better'
    """

    schema_version: Literal[1] = 1
    score: ScoreKind
    steps: Size
    seeds: tuple[Count, ...] = Field(min_length=1)
    entries: tuple[Entry, ...] = Field(max_length=_MOST_ENTRIES)
    plan: str = ""  # what the plan is known by that was tried, see `SlimPlan.sha256`

    @model_validator(mode="after")
    def _comparable(self) -> Verification:
        names = [entry.name for entry in self.entries]
        if len(set(names)) < len(names) or not {SLIM, DENSE} <= set(names):
            raise ValueError(f"its models are {', '.join(names)}: each once, {SLIM} and {DENSE} among them")
        uneven = next((e.name for e in self.entries if len(e.scores) != len(self.seeds)), None)
        if uneven is not None:
            raise ValueError(f"{uneven} has not one score for each of {len(self.seeds)} seeds")
        return self

    @classmethod
    def load(cls, folder: Path | str) -> Verification:
        """Read the proof of a run folder, with the latencies that stand beside it, unless these are damaged.

        Raises:
            FolderError: There is no proof, or its file cannot be used.
        """
        folder = Path(folder)
        found = read_json(folder / VERIFICATION, cls)
        if not (folder / LATENCY).exists():  # of an older run, which has them within
            return found
        try:
            known = read_json(folder / LATENCY, Latencies).milliseconds
        except FolderError:
            known = {}
        return found.model_copy(
            update={"entries": tuple(e.model_copy(update={"latency_ms": known.get(e.name)}) for e in found.entries)}
        )

    def files(self) -> dict[str, str]:
        """Return the texts of the files that keep a proof, by name: the same proof gives the same bytes but latency."""
        taken = Latencies.of({e.name: e.latency_ms for e in self.entries if e.latency_ms is not None})
        without = self.model_dump_json(indent=1, exclude={"entries": {"__all__": {"latency_ms"}}})
        return {LATENCY: f"{taken.model_dump_json(indent=1)}\n", VERIFICATION: f"{without}\n"}

    def entry(self, name: str) -> Entry:
        """Return the entry of the model of this name, such as "slim"."""
        return next(entry for entry in self.entries if entry.name == name)

    @property
    def table(self) -> pd.DataFrame:
        """One row per model; ``low`` and ``high`` are a 95 % interval of its mean score."""
        rows = [
            (e.name, e.about, e.params, e.macs, e.latency_ms or math.nan, e.memory, e.mean, *_interval(e.known))
            for e in self.entries
        ]
        columns = ["contender", "about", "params", "macs", "latency_ms", "memory", "score", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _repr_html_(self) -> str:
        scale, unit = (100, "accuracy %") if self.score == "accuracy" else (1, self.score)
        rows = [
            (
                row.contender,
                f"{scale * row.score:.4g}",
                f"{scale * row.low:.4g} to {scale * row.high:.4g}" if math.isfinite(row.low) else "–",
                short(row.params),
                short(row.macs),
                row.about,
            )
            for row in self.table.itertuples()
        ]
        lead = f"each trained for {self.steps} steps, with seeds {', '.join(map(str, self.seeds))}"
        return html_table(lead, ["model", unit, "95 %", "params", "MACs", "what"], rows, [self.verdict], words=1)

    def lead(self, other: str) -> tuple[float, float, float]:
        """Return the mean lead of the slim model over another (positive: better), and its 95 % interval."""
        sign = -1 if self.score == "loss" else 1
        pairs = zip(self.entry(SLIM).scores, self.entry(other).scores, strict=True)
        leads = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
        # Rounded, so that leads that cancel out over seeds give 0 and not 1e-17.
        return (round(float(np.mean(leads)), 12) if leads else math.nan, *_interval(leads))

    def standing(self, other: str) -> Literal["better", "worse", "open"]:
        """Return "better" or "worse" if the interval of the lead excludes 0, else "open"."""
        _, low, high = self.lead(other)
        return "better" if low > 0 else "worse" if high < 0 else "open"

    @property
    def verdict(self) -> str:
        """A sentence per other model: whether the slim model is better, worse or not shown to be better."""
        return " ".join(self._against(entry) for entry in self.entries if entry.name != SLIM)

    def _against(self, other: Entry) -> str:
        lead, low, high = self.lead(other.name)
        if math.isnan(lead):
            return f"It cannot be compared with {other.name}: no pair of trainings ended well."
        unit = " points" if self.score == "accuracy" else ""
        scale = 100 if self.score == "accuracy" else 1
        margin = f"{scale * abs(lead):.2g}{unit}"
        what = f"{other.name} ({other.about})"
        between = f"95 % interval {scale * low:+.2g} to {scale * high:+.2g}, {len(self.seeds)} seeds"
        if math.isinf(low):
            between = "one seed, so the uncertainty is unknown"
        ahead = lead >= 0
        if other.name == DENSE:
            if self.score == "loss":
                return f"Its loss is {margin} {'lower' if ahead else 'higher'} than the dense model's ({between})."
            return f"It scores {margin} {'above' if ahead else 'below'} the dense model ({between})."
        standing = self.standing(other.name)
        if standing == "better":
            return f"It is better than {what} by {margin} ({between})."
        if standing == "worse":
            return f"It is worse than {what} by {margin} ({between}): do not follow it."
        apart = ("more loss", "less loss") if self.score == "loss" else ("below", "above")
        return f"It is not shown to be better than {what}: {margin} {apart[ahead]} ({between})."


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean; infinite for one value."""
    if len(values) < 2:
        return -math.inf if values else math.nan, math.inf if values else math.nan
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2)) * error
    return mean - half, mean + half

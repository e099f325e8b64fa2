"""The result of a proof as a value. Never imports torch, so that reports can read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
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
from dst_analyze.slimming.proof.comparison import CONFIDENCE, Lead, compare_with_others
from dst_analyze.text import short

SLIM, DENSE = "slim", "dense"
UNIFORM, UNIFORM_PARAMS, UNIFORM_MACS = "uniform", "uniform-params", "uniform-macs"
RANDOM, FAN_IN, DEPTH, MAGNITUDE = "random", "fan-in", "depth", "magnitude"
CONTENDERS = (DENSE, SLIM, UNIFORM, UNIFORM_PARAMS, UNIFORM_MACS, RANDOM, FAN_IN, DEPTH, MAGNITUDE)
"""The names of the models of a proof on both axes; "fan-in" only if there is a sweep."""
OTHER_BUDGET = (UNIFORM_PARAMS, UNIFORM_MACS)
"""Models at the suggestion's size on one axis, so of another size on the other: mostly beyond the budget."""
FINE_TUNED = "fine-tuned"
BESIDE = (FINE_TUNED,)
"""Models that stand beside a proof and are no rivals: they start from trained weights."""
WORDS = {"params": "parameters", "macs": "MACs"}

LEVEL: dict[ScoreKind, float] = {"accuracy": 0.005, "loss": 0.01, "score": 0.01}
"""Two models are level if their difference is surely within this: of accuracy, or as a share of the dense model's."""
AUTO_SEEDS = (3, 5, 10)
"""The numbers of seeds after which an automatic proof looks whether its comparisons are decided."""
Seeds = int | Literal["auto"]
"""The number of seeds of each model of a proof; "auto" adds seeds until every comparison is decided."""
MISMATCH = 0.1
"""Models whose cost differs by more than this share of the suggestion's are not of one size."""
_MOST_ENTRIES = 100

LONGER = 5
"""How many times as long the dense model is trained to see whether the trainings of a proof are long enough."""
LONG_ENOUGH: dict[ScoreKind, float] = {"accuracy": 0.01, "loss": 0.02, "score": 0.02}
"""Trainings are long enough if longer ones gain at most this: of accuracy, or as a share of the dense model's."""

LeadStanding = Literal["better", "worse", "level", "open"]


def looks_of(seeds: Seeds) -> tuple[int, ...]:
    """Return the numbers of seeds after which a proof looks whether its comparisons are decided."""
    return AUTO_SEEDS if seeds == "auto" else (seeds,)


class Entry(Json):
    """One model of a proof: its costs, and its score with each seed (None if it diverged).

    A comparison that is decided is not trained on: such a model has fewer scores than there are seeds.
    """

    name: str
    about: str
    params: Size
    macs: Count | None
    latency_ms: Number | None = Field(default=None, gt=0)  # None where nobody has kept it
    memory: Count  # bytes of weights, and of what a training step keeps for its backward pass
    scores: tuple[Number | None, ...]
    like: str = ""  # the model of the very same widths whose trainings these are

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


class LongerTraining(Json):
    """One training of the dense model that lasted ``factor`` times as long, and the same seed's of usual length."""

    factor: Size
    seed: Count
    score: Number | None  # None if it diverged
    usual: Number | None

    def gain(self, kind: ScoreKind) -> float:
        """Return how much better the longer training scores; NaN if one of the two diverged."""
        if self.score is None or self.usual is None:
            return math.nan
        return (self.score - self.usual) * (-1 if kind == "loss" else 1)

    def is_enough(self, kind: ScoreKind) -> bool:
        """Return True if trainings of usual length are within `LONG_ENOUGH` of what longer ones reach."""
        scale = 1.0 if kind == "accuracy" else abs(self.usual or 0.0)
        return self.gain(kind) <= LONG_ENOUGH[kind] * scale


class Verification(Json):
    """The result of a proof: the slim model, the dense one and others of its size, trained alike.

    Made by `verify_plan`.

    Attributes:
        entries: The models with their costs and scores.
        score: What the scores are: "accuracy", "loss" or another "score", of which higher is better.
        steps: Training steps of each model.
        seeds: The seeds that each model was trained with.
        longer: A longer training of the dense model, if it was asked for.

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
    looks: Size = 1  # how often the comparisons were looked at to decide whether more seeds are needed
    plan: str = ""  # what the plan is known by that was tried, see `SlimPlan.sha256`
    longer: LongerTraining | None = None

    @model_validator(mode="after")
    def _comparable(self) -> Verification:
        names = [entry.name for entry in self.entries]
        if len(set(names)) < len(names) or not {SLIM, DENSE} <= set(names):
            raise ValueError(f"its models are {', '.join(names)}: each once, {SLIM} and {DENSE} among them")
        uneven = next((e.name for e in self.entries if not 1 <= len(e.scores) <= len(self.seeds)), None)
        if uneven is not None or len(self.entry(SLIM).scores) < len(self.seeds):
            raise ValueError(f"{uneven or SLIM} has not one score for each of {len(self.seeds)} seeds")
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

    def untimed(self) -> Verification:
        """Return the proof without its latencies, which differ from run to run."""
        return self.model_copy(
            update={"entries": tuple(entry.model_copy(update={"latency_ms": None}) for entry in self.entries)}
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

    @cached_property
    def _leads(self) -> dict[str, Lead]:
        sign = -1 if self.score == "loss" else 1

        def signed(entry: Entry) -> list[float | None]:
            return [None if score is None else sign * score for score in entry.scores]

        own = signed(self.entry(SLIM))
        others = {entry.name: signed(entry) for entry in self.entries if entry.name != SLIM and not entry.like}
        beside = {name: others.pop(name) for name in BESIDE if name in others}
        leads = compare_with_others(own, others, apart=(RANDOM,), looks=self.looks)
        leads |= compare_with_others(own, beside, apart=(), looks=1)
        itself = Lead(0.0, 0.0, 0.0)
        return leads | {entry.name: leads.get(entry.like, itself) for entry in self.entries if entry.like}

    def lead(self, other: str) -> tuple[float, float, float]:
        """Return the mean lead of the slim model over another (positive: better), and its interval.

        The intervals of all other models hold at once with 95 % confidence.
        """
        lead = self._leads[other]
        return lead.mean, lead.low, lead.high

    def standing(self, other: str) -> LeadStanding:
        """Return how the slim model stands against another.

        "better" or "worse" if the interval of the lead excludes 0, "level" if it lies within `LEVEL`, else "open".
        """
        _, low, high = self.lead(other)
        within = LEVEL[self.score] * (1 if self.score == "accuracy" else abs(self.entry(DENSE).mean))
        if -within <= low and high <= within:
            return "level"
        return "better" if low > 0 else "worse" if high < 0 else "open"

    def rivals(self, standing: LeadStanding | None = None) -> list[Entry]:
        """Return the models of the suggestion's size, of which it has this standing."""
        others = [e for e in self.entries if e.name not in (SLIM, DENSE, *OTHER_BUDGET, *BESIDE)]
        return [e for e in others if standing is None or self.standing(e.name) == standing]

    @property
    def open(self) -> tuple[str, ...]:
        """The names of the models against which nothing is decided."""
        rivals = [entry.name for entry in self.entries if entry.name not in (SLIM, *BESIDE)]
        return tuple(name for name in rivals if self.standing(name) == "open")

    @property
    def verdict(self) -> str:
        """A sentence per other model: whether the slim model is better, worse, level or not shown to be better.

        Uniform widths for one axis alone have one only if they are another net.
        """
        said = [entry for entry in self.entries if entry.name not in OTHER_BUDGET or not entry.like]
        return " ".join(self._against(entry) for entry in said if entry.name != SLIM)

    @property
    def length(self) -> str:
        """A sentence: whether the trainings are long enough for the dense model to reach what it can."""
        if self.longer is None:
            return (
                "Whether longer trainings would end otherwise was not checked: dst-analyze verify --check-length does."
            )
        gain = self.longer.gain(self.score)
        so = f"the dense model trained {self.longer.factor} times as long (seed {self.longer.seed})"
        if math.isnan(gain):
            return f"Whether the trainings are long enough is not known: {so} diverged."
        amount = f"{100 * abs(gain):.1f} points" if self.score == "accuracy" else f"{abs(gain):.2g}"
        apart = f"{amount} {'better' if gain >= 0 else 'worse'}"
        if self.longer.is_enough(self.score):
            return f"The trainings are long enough: {so} ends {apart}."
        return f"The trainings are short: {so} ends {apart}, and the comparison may then be another."

    def _against(self, other: Entry) -> str:
        lead, low, high = self.lead(other.name)
        if math.isnan(lead):
            return f"It cannot be compared with {other.name}: no pair of trainings ended well."
        unit = " points" if self.score == "accuracy" else ""
        scale = 100 if self.score == "accuracy" else 1
        margin = f"{scale * abs(lead):.2g}{unit}"
        what = f"{other.name} ({other.about}{self._cost_mismatch(other)})"
        if other.like == SLIM:
            return f"It is {what}."
        between = f"95 % interval {scale * low:+.2g} to {scale * high:+.2g}, {len(other.scores)} seeds"
        if math.isinf(low):
            between = "one seed, so the uncertainty is unknown"
        ahead = lead >= 0
        if other.name in BESIDE:
            said = f"{margin} {'worse' if ahead else 'better'} than from scratch ({between})"
            return f"With the weights of the trained dense model, trained on, the same widths end {said}."
        apart = ("more loss", "less loss") if self.score == "loss" else ("below", "above")
        standing = self.standing(other.name)
        if other.name == DENSE:
            level = "It is level with the dense model: " if standing == "level" else ""
            if self.score == "loss":
                said = f"its loss is {margin} {'lower' if ahead else 'higher'} than the dense model's ({between})."
            else:
                said = f"it scores {margin} {'above' if ahead else 'below'} the dense model ({between})."
            return level + said if level else said[0].upper() + said[1:]
        if standing == "level":
            return f"It is level with {what}: {margin} {apart[ahead]} ({between})."
        if standing == "better":
            return f"It is better than {what} by {margin} ({between})."
        if standing == "worse":
            advice = "" if other.name in OTHER_BUDGET else ": do not follow it"
            return f"It is worse than {what} by {margin} ({between}){advice}."
        return f"It is not shown to be better than {what}: {margin} {apart[ahead]} ({between})."

    def _cost_mismatch(self, other: Entry) -> str:
        """Return a remark on the parameters or MACs of another model, where they are not the suggestion's."""
        own = self.entry(SLIM)
        shares = {
            word: getattr(other, what) / getattr(own, what)
            for what, word in WORDS.items()
            if getattr(own, what) and getattr(other, what) is not None
        }
        said = [f"{share:.0%} of its {word}" for word, share in shares.items() if abs(share - 1) > MISMATCH]
        return f"; {' and '.join(said)}" if said else ""


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean; infinite for one value."""
    if len(values) < 2:
        return -math.inf if values else math.nan, math.inf if values else math.nan
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    return mean - half, mean + half

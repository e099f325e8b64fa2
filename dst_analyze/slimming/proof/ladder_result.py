"""The ladder of a proof as a value: the suggestion and its rivals at several sizes. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import Field, model_validator

from dst_analyze.run.config import Count, Json, Number, Size
from dst_analyze.run.files.paths import LADDER
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import ScoreKind
from dst_analyze.slimming.planning.plan_types import Limits
from dst_analyze.slimming.proof.comparison import half_widths
from dst_analyze.slimming.proof.result import (
    DENSE,
    DEPTH,
    FAN_IN,
    MAGNITUDE,
    MISMATCH,
    RANDOM,
    SLIM,
    UNIFORM,
    UNIFORM_MACS,
    UNIFORM_PARAMS,
    WORDS,
    Entry,
    LeadStanding,
    Verification,
)
from dst_analyze.text import listed, size_text

Axis = Literal["params", "macs"]
AXES: tuple[Axis, ...] = ("params", "macs")
KINDS = {UNIFORM: (UNIFORM, UNIFORM_PARAMS, UNIFORM_MACS)} | {
    name: (name,) for name in (RANDOM, FAN_IN, DEPTH, MAGNITUDE)
}
"""The rivals by kind: all that are thinned alike are one kind, at whatever size."""
_MOST_RUNGS = 40
_AHEAD: dict[LeadStanding, str] = {
    "better": "ahead of",
    "worse": "behind",
    "open": "not decided against",
    "level": "level with",
}


class LadderRung(Json):
    """One size of a ladder: the share of the parameters or MACs that was asked for, and the proof at this size."""

    axis: Axis
    share: Number = Field(gt=0, lt=1)
    proof: Verification

    def cost(self, entry: Entry, axis: Axis) -> int | None:
        """Return the parameters or MACs of a model."""
        return entry.params if axis == "params" else entry.macs

    def rival(self, kind: str, axis: Axis) -> Entry | None:
        """Return the rival of a kind whose parameters or MACs are the suggestion's within a tenth; None without one."""
        own = self.cost(self.proof.entry(SLIM), axis)
        found = []
        for entry in self.proof.entries:
            cost = self.cost(entry, axis)
            if entry.name in KINDS[kind] and own and cost and abs(cost / own - 1) <= MISMATCH:
                found.append((abs(cost / own - 1), entry))
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def has(self, kind: str) -> bool:
        """Return True if a rival of this kind was trained at this size."""
        return any(entry.name in KINDS[kind] for entry in self.proof.entries)


class LadderProof(Json):
    """The suggestion and its rivals at several sizes, trained alike; made by `dst-analyze verify RUN --ladder`.

    Attributes:
        rungs: The sizes, those by parameters first, each from large to small.
        rule: The rule of the suggested widths, with their ``limits``.
        sweep: What the sweep is known by that the widths were made from, see `SweepRecord.sha256`.
    """

    schema_version: Literal[1] = 1
    score: ScoreKind
    steps: Size
    rungs: tuple[LadderRung, ...] = Field(min_length=1, max_length=_MOST_RUNGS)
    rule: str
    limits: Limits = Limits()
    params: Size
    macs: Count | None
    sweep: str = ""

    @model_validator(mode="after")
    def _sizes_differ(self) -> LadderProof:
        sizes = [(rung.axis, rung.share) for rung in self.rungs]
        if len(set(sizes)) < len(sizes):
            raise ValueError("a size stands in it twice")
        return self

    @classmethod
    def load(cls, folder: Path | str) -> LadderProof:
        """Read the ladder of a run folder; a FolderError if there is none, or it cannot be used."""
        return read_json(Path(folder) / LADDER, cls)

    def as_bytes(self) -> bytes:
        """Return the contents of ladder.json."""
        return f"{self.model_dump_json(indent=1)}\n".encode()

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What models can be compared at: their parameters and, if these are known, their MACs."""
        return AXES if self.macs else AXES[:1]

    @property
    def table(self) -> pd.DataFrame:
        """A row per size and model; ``half`` is half of a 95 % interval of the score without the seeds' effect."""
        rows = []
        for rung in self.rungs:
            halves = half_widths({e.name: e.scores for e in rung.proof.entries if not e.like}, apart=(RANDOM,))
            for entry in rung.proof.entries:
                own = entry.name == SLIM
                lead, low, high = (math.nan,) * 3 if own else rung.proof.lead(entry.name)
                row = {
                    "axis": rung.axis, "share": rung.share, "model": entry.name, "like": entry.like,
                    "params": entry.params, "macs": entry.macs or math.nan, "score": entry.mean,
                    "half": halves.get(entry.like or entry.name, math.nan), "seeds": len(entry.scores),
                    "lead": lead, "low": low, "high": high,
                    "standing": "" if own else rung.proof.standing(entry.name),
                }  # fmt: skip
                rows.append(row)
        return pd.DataFrame(rows)

    @property
    def verdicts(self) -> dict[Axis, str]:
        """A sentence for each axis: against which rivals of as many parameters, or MACs, the suggestion is ahead."""
        return {axis: self._verdict(axis) for axis in self.axes}

    def _verdict(self, axis: Axis) -> str:
        said: dict[str, list[str]] = {}
        unmatched = []
        for kind in KINDS:
            if not any(rung.has(kind) for rung in self.rungs):
                continue
            words = self._against(kind, axis)
            if words:
                said.setdefault(words, []).append(kind)
            else:
                unmatched.append(kind)
        parts = [words.replace("{}", _listed(kinds)) for words, kinds in said.items()]
        if unmatched:
            parts.append(f"{_listed(unmatched)} not compared, as no size has equal {WORDS[axis]}")
        return f"At equal {WORDS[axis]}: {'; '.join(parts)}."

    def _against(self, kind: str, axis: Axis) -> str:
        """Return how the suggestion stands against one kind of rival, "{}" for its name; empty if none is matched."""
        found: dict[LeadStanding, list[str]] = {}
        missing = []
        for rung in self.rungs:
            rival = rung.rival(kind, axis)
            if rival is None:
                missing.append(self._name(rung))
            else:
                found.setdefault(rung.proof.standing(rival.name), []).append(self._name(rung))
        if not found:
            return ""
        order = [standing for standing in _AHEAD if standing in found]
        if len(order) == 1 and not missing:
            where = "at every size" if len(self.rungs) > 1 else f"at {found[order[0]][0]}"
            return f"{_AHEAD[order[0]]} {{}} {where}"
        parts = []
        for number, standing in enumerate(order):
            last = number == len(order) - 1 and number > 0 and not missing
            where = "elsewhere" if last else f"at {_listed(found[standing])}"
            parts.append(f"{_SHORT[standing]} {where}" if number else f"{_AHEAD[standing]} {{}} {where}")
        if missing:
            parts.append(f"not compared at {_listed(missing)}")
        return ", ".join(parts)

    def _name(self, rung: LadderRung) -> str:
        """Return a size in words; MACs are named only where the ladder has both kinds of sizes."""
        both = len({rung.axis for rung in self.rungs}) > 1
        return rung_name(rung.axis, rung.share, both=both)

    @property
    def dense(self) -> Entry:
        """The dense model with most trainings."""
        return max((rung.proof.entry(DENSE) for rung in self.rungs), key=lambda entry: len(entry.scores))

    def curves(self, axis: Axis) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield each kind of model with its points on an axis, cheapest first: cost, score and half an interval."""
        table = self.table.rename(columns={axis: "cost"})
        for kind in (SLIM, *KINDS):
            names = KINDS.get(kind, (kind,))
            points = table[table["model"].isin(names) & table["cost"].notna() & table["score"].notna()]
            points = points.drop_duplicates("cost").sort_values("cost")
            if len(points):
                yield kind, points[["cost", "score", "half"]].reset_index(drop=True)


_SHORT: dict[LeadStanding, str] = {"better": "ahead", "worse": "behind", "open": "not decided", "level": "level"}


def _listed(words: Sequence[str]) -> str:
    """Return words as a list in a sentence; percents share one sign."""
    if all(word.endswith(" %") for word in words) and len(words) > 1:
        words = [*(word.removesuffix(" %") for word in words[:-1]), words[-1]]
    return listed(words)


def rung_name(axis: Axis, share: float, *, both: bool) -> str:
    """Return a size in words; the axis is named where a ladder has sizes on both."""
    return f"{size_text(share)}{f' of the {WORDS[axis]}' if both else ''}"

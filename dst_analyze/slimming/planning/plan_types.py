"""What slimming leaves behind, as values: plans and their proofs. No torch here: a report reads them too."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import ValidationError
from scipy.special import stdtrit

from dst_analyze.errors import FolderError
from dst_analyze.html import html_table
from dst_analyze.run.config import Json
from dst_analyze.run.safe_read import JSON_MOST, read_text
from dst_analyze.text import percent, short

SLIM, DENSE = "slim", "dense"
UNIFORM, RANDOM, FAN_IN = "uniform", "random", "fan-in"
CONTENDERS = (DENSE, SLIM, UNIFORM, RANDOM, FAN_IN)
"""What is trained for a proof, by name; the last only where there is a sweep."""
_CONFIDENCE = 0.95
_LADDER_ROWS = 16  # groups that the ladder shows


class GroupPlan(Json):
    """One group: how wide it was and will be, in channels, and which of its units go."""

    group: str
    layers: tuple[str, ...]
    readers: tuple[str, ...] = ()
    width: int
    new_width: int
    removed: tuple[int, ...] = ()
    units: int
    density: float | None = None
    reason: str = ""  # why it stays as it is, where the budget had no say
    label: str = ""  # the ranking's label of the layers that make it, or "mixed"
    ranks: tuple[float | None, ...] = ()  # in the ranking, of each of these layers
    why: str = ""  # why its width departs from what the ranks suggest, where it does

    @property
    def because(self) -> str:
        """What a reader should know about the row: why it is held, or why it departs from the ranking."""
        return self.reason or self.why

    @property
    def name(self) -> str:
        """The group's name, with the number of other layers that make it."""
        return self.group if len(self.layers) < 2 else f"{self.group} +{len(self.layers) - 1}"

    @property
    def place(self) -> str:
        """Its rank, or the first and last rank of its layers; empty where none is ranked."""
        known = [rank for rank in self.ranks if rank is not None]
        if not known:
            return ""
        first, last = min(known), max(known)
        return f"{first:g}" if first == last else f"{first:g} to {last:g}"


class FrozenGroup(Json):
    """Channels that cannot be removed, and why."""

    group: str
    layers: tuple[str, ...]
    reason: str
    first: tuple[str, ...] = ()  # layers that rank as redundant and make these channels
    why: str = ""  # those layers with their ranks


class Rung(Json):
    """One size of the ladder: the widths, in channels, for a share of the parameters or MACs."""

    axis: Literal["params", "macs"] = "params"
    share: float
    widths: dict[str, int]
    params: int
    macs: int | None = None


class TensorShape(Json):
    """An input of the model, for building it again."""

    shape: tuple[int, ...]
    dtype: str


class Limits(Json):
    """What a width may be: at least ``min_width``, a multiple of ``round_to``; as it is where ``keep`` matches.

    ``unclear`` are layers about which too little is known to narrow them. What ``needed`` layers alone make keeps at
    least ``needed_share`` of its width: where the unclear ones stay as they are, it would otherwise pay for them all.
    """

    round_to: int = 8
    min_width: int = 1
    keep: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    needed_share: float = 0.0

    def least(self, layers: Collection[str], width: int) -> int:
        """The narrowest that channels of these layers may become, rounding apart."""
        needed = bool(layers) and set(layers) <= set(self.needed)
        return max(self.min_width, math.ceil(self.needed_share * width) if needed else 0)


class EmptyBranch(Json):
    """A residual branch that could be left out, and what that would save."""

    add: str  # the node where it joins
    place: str  # the module that adds, and where its forward is written
    layers: tuple[str, ...]
    empty: dict[str, float]  # those near empty: the most that any trial left of them
    params: int
    macs: int  # per sample


class SlimPlan(Json):
    """Widths for a model of a given shape; `slim_model` builds it."""

    schema_version: Literal[1] = 1
    model: str
    parameters: dict[str, tuple[int, ...]]
    inputs: tuple[TensorShape, ...]
    tensors_only: bool = True  # False if the example has other arguments, or nested ones: `inputs` do not show them
    rule: str
    asked: dict[str, float]
    limits: Limits = Limits()
    groups: tuple[GroupPlan, ...]
    frozen: tuple[FrozenGroup, ...]
    params: int
    new_params: int
    macs: int | None
    new_macs: int | None
    latency: float | None = None  # of the slim model, as a share of the dense one's, where that was asked for
    notes: tuple[str, ...] = ()
    depth: tuple[EmptyBranch, ...] = ()  # proposed, not done
    ladder: tuple[Rung, ...] = ()  # other sizes, from large to small
    ranked: int = 0  # layers in the ranking that the rows refer to
    trials: int | None = None  # that the widths rest on; 0: none, so the plan is no advice

    @property
    def is_advice(self) -> bool:
        """False for a plan that only tries whether a slim model can be built and written."""
        return self.trials != 0

    @property
    def reached(self) -> dict[str, float]:
        """What is left of the model, as shares: its parameters, its MACs, and its latency where that was measured."""
        shares = {"params": self.new_params / self.params, "macs": (self.new_macs or 0) / (self.macs or 1)}
        return shares if self.latency is None else {**shares, "latency": self.latency}

    @property
    def removal(self) -> dict[str, tuple[int, ...]]:
        """The units that leave, by group."""
        return {group.group: group.removed for group in self.groups if group.removed}

    @property
    def frozen_by_reason(self) -> dict[str, list[FrozenGroup]]:
        """The groups that stay as they are, by why."""
        reasons: dict[str, list[FrozenGroup]] = {}
        for frozen in self.frozen:
            reasons.setdefault(frozen.reason, []).append(frozen)
        return reasons

    @property
    def table(self) -> pd.DataFrame:
        """One row per group: old and new width, what the ranking says of it, and why it departs from that."""
        columns = ["group", "layers", "width", "new_width", "density", "rank", "label", "why"]
        rows = [
            (g.group, ", ".join(g.layers), g.width, g.new_width, g.density, g.place, g.label, g.because)
            for g in self.groups
        ]
        return pd.DataFrame(rows, columns=columns)

    @property
    def rank_head(self) -> str:
        """What stands above the ranks."""
        return f"rank of {self.ranked}" if self.ranked else "rank"

    @property
    def ladder_groups(self) -> tuple[GroupPlan, ...]:
        """The groups that the ladder shows: of many those that change most down to its smallest size."""
        if not self.ladder:
            return ()
        least = self.ladder[-1].widths
        changed = sorted(self.groups, key=lambda g: least.get(g.group, g.width) / g.width)[:_LADDER_ROWS]
        return tuple(group for group in self.groups if group in changed)

    @property
    def ladder_heads(self) -> list[str]:
        """The sizes of the ladder, as they were asked for; the model itself first."""
        return ["now", *(f"{rung.share:.0%}" for rung in self.ladder)]

    @property
    def ladder_rows(self) -> list[tuple[str, list[str]]]:
        """The ladder as text: parameters, MACs, then the width of each group that is shown, at every size."""
        rungs = self.ladder
        rows = [
            ("parameters", [short(self.params), *(short(rung.params) for rung in rungs)]),
            ("% of them", ["100", *(f"{100 * rung.params / self.params:.1f}" for rung in rungs)]),
        ]
        if self.macs:
            rows.append(("MACs", [short(self.macs), *(short(rung.macs) for rung in rungs)]))
        for group in self.ladder_groups:
            widths = (str(rung.widths.get(group.group, group.width)) for rung in rungs)
            rows.append((group.name, [str(group.width), *widths]))
        return rows

    @property
    def ladder_words(self) -> str:
        """What stands under the ladder: which command writes one of its sizes, and what is not shown."""
        if not self.ladder:
            return ""
        hidden = len(self.groups) - len(self.ladder_groups)
        more = f" The other {hidden} groups are in plan.json." if hidden else ""
        rung = self.ladder[-2] if len(self.ladder) > 1 else self.ladder[-1]
        return f"To write another size: dst-analyze slim RUN --target-{rung.axis} {rung.share:g}.{more}"

    def _repr_html_(self) -> str:
        macs = (
            "" if self.macs is None or self.new_macs is None else f", MACs {short(self.macs)} → {short(self.new_macs)}"
        )
        lead = f"{self.model}: parameters {short(self.params)} → {short(self.new_params)}{macs}"
        rows = [
            (g.group, ", ".join(g.layers), g.width, g.new_width, percent(g.density), g.place, g.label, g.because)
            for g in self.groups
        ]
        proposed = [f"proposed, not done: leave out the branch of {', '.join(b.layers)}" for b in self.depth]
        stays = [f"{frozen.why or frozen.group} stays: {frozen.reason}" for frozen in self.frozen]
        heads = ["group", "layers", "width", "becomes", "density %", self.rank_head, "label", "why"]
        table = html_table(lead, heads, rows, [*self.notes, *proposed, *stays], words=1)
        if not self.ladder:
            return table
        sizes = [(name, *cells) for name, cells in self.ladder_rows]
        return table + html_table("Other sizes", ["", *self.ladder_heads], sizes, [self.ladder_words])

    def save(self, path: Path | str) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(f"{self.model_dump_json(indent=1)}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> SlimPlan:
        """Read a plan that was saved, or the plan.json of a run folder.

        Raises:
            FolderError: There is no such file, or it is no plan.
        """
        try:
            return cls.model_validate_json(read_text(Path(path), JSON_MOST))
        except OSError as error:
            raise FolderError(
                f"there is no plan to read: {error.strerror}", place=str(path), hint="`dst-analyze slim` makes one"
            ) from error
        except (ValidationError, UnicodeDecodeError) as error:
            first = (
                error.errors(include_url=False)[0]
                if isinstance(error, ValidationError)
                else {"loc": (), "msg": str(error)}
            )
            where = ".".join(map(str, first["loc"]))
            raise FolderError(
                f"this is no plan: {where}: {first['msg']}", place=str(path), hint="`dst-analyze slim` makes one"
            ) from error


class Entry(Json):
    """What one contender is like, and how it scored with each seed (None: it diverged)."""

    name: str
    about: str
    params: int
    macs: int | None
    latency_ms: float
    memory: int  # bytes of weights, and of what a training step keeps for its backward pass
    scores: tuple[float | None, ...]

    @property
    def known(self) -> list[float]:
        """The scores of the trainings that did not diverge."""
        return [score for score in self.scores if score is not None]

    @property
    def mean(self) -> float:
        """The mean of the known scores; NaN if there are none."""
        return float(np.mean(self.known)) if self.known else math.nan


class Verification(Json):
    """The contenders side by side, equal steps and seeds."""

    schema_version: Literal[1] = 1
    score: Literal["accuracy", "loss"]
    steps: int
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry:
        """Return what was measured of the model of this name, such as "slim"."""
        return next(entry for entry in self.entries if entry.name == name)

    @property
    def table(self) -> pd.DataFrame:
        """One row per contender; ``low`` and ``high`` are a 95 % interval of its mean score."""
        rows = [
            (e.name, e.about, e.params, e.macs, e.latency_ms, e.memory, e.mean, *_interval(e.known))
            for e in self.entries
        ]
        columns = ["contender", "about", "params", "macs", "latency_ms", "memory", "score", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _repr_html_(self) -> str:
        scale, unit = (100, "accuracy %") if self.score == "accuracy" else (1, "loss")
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
        """By how much the suggestion is better than another (above 0): mean over seeds, and its 95 % interval."""
        sign = 1 if self.score == "accuracy" else -1
        pairs = zip(self.entry(SLIM).scores, self.entry(other).scores, strict=True)
        leads = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
        # Rounded, as what cancels out over seeds is no lead of 1e-17.
        return (round(float(np.mean(leads)), 12) if leads else math.nan, *_interval(leads))

    def standing(self, other: str) -> Literal["better", "worse", "open"]:
        """Whether the interval of the lead over another is all on one side."""
        _, low, high = self.lead(other)
        return "better" if low > 0 else "worse" if high < 0 else "open"

    @property
    def verdict(self) -> str:
        """In words: better than the others of its size, not better, or not told apart."""
        return " ".join(self._against(entry) for entry in self.entries if entry.name != SLIM)

    def _against(self, other: Entry) -> str:
        lead, low, high = self.lead(other.name)
        if math.isnan(lead):
            return f"Nothing can be said against {other.name}: no pair of trainings ended well."
        unit = " points" if self.score == "accuracy" else ""
        scale = 100 if self.score == "accuracy" else 1
        told = f"{scale * abs(lead):.2g}{unit}"
        what = f"{other.name} ({other.about})"
        between = f"95 % interval {scale * low:+.2g} to {scale * high:+.2g}, {len(self.seeds)} seeds"
        if math.isinf(low):
            between = "one seed, so nobody knows how sure that is"
        ahead = lead >= 0
        if other.name == DENSE:
            if self.score == "loss":
                return f"Its loss is {told} {'lower' if ahead else 'higher'} than the dense model's ({between})."
            return f"It scores {told} {'above' if ahead else 'below'} the dense model ({between})."
        standing = self.standing(other.name)
        if standing == "better":
            return f"It is better than {what} by {told} ({between})."
        if standing == "worse":
            return f"It is worse than {what} by {told} ({between}): do not follow it."
        apart = ("below", "above") if self.score == "accuracy" else ("more loss", "less loss")
        return f"It is not shown to be better than {what}: {told} {apart[ahead]} ({between})."


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean; nothing is known from one value."""
    if len(values) < 2:
        return -math.inf if values else math.nan, math.inf if values else math.nan
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2)) * error
    return mean - half, mean + half

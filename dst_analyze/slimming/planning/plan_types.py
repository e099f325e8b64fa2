"""Plans of slimming as values. Never imports torch, so that reports can read them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import pandas as pd
from pydantic import Field, ValidationError

from dst_analyze.errors import FolderError
from dst_analyze.html import html_table
from dst_analyze.run.config import Count, Json, Number, Size
from dst_analyze.run.files.atomic_io import write_bytes
from dst_analyze.run.files.safe_read import read_json_text
from dst_analyze.run.files.tables import MOST_LAYERS
from dst_analyze.slimming.planning.target import SizeTarget
from dst_analyze.text import layer_words, listed, percent, short, size_text

SAME_LINE = "the same line builds"
"""The beginning of a change's remark that only names other layers of the same line."""
_LADDER_ROWS = 16  # groups that the ladder shows
AXIS_WORDS = {"params": "parameters", "macs": "MACs", "latency": "time of a forward pass"}
_MOST_GROUPS, _MOST_RUNGS = 2 * MOST_LAYERS, 100
_FINEST = 8
"""Steps of a width at least, where "auto" rounds it: coarser ones would decide more than the evidence does."""
RoundTo = int | Literal["auto"]
TOO_WIDE = 2.0
"""A group whose excess is at least this is called too wide (measured in docs/experiments/flaws.md)."""
_FEWER = 0.9  # of the size: parameters that are fewer need a word on why
_NAMED = 2  # groups that the clause about proportions names


class GroupPlan(Json):
    """The old and new width of a group, in channels, and the units to remove."""

    group: str
    layers: tuple[str, ...]
    readers: tuple[str, ...] = ()
    width: Size
    new_width: Count
    removed: tuple[Count, ...] = ()
    units: Size
    density: Number | None = None
    reason: str = ""  # why it keeps its width, if it may not be narrowed
    label: str = ""  # the ranking's label of the layers that make it, or "mixed"
    ranks: tuple[Number | None, ...] = ()  # the rank of each of these layers
    why: str = ""  # why its width departs from what the ranks suggest, if it does
    excess: Number | None = None  # times as wide as in a balanced network, relative to the typical group

    @property
    def because(self) -> str:
        """Why the group keeps its width, or why its width departs from the ranking; empty otherwise."""
        return self.reason or self.why

    @property
    def excess_text(self) -> str:
        """The excess with one digit; a dash if it is not known."""
        return "–" if self.excess is None else f"{self.excess:.1f}"

    @property
    def name(self) -> str:
        """The group's name, with the number of other layers that make its channels."""
        return self.group if len(self.layers) < 2 else f"{self.group} +{len(self.layers) - 1}"

    @property
    def place(self) -> str:
        """The first and last rank of its layers, or their only one; empty if none is ranked."""
        known = [rank for rank in self.ranks if rank is not None]
        if not known:
            return ""
        first, last = min(known), max(known)
        return f"{first:g}" if first == last else f"{first:g} to {last:g}"


class FrozenGroup(Json):
    """A group of channels that cannot be removed, with the reason."""

    group: str
    layers: tuple[str, ...]
    reason: str
    first: tuple[str, ...] = ()  # layers that rank as redundant and make these channels
    why: str = ""  # those layers with their ranks


class Rung(Json):
    """One size of the ladder: widths, in channels, for a share of the parameters or MACs."""

    axis: Literal["params", "macs"] = "params"
    share: Number
    widths: dict[str, Count]
    params: Count
    macs: Count | None = None


class TensorShape(Json):
    """The shape and type of an input, for tracing the model again."""

    shape: tuple[int, ...]
    dtype: str


class Limits(Json):
    """The limits of widths: at least ``min_width``, multiples of ``round_to``, unchanged where ``keep`` matches.

    "auto" rounds to multiples of 8, and where that is more than an eighth of a layer's width to those of 4, 2 or 1.
    ``unclear`` layers keep their width, as too little is known about them. Groups that only ``needed`` layers make keep
    at least ``needed_share`` of their width, as they would otherwise be narrowed in place of the unclear ones.
    """

    round_to: RoundTo = "auto"
    min_width: int = 1
    keep: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    needed_share: float = 0.0

    def step(self, width: int) -> int:
        """Return what the new width of channels is a multiple of; ``width`` is the present one."""
        if self.round_to != "auto":
            return self.round_to
        return next((step for step in (8, 4, 2) if step * _FINEST <= width), 1)

    @property
    def steps(self) -> str:
        """What widths are multiples of, in words."""
        return "8, or less for narrow layers" if self.round_to == "auto" else str(self.round_to)

    def least(self, layers: Collection[str], width: int) -> int:
        """Return the least width of channels that these layers make, before rounding."""
        needed = bool(layers) and set(layers) <= set(self.needed)
        return max(self.min_width, math.ceil(self.needed_share * width) if needed else 0)


class EmptyBranch(Json):
    """A residual branch that could be left out, with its savings."""

    add: str  # the node of the addition
    place: str  # the module that adds, and the place of its forward
    layers: tuple[str, ...]
    empty: dict[str, Number]  # its near-empty layers: the largest remaining ratio in any trial
    params: Count
    macs: Count  # per sample


class SlimPlan(Json):
    """A plan of the channels to remove from a model; `suggest_widths` makes it and `slim_model` builds it.

    Attributes:
        groups: The groups of channels that may be narrowed, with old and new widths.
        frozen: The groups that cannot be narrowed, with reasons.
        asked: The requested shares, such as {"params": 0.5}; ``reached`` has those of the plan.
        target: How the size was chosen, if none was asked for.
        params: The model's parameters; ``new_params`` those of the slim model.
        macs: The model's MACs per sample; ``new_macs`` those of the slim model.
        latency: The slim model's time of a forward pass as a share of the dense one's, if requested.
        depth: Near-empty residual branches that could be left out; they are proposals only.
        ladder: The widths at other sizes.
        notes: Remarks on the plan, such as a budget that was not met.

    Example:
        >>> import pandas as pd, tempfile, torch
        >>> from dst_analyze import SlimPlan, rank_layers, suggest_widths, trace_model
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
        >>> table = pd.DataFrame({"layer": ["0", "2"] * 2, "alpha": [1, 1, 2, 2], "remaining": [0.4, 0.8, 0.2, 0.7]})
        >>> plan = suggest_widths(trace_model(net, torch.randn(1, 4)), rank_layers(table))
        >>> path = f"{tempfile.mkdtemp()}/plan.json"
        >>> plan.save(path)
        >>> SlimPlan.load(path) == plan
        True
    """

    schema_version: Literal[1] = 1
    model: str
    parameters: dict[str, tuple[int, ...]]
    inputs: tuple[TensorShape, ...]
    tensors_only: bool = True  # False if the example has other arguments, or nested ones: `inputs` do not show them
    rule: str
    asked: dict[str, Number]
    target: SizeTarget | None = None
    limits: Limits = Limits()
    groups: tuple[GroupPlan, ...] = Field(max_length=_MOST_GROUPS)
    frozen: tuple[FrozenGroup, ...] = Field(max_length=_MOST_GROUPS)
    params: Size
    new_params: Count
    macs: Count | None
    new_macs: Count | None
    # of the slim model, as a share of the dense one's, if requested
    latency: Number | None = Field(default=None, gt=0)
    notes: tuple[str, ...] = ()
    depth: tuple[EmptyBranch, ...] = ()  # proposals only
    ladder: tuple[Rung, ...] = Field(default=(), max_length=_MOST_RUNGS)  # other sizes, from large to small
    ranked: Count = 0  # layers in the ranking that the rows refer to
    trials: Count | None = None  # that the widths are based on; with 0 the plan is no advice
    sweep: str = ""  # what the sweep is known by that it was made from, see `SweepRecord.sha256`

    @property
    def is_advice(self) -> bool:
        """False for the plan of a rehearsal, which only shows that a slim model can be built and written."""
        return self.trials != 0

    @property
    def reached(self) -> dict[str, float]:
        """The shares of parameters, MACs and, if measured, latency that the slim model keeps."""
        shares = {"params": self.new_params / self.params, "macs": (self.new_macs or 0) / (self.macs or 1)}
        return shares if self.latency is None else {**shares, "latency": self.latency}

    @property
    def decisive(self) -> str:
        """The axis that decided the size, params or macs: that whose budget is used up, if several were asked for."""
        counted = {axis: share for axis, share in self.asked.items() if axis != "latency"} or {"params": 1.0}
        return max(counted, key=lambda axis: self.reached[axis] / counted[axis])

    @property
    def at_floor(self) -> bool:
        """True if no group can become narrower within the limits."""
        return all(
            group.new_width < self.limits.least(group.layers, group.width) + self.limits.step(group.width)
            for group in self.groups
            if not group.reason
        )

    @property
    def size_reason(self) -> str:
        """Why the plan has its size, in a clause, with what rounded widths make of it; empty without a size."""
        if not self.asked:
            return ""
        if self.target is None:
            sizes = [f"{size_text(share)} of the {AXIS_WORDS[axis]}" for axis, share in self.asked.items()]
            said = f"{listed(sizes)} was asked for"
        else:
            said = self.target.clause
        axis = max(self.asked, key=lambda axis: self.reached[axis] / self.asked[axis])
        share = self.asked[axis]
        reached, wanted = (f"{100 * value:.0f} %" for value in (self.reached[axis], share))
        if self.target is not None and axis != "params" and self.reached["params"] < _FEWER * self.asked["params"]:
            said += f"; the {AXIS_WORDS[axis]} decide"
        if reached == wanted:
            return said
        if self.target is not None and axis != "params":
            reached += f" of the {AXIS_WORDS[axis]}"
        if self.at_floor and self.reached[axis] > share:
            return f"{said}; nothing else may be narrowed at {reached}"
        return f"{said}; rounded widths come to {reached}"

    @property
    def too_wide(self) -> list[GroupPlan]:
        """The groups that are too wide for the rest of the network, the widest first."""
        found = [group for group in self.groups if (group.excess or 0) >= TOO_WIDE]
        return sorted(found, key=lambda group: -(group.excess or 0))

    @property
    def proportions(self) -> str:
        """Which groups are too wide for the rest of the network, in a clause; empty if that is not known."""
        if all(group.excess is None for group in self.groups):
            return ""
        named = [f"{layer_words(group.name)} {group.excess:.1f} times" for group in self.too_wide[:_NAMED]]
        more = f" and {len(self.too_wide) - _NAMED} more" if len(self.too_wide) > _NAMED else ""
        if not named:
            return f"no layer is {TOO_WIDE:.0f} times as wide as the rest of the network"
        return f"{' and '.join(named)}{more}, in proportion to the rest of the network"

    @property
    def sha256(self) -> str:
        """What the plan is known by: the checksum of all that it says, but for the sweep that it is of."""
        text = self.model_dump_json(exclude={"sweep"}, exclude_defaults=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def removal(self) -> dict[str, tuple[int, ...]]:
        """The units to remove, by group."""
        return {group.group: group.removed for group in self.groups if group.removed}

    @property
    def frozen_by_reason(self) -> dict[str, list[FrozenGroup]]:
        """The frozen groups by reason."""
        reasons: dict[str, list[FrozenGroup]] = {}
        for frozen in self.frozen:
            reasons.setdefault(frozen.reason, []).append(frozen)
        return reasons

    @property
    def table(self) -> pd.DataFrame:
        """One row per group: old and new width, rank and label, and why the width departs from them."""
        columns = ["group", "layers", "width", "new_width", "density", "excess", "rank", "label", "why"]
        rows = [
            (g.group, ", ".join(g.layers), g.width, g.new_width, g.density, g.excess, g.place, g.label, g.because)
            for g in self.groups
        ]
        return pd.DataFrame(rows, columns=columns)

    @property
    def rank_head(self) -> str:
        """The head of the column of ranks."""
        return f"rank of {self.ranked}" if self.ranked else "rank"

    @property
    def ladder_groups(self) -> tuple[GroupPlan, ...]:
        """The groups that the ladder shows: if there are many, those that change most at its smallest size."""
        if not self.ladder:
            return ()
        least = self.ladder[-1].widths
        changed = sorted(self.groups, key=lambda g: least.get(g.group, g.width) / g.width)[:_LADDER_ROWS]
        return tuple(group for group in self.groups if group in changed)

    @property
    def ladder_heads(self) -> list[str]:
        """The requested sizes of the ladder as text, after the model itself."""
        return ["now", *(size_text(rung.share) for rung in self.ladder)]

    @property
    def ladder_rows(self) -> list[tuple[str, list[str]]]:
        """The rows of the ladder as text: parameters, MACs and the widths of the shown groups at every size."""
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
        """The text below the ladder: the options that write one of its sizes, and the number of hidden groups."""
        if not self.ladder:
            return ""
        return f"To write another size: dst-analyze slim RUN {self.ladder_option}.{self.ladder_hidden}"

    @property
    def ladder_option(self) -> str:
        """The option of `slim` that writes one of the ladder's sizes."""
        rung = self.ladder[-2] if len(self.ladder) > 1 else self.ladder[-1]
        return f"--target-{rung.axis} {rung.share:g}"

    @property
    def ladder_hidden(self) -> str:
        """How many groups the ladder does not show, as a sentence; empty if it shows all."""
        hidden = len(self.groups) - len(self.ladder_groups)
        return f" The other {hidden} groups are in plan.json." if hidden else ""

    def _repr_html_(self) -> str:
        macs = (
            "" if self.macs is None or self.new_macs is None else f", MACs {short(self.macs)} → {short(self.new_macs)}"
        )
        lead = f"{self.model}: parameters {short(self.params)} → {short(self.new_params)}{macs}"
        rows = [
            (
                *(g.group, ", ".join(g.layers), g.width, g.new_width, percent(g.density)),
                *(g.excess_text, g.place, g.label, g.because),
            )
            for g in self.groups
        ]
        proposed = [f"proposed, not done: leave out the branch of {', '.join(b.layers)}" for b in self.depth]
        stays = [f"{frozen.why or frozen.group} stays: {frozen.reason}" for frozen in self.frozen]
        heads = ["group", "layers", "width", "becomes", "density %", "excess", self.rank_head, "label", "why"]
        table = html_table(lead, heads, rows, [*self.notes, *proposed, *stays], words=1)
        if not self.ladder:
            return table
        sizes = [(name, *cells) for name, cells in self.ladder_rows]
        return table + html_table("Other sizes", ["", *self.ladder_heads], sizes, [self.ladder_words])

    def save(self, path: Path | str) -> None:
        """Write the plan as JSON."""
        write_bytes(Path(path), self.as_bytes())

    def as_bytes(self) -> bytes:
        """Return the contents of plan.json."""
        return f"{self.model_dump_json(indent=1)}\n".encode()

    @classmethod
    def load(cls, path: Path | str) -> SlimPlan:
        """Read a plan that was saved, or the plan.json of a run folder.

        Raises:
            FolderError: The file does not exist or is no plan.
        """
        try:
            return cls.model_validate_json(read_json_text(Path(path)))
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

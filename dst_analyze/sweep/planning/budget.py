"""`--budget`: the steps and alphas that fit into a given time, from training steps timed on the real data."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from dst_analyze.deprecation import with_new_names
from dst_analyze.errors import OptionError
from dst_analyze.run.config import RENAMED
from dst_analyze.run.events import Emit, Notice, ignore_event
from dst_analyze.run.files.paths import is_blank
from dst_analyze.run.reader import read_header
from dst_analyze.run.writer import Existing
from dst_analyze.sweep.planning.estimates.cost import Estimate, estimate_of
from dst_analyze.sweep.planning.plan import Plan, plan_sweep
from dst_analyze.sweep.training.learning import FEWEST_STEPS
from dst_analyze.sweep.training.trial import ModelSpec, Task
from dst_analyze.text import duration

ALPHAS = ((1e-7, 1e-6, 1e-5), (1e-6, 1e-5))
"""The alphas that a budget buys, best first: those of the paper's figure 7, or its two stronger ones."""
LONGEST = 4_500
"""The most steps that a budget buys: half of a full-length run; docs/experiments/short-sweeps.md compares lengths."""
_UNITS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")
_LENGTHS = ("steps", "epochs", "max_epochs", "warm_up")
_MOST = 365 * 24 * 3600

JobsOf = Callable[[Task, int], int]
"""The number of trainings at once, for a task and a number of trials."""


@dataclass(frozen=True)
class Choice:
    """What a budget buys: ``seconds`` is the forecast of the sweep, to its report."""

    steps: int
    alphas: tuple[float, ...]  # none: a search for alphas finds them
    trials: int
    seconds: float

    def describe(self, budget: float) -> str:
        """Return the choice as a sentence."""
        count = len(self.alphas)
        what = f"{count} {'alpha' if count == 1 else 'alphas'}" if count else "a search for alphas"
        said = (
            f"{duration(budget)} buy {what}: {self.trials} trials of {self.steps:,} steps, after as many without masks"
            f" (about {duration(self.seconds)})"
        )
        if self.steps == LONGEST and self.seconds < 0.8 * budget:
            return f"{said}; longer sweeps gain little, and --seeds would use the rest"
        return said


def parse_budget(text: str | float) -> float:
    """Return the seconds of a duration such as "90s", "5min" or "1h 30min"; a number counts seconds."""
    rest, seconds = str(text).strip().lower(), 0.0
    parts = list(_PART.finditer(rest))
    if parts and "".join(part[0] for part in parts) == rest and all(part[2] in _UNITS for part in parts):
        seconds = sum(float(part[1]) * _UNITS[part[2]] for part in parts)
    if not 0 < seconds <= _MOST:
        raise OptionError(
            "it is not a duration", place=f"--budget, given as {text!r}", hint="give a time such as 90s, 5min or 1h"
        )
    return seconds


def plan_within(
    model: ModelSpec,
    data: Any = None,
    *,
    budget: str | float | None = None,
    jobs: JobsOf,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    emit: Emit = ignore_event,
    told: Emit | None = None,
    **options: Any,
) -> Plan:
    """Return the plan of `plan_sweep`, its steps and alphas chosen so that the sweep takes ``budget``, if one is given.

    Args:
        model: The model, as for `plan_sweep`.
        data: Its data, as for `plan_sweep`.
        budget: The time of the whole sweep in seconds, or as text such as "5min"; None for no choice.
        jobs: Says how many trainings run at once.
        out: The run folder.
        existing: What to do with an existing run; one that is gone on with keeps its steps and alphas.
        emit: Gets what planning has to say.
        told: Gets the choice; ``emit`` by default.
        **options: The other options of `plan_sweep`.

    Raises:
        OptionError: The budget is no duration, too short for any sweep, or given beside a length.
    """
    options = with_new_names(options, RENAMED, stacklevel=3)
    if budget is None:
        return plan_sweep(model, data, out=out, existing=existing, emit=emit, **options)
    seconds = parse_budget(budget)
    _refuse_lengths(options)
    chosen = _chosen_before(out, existing)
    if chosen is None:
        found = _choose(model, data, seconds, jobs, options)
        (told or emit)(Notice(found.describe(seconds)))
        chosen = {"steps": found.steps, **({"alphas": found.alphas} if found.alphas else {})}
    return plan_sweep(model, data, out=out, existing=existing, emit=emit, **{**options, **chosen})


def _refuse_lengths(options: dict[str, Any]) -> None:
    if options.get("quick"):
        raise OptionError(
            "a budget chooses the length and alphas of a sweep, and --quick makes none",
            place="--budget",
            hint="give one of them; --steps sets the length of the one training",
        )
    given = next((name for name in _LENGTHS if options.get(name) is not None), None)
    if given is not None or options.get("recipe") == "paper":
        other = f"--{given.replace('_', '-')}" if given else "--recipe paper"
        raise OptionError(
            f"{other} sets the length of training, which a budget chooses", place="--budget", hint="give one of them"
        )


def _chosen_before(out: Path | str | None, existing: Existing) -> dict[str, Any] | None:
    """Return the steps and alphas of the run that is gone on with; None if there is none."""
    if existing not in ("resume", "retry"):
        return None
    if out is None:
        raise OptionError(
            "the machine decides what a budget buys, so the run to go on with cannot be found by it",
            place="--budget",
            hint="name its folder: --out RUN",
        )
    if is_blank(Path(out)):
        return None
    config, _ = read_header(Path(out))
    return {"steps": config.steps, "alphas": config.alphas}


def _choose(model: ModelSpec, data: Any, budget: float, jobs: JobsOf, options: dict[str, Any]) -> Choice:
    searches = bool(options.get("target_remaining"))
    given = options.get("alphas", "auto")
    several: Sequence[Any] = ALPHAS if given == "auto" and not searches else [given]
    for alphas in several:
        plan = _probe(model, data, {**options, "alphas": alphas})
        cost = estimate_of(plan, jobs(plan.task, len(alphas) * len(plan.task.config.seeds) + 1))
        if _seconds(cost, FEWEST_STEPS) <= budget:
            steps = _most_steps(cost, budget)
            trials = cost.most_trials if searches else cost.trials
            return Choice(steps, () if alphas == "auto" else tuple(alphas), trials, _seconds(cost, steps))
    least = _seconds(cost, FEWEST_STEPS)
    raise OptionError(
        f"{duration(budget)} are too short: {cost.most_trials} trials of {FEWEST_STEPS} steps take about "
        f"{duration(least)} here",
        place="--budget",
        hint=f"give --budget {math.ceil(least * 1.1)}s or more, or a smaller model or --batch-size",
    )


def _probe(model: ModelSpec, data: Any, options: dict[str, Any]) -> Plan:
    """Return a plan for timing, of a folder that is never made."""
    nowhere = Path(tempfile.gettempdir()) / f"dst-analyze-{uuid4().hex}"
    try:
        return plan_sweep(model, data, out=nowhere, **options, steps=LONGEST)
    except OptionError as error:
        if error.place != "--steps":
            raise
        raise OptionError(error.cause.replace("--steps", "--budget"), place="--budget", hint=error.hint) from None


def _seconds(cost: Estimate, steps: int) -> float:
    """Return what a sweep of so many steps takes beside what the machine does now."""
    return replace(cost, steps=steps, warm_up_steps=steps).seconds(cost.most_trials) * cost.busy


def _most_steps(cost: Estimate, budget: float) -> int:
    """Return the most steps whose sweep fits into the budget; time grows with steps."""
    low, high = FEWEST_STEPS, LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _seconds(cost, middle) <= budget else (low, middle - 1)
    return low

"""The proof of a suggestion: it is trained from scratch beside the dense model and others of its own size."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import nn

from dst_analyze.errors import FolderError, OptionError
from dst_analyze.slimming.budget import Limits
from dst_analyze.slimming.contenders import DENSE, SLIM, Contender, contenders, fresh
from dst_analyze.slimming.coupling import couple
from dst_analyze.slimming.groups import Coupling
from dst_analyze.slimming.plan import SlimPlan
from dst_analyze.slimming.timing import milliseconds
from dst_analyze.sweep.files import write_bytes
from dst_analyze.sweep.reading import read_json
from dst_analyze.sweep.record import Json, SweepRecord
from dst_analyze.sweep.threads import torch_threads
from dst_analyze.sweep.train import DivergedError, evaluate, train
from dst_analyze.sweep.trial import Task, seeded

_CONFIDENCE = 0.95


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
        return [score for score in self.scores if score is not None]

    @property
    def mean(self) -> float:
        return float(np.mean(self.known)) if self.known else math.nan


class Verification(Json):
    """The contenders side by side, equal steps and seeds."""

    schema_version: Literal[1] = 1
    score: Literal["accuracy", "loss"]
    steps: int
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]

    def entry(self, name: str) -> Entry:
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

    def lead(self, other: str) -> tuple[float, float, float]:
        """By how much the suggestion is better than another (above 0): mean over seeds, and its 95 % interval."""
        sign = 1 if self.score == "accuracy" else -1
        pairs = zip(self.entry(SLIM).scores, self.entry(other).scores, strict=True)
        leads = [sign * (a - b) for a, b in pairs if a is not None and b is not None]
        return (float(np.mean(leads)) if leads else math.nan, *_interval(leads))

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
        if other.name == DENSE:
            return f"It scores {told} {'above' if lead >= 0 else 'below'} the dense model ({between})."
        if low > 0:
            return f"It is better than {what} by {told} ({between})."
        if high < 0:
            return f"It is worse than {what} by {told} ({between}): do not follow it."
        return f"It is not shown to be better than {what}: {told} {'above' if lead >= 0 else 'below'} ({between})."


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean; nothing is known from one value."""
    if len(values) < 2:
        return -math.inf if values else math.nan, math.inf if values else math.nan
    half = stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


class _Scored(Json):
    """One training of one contender, as it is kept."""

    plan: str
    steps: int
    score: float | None


def verify_plan(
    task: Task,
    plan: SlimPlan,
    *,
    record: SweepRecord | None = None,
    seeds: int = 3,
    limits: Limits | None = None,
    keep_in: Path | None = None,
    listener: Callable[[str, int, float | None], None] = lambda name, seed, score: None,
) -> Verification:
    """Train dense, slim, uniform, random and fan-in models on the task's data and budget, and compare.

    With ``keep_in`` every training that has ended is kept in that folder, and not repeated.
    """
    if seeds < 1:
        raise OptionError(f"{seeds} seeds make no comparison", place="--verify-seeds", hint="3 or more")
    coupling = couple(task.traced)
    found = contenders(task.traced, coupling, record, plan, limits or Limits())
    scores: dict[str, list[float | None]] = {contender.name: [] for contender in found}
    with torch_threads(task.threads):
        for seed in range(seeds):
            for contender in found:
                kept = _kept(keep_in, contender, seed, task.steps)
                score = kept.score if kept else trained_score(task, coupling, contender, seed)
                if keep_in is not None and kept is None:
                    _keep(keep_in, contender, seed, task.steps, score)
                listener(contender.name, seed, score)
                scores[contender.name].append(score)
        costs = dict(zip((c.name for c in found), _measured(task, coupling, found), strict=True))
    return Verification(
        score="accuracy" if task.accuracy else "loss",
        steps=task.steps,
        seeds=tuple(range(seeds)),
        entries=tuple(
            Entry(
                name=c.name,
                about=c.about,
                params=c.plan.new_params if c.plan else plan.params,
                macs=c.plan.new_macs if c.plan else plan.macs,
                latency_ms=costs[c.name][0],
                memory=costs[c.name][1],
                scores=tuple(scores[c.name]),
            )
            for c in found
        ),
    )


def trained_score(task: Task, coupling: Coupling, contender: Contender, seed: int) -> float | None:
    """A contender trained from scratch on the task's budget, and scored; None if it diverged."""
    with seeded(seed):
        model = fresh(contender, task.traced, coupling, task.source).to(task.device.name)
        objective = task.objective(task.traced.model)
        optimizer, schedule = task.recipe.start(model)
        try:
            train(
                model, task.train_data.stream(seed), objective, optimizer, schedule, task.device,
                steps=task.steps, alpha=0.0, on_step=lambda step, loss: False,
            )  # fmt: skip
        except DivergedError:
            return None
        loss, score = evaluate(model, task.test_data.once(), objective, task.device)
        return score if math.isfinite(loss) else None


def _measured(task: Task, coupling: Coupling, found: Sequence[Contender]) -> Iterator[tuple[float, int]]:
    """Milliseconds of a forward pass over one batch (the median of rounds in which each has its turn), and memory."""
    batch = task.device.moved(next(iter(task.train_data.once())))
    objective = task.objective(task.traced.model)
    inputs = objective.inputs(batch)
    with seeded(0):
        models = [fresh(c, task.traced, coupling, task.source).to(task.device.name) for c in found]
    for model, taken in zip(models, milliseconds(models, inputs.call, task.device), strict=True):
        yield round(taken, 4), _memory(model, lambda m: objective.loss(inputs.call(m), batch))


def _memory(model: nn.Module, loss: Callable[[nn.Module], torch.Tensor]) -> int:
    """Bytes of weights, and of what autograd keeps for the backward pass of one batch."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(model.train())
    return sum(saved.values()) + sum(p.numel() * p.element_size() for p in model.parameters())


def _file(folder: Path, contender: Contender, seed: int) -> Path:
    return folder / f"{contender.name},seed={seed}.json"


def _digest(contender: Contender) -> str:
    text = "" if contender.plan is None else contender.plan.model_dump_json()
    return hashlib.sha256(text.encode()).hexdigest()


def _kept(folder: Path | None, contender: Contender, seed: int, steps: int) -> _Scored | None:
    if folder is None:
        return None
    try:
        kept = read_json(_file(folder, contender, seed), _Scored)
    except FolderError:
        return None
    return kept if kept.plan == _digest(contender) and kept.steps == steps else None


def _keep(folder: Path, contender: Contender, seed: int, steps: int, score: float | None) -> None:
    folder.mkdir(exist_ok=True)
    scored = _Scored(plan=_digest(contender), steps=steps, score=score)
    write_bytes(_file(folder, contender, seed), f"{scored.model_dump_json()}\n".encode())

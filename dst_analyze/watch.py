"""A sweep's events shown as they come: bars on a terminal, lines elsewhere, JSON for machines, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import rich.progress
from rich.console import Console, RenderableType
from rich.text import Text

from dst_analyze.sweep.events import (
    Emit,
    Event,
    Notice,
    SweepExtended,
    SweepStarted,
    TrialFailed,
    TrialFinished,
    TrialRetried,
    TrialStarted,
    TrialStep,
    to_json,
)
from dst_analyze.sweep.record import Manifest, TrialKey
from dst_analyze.terminal import show, visible


@contextmanager
def watching(manifest: Manifest, where: Console) -> Iterator[Emit]:
    """What a person sees: what is about to be trained on, then every trial."""
    data = manifest.data
    loud = "STAND-IN DATA, as the model file gives none: " if data.stand_in else ""
    show(where, Text.assemble((loud, "bold yellow"), visible(data.description)))
    show(where, visible(manifest.model.coverage))
    show(where, f"thresholds on a clock of {manifest.clock:.3g}, on {visible(manifest.device)}")
    if manifest.warning:
        show(where, Text.assemble(("! ", "bold yellow"), visible(manifest.warning)))
    lines = Lines(manifest, where)
    if not where.is_terminal:
        yield lines
        return
    with Bars(manifest, where) as bars:

        def both(event: Event) -> None:
            bars(event)
            lines(event)

        yield both


class JsonLines:
    """Each event as one line of JSON, at once."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout

    def __call__(self, event: Event) -> None:
        self.out.write(to_json(event) + "\n")
        self.out.flush()


class Lines:
    """A line for each thing that ends or goes wrong."""

    def __init__(self, manifest: Manifest, where: Console) -> None:
        self.score, self.where = manifest.data.score, where

    def __call__(self, event: Event) -> None:
        text = self.line(event)
        if text:
            show(self.where, visible(text))

    def line(self, event: Event) -> str:
        match event:
            case SweepStarted(trials=trials, done=done, steps=steps, jobs=jobs):
                there = f", {done} of them there already" if done else ""
                at_once = ": the run is complete" if done == trials else f", {jobs} at once" if jobs > 1 else ""
                return f"{trials} trials of {steps} steps{there}{at_once}"
            case SweepExtended(trials=trials):
                return f"the search for alphas goes on: {trials} trials by now"
            case TrialFinished(trial=trial, seconds=seconds):
                return (
                    f"{trial.label}: {_standing(event.loss, event.remaining, event.score, self.score)}, {seconds:.1f} s"
                )
            case TrialFailed(trial=trial, status=status, reason=reason):
                return f"{trial.label} {status}: {reason}"
            case TrialRetried(trial=trial, reason=reason):
                return f"{trial.label} starts again: {reason}"
            case Notice(text=text):
                return text
        return ""


class Bars:
    """One bar for all trials and one for each that is running."""

    def __init__(self, manifest: Manifest, where: Console) -> None:
        self.score = manifest.data.score
        self.rows = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(),
            rich.progress.MofNCompleteColumn(),
            _Speed(),
            rich.progress.TimeRemainingColumn(),
            rich.progress.TextColumn("{task.fields[standing]}"),
            console=where,
            transient=True,
        )
        self.steps = self.left = self.trials = 0
        self.total: rich.progress.TaskID | None = None
        self.running: dict[TrialKey, rich.progress.TaskID] = {}

    def __enter__(self) -> Bars:
        self.rows.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.rows.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case SweepStarted(trials=trials, done=done, steps=steps):
                self.steps = steps
                self.total = self.rows.add_task("steps", total=(trials - done) * steps, standing="")
                self.left, self.trials = trials - done, trials
                self._count()
            case SweepExtended(trials=trials) if self.total is not None:
                more = trials - self.trials
                self.left, self.trials = self.left + more, trials
                self.rows.update(self.total, total=self._whole() + more * self.steps)
                self._count()
            case TrialStarted(trial=trial, steps=steps):
                self.running[trial] = self.rows.add_task(trial.label, total=steps, standing="")
            case TrialStep(trial=trial, step=step) if trial in self.running:
                standing = _standing(event.loss, event.remaining, event.score, self.score)
                self.rows.update(self.running[trial], completed=step, standing=standing)
                self._count()
            case TrialFinished(trial=trial) | TrialFailed(trial=trial):
                self._remove(trial)
                self.left -= 1
                self._count()
            case TrialRetried(trial=trial):
                self._remove(trial)

    def _remove(self, trial: TrialKey) -> None:
        row = self.running.pop(trial, None)
        if row is not None:
            self.rows.remove_task(row)

    def _whole(self) -> float:
        return next((task.total or 0 for task in self.rows.tasks if task.id == self.total), 0)

    def _count(self) -> None:
        """All steps of the sweep: those of the trials that ended, and of those under way."""
        if self.total is None:
            return
        under_way = sum(self.rows.tasks[self.rows.task_ids.index(row)].completed for row in self.running.values())
        self.rows.update(
            self.total,
            completed=self._whole() - self.left * self.steps + under_way,
            description=f"{self.trials - self.left} of {self.trials} trials",
        )


class _Speed(rich.progress.ProgressColumn):
    def render(self, task: rich.progress.Task) -> RenderableType:
        return Text(f"{task.speed:.1f} steps/s" if task.speed else "")


def _standing(loss: float | None, remaining: float | None, score: float | None, kind: str) -> str:
    parts = [] if loss is None else [f"loss {loss:.3g}"]
    if score is not None and kind == "accuracy":
        parts.append(f"accuracy {score:.1%}")
    if remaining is not None:
        parts.append(f"{remaining:.1%} remain")
    return ", ".join(parts)

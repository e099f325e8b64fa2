"""Progress displays: bars on a terminal, lines elsewhere, HTML in notebooks, JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from io import StringIO
from typing import Any, TextIO

import rich.progress
from rich.console import Console
from rich.text import Text

from dst_analyze.run.events import (
    CandidateTrained,
    Emit,
    Event,
    Notice,
    ProofStarted,
    SweepExtended,
    SweepStarted,
    TimeEstimated,
    TrialFailed,
    TrialFinished,
    TrialRetried,
    TrialStarted,
    TrialStep,
    WarmUpFinished,
    WarmUpStarted,
    WarmUpStep,
    ignore_event,
    to_json,
)
from dst_analyze.run.record import Manifest, TrialKey
from dst_analyze.text import escape_control, minutes

_AT_LEAST = 0.2  # seconds between two updates in a notebook
_BUSY = 1.15  # times that a sweep takes longer than alone, for that to be said
_NOTEBOOK_WIDTH = 110
_WIDE = 100  # columns of a terminal that has room for all figures of a trial


@contextmanager
def progress_shown(manifest: Manifest, wanted: bool | None) -> Iterator[Emit]:
    """Yield a listener for calls from Python; by default it shows progress in notebooks only."""
    notebook = _in_notebook()
    if wanted is False or (wanted is None and not notebook):
        yield ignore_event
    elif notebook:
        with NotebookBars(manifest) as bars:
            yield bars
    else:
        with watching(manifest, Console(stderr=True, markup=False, highlight=False, emoji=False)) as emit:
            yield emit


def _in_notebook() -> bool:
    """Return True in a Jupyter kernel; IPython in a terminal is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


@contextmanager
def watching(manifest: Manifest, where: Console) -> Iterator[Emit]:
    """Print data, coverage and device, and yield a listener that shows every trial."""
    data = manifest.data
    stand_in = "STAND-IN DATA, because the model file has none: " if data.stand_in else ""
    where.print(Text.assemble((stand_in, "bold yellow"), escape_control(data.description)))
    where.print(escape_control(manifest.model.coverage))
    if manifest.model.weights:
        where.print(escape_control(manifest.model.weights))
    rate = "at the rate of the weights" if manifest.clock == 1 else f"{manifest.clock:.3g} times as fast as the weights"
    where.print(f"on {escape_control(manifest.device)}; thresholds learn {rate}")
    if manifest.warning:
        where.print(Text.assemble(("! ", "bold yellow"), escape_control(manifest.warning)))
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
    """A listener that writes each event as a line of JSON and flushes."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout

    def __call__(self, event: Event) -> None:
        self.out.write(to_json(event) + "\n")
        self.out.flush()


class Lines:
    """A listener that prints a line when something ends or goes wrong."""

    def __init__(self, manifest: Manifest, where: Console) -> None:
        self.score, self.where = manifest.data.score, where

    def __call__(self, event: Event) -> None:
        text = self.line(event)
        if text:
            self.where.print(escape_control(text))

    def line(self, event: Event) -> str:
        """Return the line for an event; "" for one without a line."""
        match event:
            case SweepStarted(trials=trials, done=done, steps=steps, jobs=jobs):
                at_once = ": the run is complete" if done == trials else _at_once(jobs)
                return f"{trials} trials of {steps} steps{_done_already(done)}{at_once}"
            case TimeEstimated(seconds=seconds, at_most=at_most, busy=busy):
                most = f", {minutes(at_most)} at most" if minutes(at_most) != minutes(seconds) else ""
                count = f"; {event.trials} to {event.at_most_trials} trials"
                by_itself = minutes(seconds / busy)
                alone = f"; alone on the machine {by_itself}" if busy > _BUSY and by_itself != minutes(seconds) else ""
                extended = count if event.at_most_trials > event.trials else ""
                return f"this takes {minutes(seconds)}{most}{extended}{alone}"
            case SweepExtended(trials=trials):
                return f"the search for alphas goes on: {trials} trials by now"
            case WarmUpFinished(seed=seed, control=control, seconds=seconds):
                return f"{_warm_up(seed, control)}: the weights that trials start from, {seconds:.1f} s"
            case TrialFinished(trial=trial, seconds=seconds):
                return (
                    f"{trial.label}: {_figures(event.loss, event.remaining, event.score, self.score)}, {seconds:.1f} s"
                )
            case TrialFailed(trial=trial, status=status, reason=reason):
                return f"{trial.label} {status}: {reason}"
            case TrialRetried(trial=trial, reason=reason):
                return f"{trial.label} starts again: {reason}"
            case ProofStarted(trainings=trainings, done=done, steps=steps, jobs=jobs, most=most):
                at_once = "" if done == trainings else _at_once(jobs)
                more = f", up to {most} until every comparison is decided" if most > trainings else ""
                time = _proof_time(event)
                return f"the proof: {trainings} trainings of {steps} steps{more}{_done_already(done)}{at_once}{time}"
            case CandidateTrained(contender=contender, seed=seed, score=score):
                return f"{contender}, seed {seed}: {'diverged' if score is None else f'{score:.4g}'}"
            case Notice(text=text):
                return text
        return ""


def _warm_up(seed: int, control: bool) -> str:
    return f"warm-up, seed {seed}{', labels shuffled' if control else ''}"


def _done_already(done: int) -> str:
    return f", {done} of them done already" if done else ""


def _proof_time(event: ProofStarted) -> str:
    if not event.seconds:
        return ""
    most = f", {minutes(event.most_seconds)} at most" if event.most > event.trainings else ""
    return f": {minutes(event.seconds)}{most}"


def _at_once(jobs: int) -> str:
    return f", {jobs} at once" if jobs > 1 else ""


class _Standing(rich.progress.ProgressColumn):
    """The figures of a running trial; on a narrow terminal without its loss where there is something else to say."""

    def __init__(self, *, narrow: bool) -> None:
        super().__init__()
        self.narrow = narrow

    def render(self, task: rich.progress.Task) -> Text:
        """Return the figures as text."""
        loss, comma, rest = str(task.fields["standing"]).partition(", ")
        return Text(rest if self.narrow and comma else f"{loss}{comma}{rest}")


class Bars:
    """A listener with a bar for all trials and a bar for each running one."""

    def __init__(self, manifest: Manifest, where: Console) -> None:
        self.score = manifest.data.score
        narrow = where.width < _WIDE
        self.rows = rich.progress.Progress(
            rich.progress.TextColumn("{task.description}"),
            rich.progress.BarColumn(bar_width=8 if narrow else 16),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TimeRemainingColumn(),
            _Standing(narrow=narrow),
            console=where,
            transient=True,
        )
        self.steps = self.left = self.trials = 0
        self.total: rich.progress.TaskID | None = None
        self.running: dict[TrialKey, rich.progress.TaskID] = {}
        self.warming: dict[tuple[int, bool], rich.progress.TaskID] = {}

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
            case WarmUpStarted(seed=seed, control=control, steps=steps):
                row = self.rows.add_task(_warm_up(seed, control), total=steps, standing="")
                self.warming[seed, control] = row
            case WarmUpStep(seed=seed, control=control, step=step, loss=loss) if (seed, control) in self.warming:
                self.rows.update(self.warming[seed, control], completed=step, standing=f"loss {loss:.3g}")
            case WarmUpFinished(seed=seed, control=control) if (seed, control) in self.warming:
                self.rows.remove_task(self.warming.pop((seed, control)))
            case TrialStarted(trial=trial, steps=steps):
                self.running[trial] = self.rows.add_task(trial.label, total=steps, standing="")
            case TrialStep(trial=trial, step=step) if trial in self.running:
                standing = _figures(event.loss, event.remaining, event.score, self.score)
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
        """Update the bar of the sweep with the steps of finished and running trials."""
        if self.total is None:
            return
        under_way = sum(self.rows.tasks[self.rows.task_ids.index(row)].completed for row in self.running.values())
        self.rows.update(
            self.total,
            completed=self._whole() - self.left * self.steps + under_way,
            description=f"{self.trials - self.left} of {self.trials} trials",
        )


class NotebookBars(Bars):
    """Bars as HTML that is replaced at each update, without widgets; only messages remain at the end."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest, Console(file=StringIO(), force_jupyter=False))
        self.lines = Lines(manifest, self.rows.console)
        stand_in = "Stand-in data, because the model file has none: " if manifest.data.stand_in else ""
        self.kept_lines = [stand_in + manifest.data.description, *([manifest.warning] if manifest.warning else [])]
        self.estimate_lines: list[str] = []  # dropped at the end
        self.shown = 0.0

    def __enter__(self) -> NotebookBars:
        self._ipython: Any = import_module("IPython.display")  # installed, as this is a notebook
        self._place = self._ipython.display(self._ipython.HTML(""), display_id=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._replace(_paragraph(self.kept_lines))

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, SweepStarted | TrialFailed | TrialRetried | Notice):
            self.kept_lines.append(self.lines.line(event))
        if isinstance(event, TimeEstimated):
            self.estimate_lines = [self.lines.line(event)]
        if not isinstance(event, TrialStep) or time.monotonic() - self.shown > _AT_LEAST:
            self._replace(_paragraph([*self.kept_lines, *self.estimate_lines]) + self._drawn())

    def _drawn(self) -> str:
        page = Console(file=StringIO(), record=True, force_jupyter=False, force_terminal=True, width=_NOTEBOOK_WIDTH)
        page.print(self.rows.get_renderable())
        return page.export_html(inline_styles=True, code_format='<pre style="line-height: normal">{code}</pre>')

    def _replace(self, html: str) -> None:
        self._place.update(self._ipython.HTML(html))
        self.shown = time.monotonic()


def _paragraph(sentences: Iterable[str]) -> str:
    return "<p>" + "<br>".join(escape(escape_control(sentence)) for sentence in sentences) + "</p>"


def _figures(loss: float | None, remaining: float | None, score: float | None, kind: str) -> str:
    parts = [] if loss is None else [f"loss {loss:.3g}"]
    if score is not None and kind == "accuracy":
        parts.append(f"accuracy {score:.1%}")
    if score is not None and kind == "score":
        parts.append(f"score {score:.4g}")
    if remaining is not None:
        parts.append(f"{remaining:.1%} remain")
    return ", ".join(parts)

"""`Study`: asks for trials, is told their scores, and keeps them in a run folder."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import nn

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import ModelError, OptionError, attempt
from dst_analyze.pipeline import finish_study, verify_study
from dst_analyze.ranking.load import rank_run
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import AskedPace, default_warm_up
from dst_analyze.run.derived import was_made
from dst_analyze.run.events import (
    Emit,
    SweepFinished,
    SweepStarted,
    TrialFailed,
    TrialFinished,
    TrialStarted,
    ignore_event,
)
from dst_analyze.run.files.paths import PLAN, is_blank
from dst_analyze.run.header import RunHeader
from dst_analyze.run.reader import FolderStatus, read_header, read_layers, read_run
from dst_analyze.run.record import DataSummary, SweepRecord
from dst_analyze.run.writer import RunFolder, check_free, open_run
from dst_analyze.study.processes import by_first, check_group, is_first, of_all, received, send, sendable, together
from dst_analyze.study.trial import StudyState, StudyTrial
from dst_analyze.sweep.planning.description.header import header_of
from dst_analyze.sweep.planning.description.summaries import used_versions
from dst_analyze.sweep.planning.loop_plan import OWN_LOOP, plan_loop
from dst_analyze.sweep.planning.options import MaskingOptions
from dst_analyze.sweep.planning.own_loop_plan import task_of
from dst_analyze.sweep.training.own_loop.fit_function import FunctionSource
from dst_analyze.sweep.training.own_loop.loop import LoopMeter

if TYPE_CHECKING:
    import pandas as pd

    from dst_analyze.ranking.result import Ranking
    from dst_analyze.slimming.proof.result import Seeds, Verification

_ITERATING: weakref.WeakValueDictionary[str, Generator[StudyTrial, None, None]] = weakref.WeakValueDictionary()
"""By run folder: a loop that was broken off in a notebook lives on in its traceback, and would hold the folder."""


class Study:
    """A sweep trained by a loop of your own, in a run folder like any other.

    Iterate over it: first comes the training that nothing is pruned in, then each alpha and seed. A folder that holds a
    part of the study already is gone on with. Several processes of one group of torch.distributed train it together:
    each iterates over it, the first writes.

    Args:
        folder: The run folder; made if it is not there.
        alphas: Strengths of pruning in the paper's scale, or "auto" to find some.
        seeds: A count, or the seeds themselves.
        warm_up: True starts all trials from weights trained by a first loop, False from new ones, as the paper
            does; None decides by the length of the loop.
        name: What the model is called in the report; its class by default.
        force: Replace a run that is in the folder.
        listener: Called with every event.
        options: As in `run_sweep`: alpha_scale, target_remaining, include, exclude, threshold, estimator, backend,
            threshold_clock, threshold_scale, on_collapse.

    Raises:
        OptionError: An option has no such value.
        FolderError: The folder holds another run, or another process writes it.

    Example:
        >>> import torch, dst_analyze as dst
        >>> study = dst.Study("reports/mine", alphas=(1e-6, 1e-5))
        >>> for trial in study:
        ...     _ = torch.manual_seed(trial.seed)
        ...     model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)), torch.randn(64, 8)
        ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ...     with trial.attach(model, x[:2], optimizer):
        ...         for _ in range(20):
        ...             optimizer.zero_grad()
        ...             model(x).square().mean().backward()
        ...             optimizer.step()
        ...     trial.tell(model(x).square().mean().item(), higher_is_better=False)
        >>> page = study.report()
    """

    def __init__(
        self,
        folder: Path | str,
        alphas: Sequence[float] | Literal["auto"] = "auto",
        seeds: int | Sequence[int] = 1,
        *,
        warm_up: bool | None = None,
        name: str = "",
        force: bool = False,
        listener: Emit = ignore_event,
        **options: Unpack[MaskingOptions],
    ) -> None:
        known = {"warm_up": 0} if warm_up is False else {}
        given: dict[str, Any] = {**options, **known, "alphas": alphas, "seeds": seeds}
        config = SweepConfig.checked(model="", data=OWN_LOOP, **given)
        self._state = StudyState(config, listener, self._layers_of_folder)
        self.folder, self.name, self._always, self._force = Path(os.path.realpath(folder)), name, warm_up is True, force
        _stop_iterating(self.folder)
        if is_first():
            self._check_folder()

    def __iter__(self) -> Iterator[StudyTrial]:
        check_group()
        _stop_iterating(self.folder)
        trials = self._asked() if not together() else self._led() if is_first() else self._followed()
        _ITERATING[str(self.folder)] = trials
        return trials

    @property
    def config(self) -> SweepConfig:
        """The configuration of the sweep, with the factor of its alphas once the first training has ended."""
        return self._state.config

    @property
    def record(self) -> SweepRecord:
        """What the folder holds: every trial and its readings."""
        return read_run(self.folder)

    @property
    def ranking(self) -> Ranking:
        """The layers by redundancy, with how sure that is."""
        return rank_run(self.record)

    def report(self, model: nn.Module | None = None, example_inputs: Any = None) -> Path:
        """Rank the layers, suggest a slimmer model and write the report.

        Args:
            model: The model, where this process has trained none of the trials; without it nothing is suggested.
            example_inputs: What to call it with.

        Returns:
            The path of the report's page.
        """
        if model is not None:
            self._state.trace(model, example_inputs)
        return by_first(lambda: finish_study(self.record, self._state.traced, self._state.emit))

    def verify(
        self,
        fit: Callable[[nn.Module], Any],
        evaluate: Callable[[nn.Module], Any],
        *,
        model: nn.Module | None = None,
        example_inputs: Any = None,
        seeds: Seeds = "auto",
    ) -> Verification:
        """Prove the suggestion: train it from scratch beside the dense model and others of its size.

        The proof is kept in the run folder, training by training, and stands in the report.

        Args:
            fit: Trains the model that it is given, in place, as the trials were trained.
            evaluate: Returns a model's score as `StudyTrial.tell` takes it, or a dict with its keywords and ``score``.
            model: The model, where this process has trained none of the trials.
            example_inputs: What to call it with.
            seeds: Trainings of each model; "auto" adds seeds until every comparison is decided.

        Raises:
            OptionError: The model is not known, or a score is of another kind than the study's.
        """
        if together():
            raise OptionError(
                "a proof is trained by one process", place="Study.verify()", hint="call it in a process of its own"
            )
        if model is not None:
            self._state.trace(model, example_inputs)
        traced, record = self._state.traced, self.record
        if traced is None:
            raise OptionError(
                "this process has trained none of the trials, so it does not know the model",
                place="Study.verify()",
                hint="give model= and example_inputs=",
            )
        if not was_made(record, PLAN):
            self.report()
        source = FunctionSource(traced.model, {}, fit=fit, evaluate=evaluate)
        task = task_of(source, traced, record.config, record.manifest, "other")
        return verify_study(task, record, seeds, self._state.emit)

    # --- asking ---

    def _asked(self) -> Generator[StudyTrial, None, None]:
        first: StudyTrial | None = None
        if self._state.manifest is None or self._force:
            first = StudyTrial(self._state, "first", self._state.config.seeds[0])
            yield from self._ask(first)
            self._settle(first)
        assert self._state.manifest is not None
        with open_run(self.folder, self._header(), "force" if self._force else "resume", self._state.emit) as run:
            self._force = False
            seen = run.look()
            self._state.emit(self._started(seen))
            if first is not None and not self._state.manifest.warm_up:
                self._write(run, first)
                seen = run.look()
            while seen.missing:
                for key in seen.missing:
                    if self._state.manifest.warm_up and key.seed not in self._state.warm:
                        yield from self._ask(StudyTrial(self._state, "warm-up", key.seed))
                    trial = StudyTrial(self._state, "reference" if key.alpha is None else "masked", key.seed, key.alpha)
                    yield from self._ask(trial)
                    self._write(run, trial)
                seen = run.look()
        self._state.emit(SweepFinished(str(self.folder), self.record.complete))

    def _led(self) -> Generator[StudyTrial, None, None]:
        """Ask for trials, and tell the processes that follow what is asked for."""
        state = self._state
        with closing(self._asked()) as asked:
            while True:
                try:
                    trial = next(asked, None)
                except Exception as error:
                    send(sendable(error))
                    raise
                send(trial and (trial.role, trial.seed, trial.alpha, state.config, state.manifest, state.kind))
                if trial is None:
                    return
                yield trial
                reason = next(filter(None, of_all(trial.reason)), "")
                if reason:
                    trial.failed(reason)

    def _followed(self) -> Generator[StudyTrial, None, None]:
        """Ask for what the first process asks for; it alone writes."""
        state = self._state
        while (asked := received()) is not None:
            role, seed, alpha, state.config, state.manifest, state.kind = asked
            trial = StudyTrial(state, role, seed, alpha)
            yield trial
            of_all(trial.reason)

    def _started(self, seen: FolderStatus) -> SweepStarted:
        assert self._state.manifest is not None
        trials, threads = len(seen.schedule.keys), torch.get_num_threads()
        return SweepStarted(str(self.folder), trials, len(seen.results), self._state.manifest.steps, 1, threads)

    def _ask(self, trial: StudyTrial) -> Iterator[StudyTrial]:
        self._state.emit(TrialStarted(trial.key, self._state.manifest.steps if self._state.manifest else 0))
        yield trial
        if not trial.told:
            raise OptionError(
                f"the study was not told how {trial.label} ended",
                place="trial.tell()",
                hint="tell its score before the next is taken; the trials before it are kept",
            )

    def _write(self, run: RunFolder, trial: StudyTrial) -> None:
        output = trial.output()
        run.write_trial(output)
        result, seconds = output.result, round(output.seconds, 3)
        if result.status == "done":
            self._state.emit(TrialFinished(result.key, result.loss, result.score, result.remaining, seconds))
        else:
            self._state.emit(TrialFailed(result.key, result.status, result.reason, seconds))

    # --- attaching ---

    def _layers_of_folder(self) -> dict[str, int] | None:
        if self._state.manifest is None or not is_first():
            return None
        table = self._layers()
        return dict(zip(table["layer"], table["params"].astype(int), strict=True))

    # --- what is found out ---

    def _check_folder(self) -> None:
        """Refuse a folder that holds another run or is being written, before anything is trained."""
        if is_blank(self.folder) or self._force:
            check_free(self.folder, self._state.config, "force" if self._force else "refuse")
            return
        check_free(self.folder, self._state.config, "resume")
        config, made = read_header(self.folder)
        self._state.config = self._state.config.scaled(config.factor)
        self._state.kind, self._state.manifest = made.data.score, made.model_copy(update={"versions": used_versions()})

    def _settle(self, first: StudyTrial) -> None:
        """Decide the trials' clock, warm-up and alphas by the training that has been watched."""
        meter = first.attached.training if first.attached else None
        if first.reason or self._state.traced is None or self._state.kind is None or not isinstance(meter, LoopMeter):
            raise ModelError(
                f"the training in which nothing is pruned failed: {first.reason}",
                place="trial.failed()",
                hint="a study needs a loop that learns when nothing is pruned",
            )
        asked = AskedPace.of(self._state.config)
        if asked.warm_up is None:
            asked = replace(asked, warm_up=meter.steps if self._always else default_warm_up(meter.steps))
        name = self.name or type(self._state.traced.model).__name__
        data = DataSummary(
            description="your own training loop", stand_in=False, score=self._state.kind, scored_on="test", sha256=""
        )
        self._state.config, self._state.manifest = plan_loop(
            meter, asked, self._state.config, self._state.traced, self._state.untrained, name=name, data=data
        )
        self._state.untrained = {}

    def _header(self) -> RunHeader:
        assert self._state.manifest is not None
        if self._state.traced is None:  # gone on with, before a model has been seen
            return RunHeader(self._state.config, self._state.manifest, self._layers())
        traced = self._state.traced
        coupling = attempt(lambda: couple_channels(traced), hint="couple_channels(...) shows where")
        return header_of(self._state.config, self._state.manifest, traced, coupling)

    def _layers(self) -> pd.DataFrame:
        return read_layers(self.folder)


def _stop_iterating(folder: Path) -> None:
    """Free a folder from an earlier loop of this process."""
    earlier = _ITERATING.pop(str(folder), None)
    if earlier is not None:
        earlier.close()

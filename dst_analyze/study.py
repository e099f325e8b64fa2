"""`Study`: a sweep whose trials are trained by a loop of your own; it asks for trials and is told their scores."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import nn

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.errors import ModelError, OptionError, attempt
from dst_analyze.masking.training.attach import AttachedMasks, attachable, same_layers
from dst_analyze.masking.training.optimizer_steps import Optimizers
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.pipeline import finish_study
from dst_analyze.ranking.load import rank_run
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import AskedPace, default_warm_up
from dst_analyze.run.events import (
    Emit,
    SweepFinished,
    SweepStarted,
    TrialFailed,
    TrialFinished,
    TrialStarted,
    ignore_event,
)
from dst_analyze.run.files.paths import is_blank
from dst_analyze.run.header import RunHeader
from dst_analyze.run.reader import FolderStatus, read_header, read_layers, read_run
from dst_analyze.run.record import DataSummary, Manifest, SweepRecord
from dst_analyze.run.writer import RunFolder, check_free, open_run
from dst_analyze.sweep.planning.description.header import header_of
from dst_analyze.sweep.planning.description.summaries import used_versions
from dst_analyze.sweep.planning.loop_plan import OWN_LOOP, plan_loop
from dst_analyze.sweep.planning.options import MaskingOptions
from dst_analyze.sweep.training.own_loop.loop import LoopMeter
from dst_analyze.sweep.training.own_loop.loop_trial import (
    LoopTrial,
    Pace,
    Role,
    ScoreKind,
    ToldScore,
    untrained_weights,
)

if TYPE_CHECKING:
    import pandas as pd

    from dst_analyze.ranking.result import Ranking

_ITERATING: weakref.WeakValueDictionary[str, Generator[StudyTrial, None, None]] = weakref.WeakValueDictionary()
"""By run folder: a loop that was broken off in a notebook lives on in its traceback, and would hold the folder."""


class StudyTrial(LoopTrial):
    """One training that a study asks for: attach it to a model, train that, tell its score.

    Attributes:
        key: What it is kept under; None for a training that only makes weights to start from.
        role: "first" (its length decides what it is), "warm-up", "reference" or "masked".
        seed: What to make the model and its data with.
        alpha: Strength of pruning, as it was given; None where nothing is pruned.
    """

    def __init__(self, study: Study, role: Role, seed: int, alpha: float | None = None) -> None:
        super().__init__(role, seed, alpha)
        self.study = study
        self.told = False

    def __repr__(self) -> str:
        return f"StudyTrial({self.role}, {self.label})"

    def attach(
        self,
        model: nn.Module,
        example_inputs: Any,
        optimizer: Optimizers | None = None,
        *,
        methods: Sequence[str] = (),
        write_zeros: bool = True,
    ) -> AttachedMasks:
        """Attach the trial to a model, for the ``with`` block in which your loop trains it.

        Args:
            model: A model built for this trial; where the study starts from trained weights, they are put into it.
            example_inputs: A tensor, a tuple of arguments or a dict of keywords.
            optimizer: The optimizer of its weights, or several; without one, it is found by its first step.
            methods: Methods beside ``forward`` that the loop calls.
            write_zeros: Leaving the block writes the zeros of the masks into the weights.

        Returns:
            A context manager with `remaining`, `masks`, `state_dict` and `load_state_dict`.

        Raises:
            ModelError: The model cannot be attached to, or is another one than the trials before had.
            OptionError: The trial has been told already.
        """
        if self.told:
            raise OptionError(f"the trial is over: {self.label}", place="trial.attach()", hint="take the study's next")
        study = self.study
        traced = study._trace(attachable(model), example_inputs)
        if self.role == "first":
            study._untrained = untrained_weights(traced)
        start = study._warm.get(self.seed) if self.role in ("reference", "masked") else None
        return self.start(
            traced,
            study.config,
            study._pace,
            weights=start,
            optimizers=optimizer,
            methods=methods,
            written=write_zeros,
            emit=study._emit,
        )

    def end(self, attached: AttachedMasks) -> None:
        """Take the last readings, and keep weights that other trials start from."""
        super().end(attached)
        if self.role in ("first", "warm-up"):
            self.study._warm[self.seed] = self.weights

    def tell(
        self,
        score: float,
        *,
        loss: float | None = None,
        error: float | None = None,
        higher_is_better: bool = True,
    ) -> None:
        """Tell how well the trained model does on data that it was not trained on.

        Args:
            score: A share between 0 and 1 (accuracy), or with ``higher_is_better=False`` any loss.
            loss: The loss on the same data, if the score is none.
            error: The score's standard error, if it is known.
            higher_is_better: False if the score is a loss or an error.

        Raises:
            OptionError: Nothing was trained, the score is not finite, or of another kind than those before.
        """
        if self.told:
            raise OptionError(f"told twice: {self.label}", place="trial.tell()", hint="take the study's next trial")
        if not self.ended:
            raise OptionError(
                f"nothing was trained for {self.label}",
                place="trial.tell()",
                hint="train a model inside `with trial.attach(...)`, then tell its score",
            )
        told = ToldScore.of(score, loss=loss, error=error, higher_is_better=higher_is_better)
        self.study._check_kind(told.kind)
        self.told_score, self.told = told, True

    def failed(self, reason: str) -> None:
        """Tell that the training did not end well; the trial is left out of the ranking."""
        self.told, self.reason = True, reason or "it failed"


class Study:
    """A sweep trained by a loop of your own, in a run folder like any other.

    Iterate over it: first comes the training that nothing is pruned in, then each alpha and seed. A folder that holds a
    part of the study already is gone on with.

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
        self.config = SweepConfig.checked(model="", data=OWN_LOOP, **given)
        self.folder, self.name, self._always = Path(os.path.realpath(folder)), name, warm_up is True
        self._force, self._emit = force, listener
        self._warm: dict[int, bytes | None] = {}
        self._traced: TracedModel | None = None
        self._untrained: dict[str, torch.Tensor] = {}
        self._manifest: Manifest | None = None
        self._kind: ScoreKind | None = None
        _stop_iterating(self.folder)
        self._check_folder()

    def __iter__(self) -> Iterator[StudyTrial]:
        _stop_iterating(self.folder)
        trials = self._asked()
        _ITERATING[str(self.folder)] = trials
        return trials

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
            self._trace(model, example_inputs)
        return finish_study(self.record, self._traced, self._emit)

    # --- asking ---

    def _asked(self) -> Generator[StudyTrial, None, None]:
        first: StudyTrial | None = None
        if self._manifest is None or self._force:
            first = StudyTrial(self, "first", self.config.seeds[0])
            yield from self._ask(first)
            self._settle(first)
        assert self._manifest is not None
        with open_run(self.folder, self._header(), "force" if self._force else "resume", self._emit) as run:
            self._force = False
            seen = run.look()
            self._emit(self._started(seen))
            if first is not None and not self._manifest.warm_up:
                self._write(run, first)
                seen = run.look()
            while seen.missing:
                for key in seen.missing:
                    if self._manifest.warm_up and key.seed not in self._warm:
                        yield from self._ask(StudyTrial(self, "warm-up", key.seed))
                    trial = StudyTrial(self, "reference" if key.alpha is None else "masked", key.seed, key.alpha)
                    yield from self._ask(trial)
                    self._write(run, trial)
                seen = run.look()
        self._emit(SweepFinished(str(self.folder), self.record.complete))

    def _started(self, seen: FolderStatus) -> SweepStarted:
        assert self._manifest is not None
        trials, threads = len(seen.schedule.keys), torch.get_num_threads()
        return SweepStarted(str(self.folder), trials, len(seen.results), self._manifest.steps, 1, threads)

    def _ask(self, trial: StudyTrial) -> Iterator[StudyTrial]:
        self._emit(TrialStarted(trial.key, self._manifest.steps if self._manifest else 0))
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
            self._emit(TrialFinished(result.key, result.loss, result.score, result.remaining, seconds))
        else:
            self._emit(TrialFailed(result.key, result.status, result.reason, seconds))

    # --- attaching ---

    @property
    def _pace(self) -> Pace | None:
        made = self._manifest
        return None if made is None else Pace(made.steps, made.clock, made.unit)

    def _trace(self, model: nn.Module, example_inputs: Any) -> TracedModel:
        """Return the model's trace; models built alike are traced once."""
        known = self._traced
        if known is not None and same_layers(known, model):
            self._traced = replace(known, model=model)
            return self._traced
        traced = trace_model(model, example_inputs, include=self.config.include, exclude=self.config.exclude)
        now = {layer.name: layer.params for layer in traced.layers}
        before = {layer.name: layer.params for layer in known.layers} if known else self._layers_of_folder()
        if before is not None and before != now:
            differ = next(name for name in {**before, **now} if before.get(name) != now.get(name))
            raise ModelError(
                f"this model is another one than the study's: {differ} has {now.get(differ, 'no')} weights, "
                f"and had {before.get(differ, 'none')}",
                place="trial.attach()",
                hint="build the same model for every trial, or begin another study",
            )
        self._traced = traced
        return traced

    def _layers_of_folder(self) -> dict[str, int] | None:
        if self._manifest is None:
            return None
        table = self._layers()
        return dict(zip(table["layer"], table["params"].astype(int), strict=True))

    # --- what is found out ---

    def _check_folder(self) -> None:
        """Refuse a folder that holds another run or is being written, before anything is trained."""
        if is_blank(self.folder) or self._force:
            check_free(self.folder, self.config, "force" if self._force else "refuse")
            return
        check_free(self.folder, self.config, "resume")
        config, made = read_header(self.folder)
        self.config = self.config.scaled(config.factor)
        self._kind, self._manifest = made.data.score, made.model_copy(update={"versions": used_versions()})

    def _settle(self, first: StudyTrial) -> None:
        """Decide the trials' clock, warm-up and alphas by the training that has been watched."""
        meter = first.attached.training if first.attached else None
        if first.reason or self._traced is None or self._kind is None or not isinstance(meter, LoopMeter):
            raise ModelError(
                f"the training in which nothing is pruned failed: {first.reason}",
                place="trial.failed()",
                hint="a study needs a loop that learns when nothing is pruned",
            )
        asked = AskedPace.of(self.config)
        if asked.warm_up is None:
            asked = replace(asked, warm_up=meter.steps if self._always else default_warm_up(meter.steps))
        name = self.name or type(self._traced.model).__name__
        data = DataSummary(
            description="your own training loop", stand_in=False, score=self._kind, scored_on="test", sha256=""
        )
        self.config, self._manifest = plan_loop(
            meter, asked, self.config, self._traced, self._untrained, name=name, data=data
        )
        self._untrained = {}

    def _header(self) -> RunHeader:
        assert self._manifest is not None
        if self._traced is None:  # gone on with, before a model has been seen
            return RunHeader(self.config, self._manifest, self._layers())
        traced = self._traced
        coupling = attempt(lambda: couple_channels(traced), hint="couple_channels(...) shows where")
        return header_of(self.config, self._manifest, traced, coupling)

    def _layers(self) -> pd.DataFrame:
        return read_layers(self.folder)

    def _check_kind(self, kind: ScoreKind) -> None:
        if self._kind not in (None, kind):
            raise OptionError(
                f"this score is {kind}, and the study's others are {self._kind}",
                place="trial.tell()",
                hint="tell the same kind of score for every trial",
            )
        self._kind = kind


def _stop_iterating(folder: Path) -> None:
    """Free a folder from an earlier loop of this process."""
    earlier = _ITERATING.pop(str(folder), None)
    if earlier is not None:
        earlier.close()

"""Planning for a model file that trains itself with ``fit(model)``: what is learnt from the first training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dst_analyze.errors import DataError, ModelError, OptionError
from dst_analyze.model.inputs.infer import find_example_inputs
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import AskedPace, default_warm_up
from dst_analyze.run.events import Emit, Notice
from dst_analyze.run.record import DataSummary, Manifest
from dst_analyze.sweep.engines.resources import threads_per_trial, torch_threads
from dst_analyze.sweep.planning.description.fingerprint import code_sha256
from dst_analyze.sweep.planning.description.summaries import used_versions
from dst_analyze.sweep.planning.loop_plan import plan_loop
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.own_loop.fit_function import FirstTraining, train_first
from dst_analyze.sweep.training.recipe import Recipe
from dst_analyze.sweep.training.trial import ModelSource, Task
from dst_analyze.text import duration

_IGNORED = (
    "steps", "epochs", "until_stable", "max_epochs", "control", "batch_size", "lr", "optimizer", "schedule",
    "weight_decay", "amp", "amp_dtype", "recipe", "device",
)  # fmt: skip
IGNORED = {name: f"--{name.replace('_', '-')}" for name in _IGNORED}
"""Options that speak of the tool's own loop."""


class NoBatches:
    """The data of a loop of the user's, which the tool never sees."""

    per_epoch = None

    def stream(self, seed: int) -> Iterator[Any]:
        """Refuse: only the user's loop knows its data."""
        raise DataError(
            "the model file trains itself, and its data are not known here",
            place="fit(model)",
            hint="this needs train_data() in the model file",
        )

    def once(self) -> Iterator[Any]:
        """Refuse, as `stream` does."""
        return self.stream(0)

    def describe(self) -> str:
        """Return what a report says of the data."""
        return "known to fit() alone"


@dataclass(frozen=True)
class OwnLoopPlan:
    """A task that its model file trains, the manifest, and the first training if it was trained just now."""

    task: Task
    manifest: Manifest
    first: FirstTraining | None


def plan_own_loop(
    loaded: LoadedModel,
    source: ModelSource,
    config: SweepConfig,
    options: Mapping[str, Any],
    data: Any,
    before: tuple[SweepConfig, Manifest] | None,
    emit: Emit,
) -> OwnLoopPlan:
    """Plan a sweep whose trainings are the model file's own.

    Args:
        loaded: The model with its hooks.
        source: Where trials get theirs.
        config: The configuration, with the model's fingerprint.
        options: What was asked for, to refuse what such a loop would ignore.
        data: Data that were given; there must be none.
        before: What the folder says of a run that is gone on with: its first training need not be repeated.
        emit: Gets what there is to say.
    """
    _refuse_ignored(loaded, options, data)
    inputs = find_example_inputs(loaded)
    traced = trace_model(loaded.model, inputs, include=config.include, exclude=config.exclude)
    threads = threads_per_trial(traced.macs, None)
    first: FirstTraining | None = None
    if before is None:
        emit(Notice(f"fit() of {loaded.spec} trains first without pruning, which tells how long a training is"))
        with torch_threads(threads):
            first = train_first(source, traced, config, emit)
        emit(Notice(f"it takes {first.meter.steps:,} steps and {duration(first.seconds)}"))
        asked = AskedPace.of(config)
        if asked.warm_up is None:
            asked = replace(asked, warm_up=default_warm_up(first.meter.steps))
        about = DataSummary(
            description=f"those of fit() and evaluate() of {loaded.spec}",
            stand_in=False,
            score=first.kind,
            scored_on="test",
            sha256="",
        )
        config, made = plan_loop(first.meter, asked, config, traced, first.untrained, name=loaded.name, data=about)
        made = made.model_copy(
            update={
                "sums": "all",
                "threads": threads,
                "model": made.model.model_copy(update={"sha256": config.model_sha256, "files": code_sha256(loaded)}),
            }
        )
    else:
        config, made = config.scaled(before[0].factor), before[1].model_copy(update={"versions": used_versions()})
    task = task_of(source, traced, config, made, first.meter.family if first else "other")
    return OwnLoopPlan(task, made, first)


def task_of(source: ModelSource, traced: TracedModel, config: SweepConfig, made: Manifest, family: str) -> Task:
    """Return the task of a sweep that a loop of the user's trains, as its first training has planned it."""
    pace = AskedPace(made.clock, made.warm_up, made.unit)
    recipe = Recipe(family, 1.0, 0.0, "constant", 0.0, made.steps, made.clock, made.warm_up, made.unit, pace)
    return Task(
        source=source,
        traced=traced,
        train_data=NoBatches(),
        test_data=NoBatches(),
        config=config,
        steps=made.steps,
        accuracy=made.data.score == "accuracy",
        told=made.data.score,
        recipe=recipe,
        device=Device("cpu"),
        threads=made.threads,
        own_loop=True,
        runs_as=made.model.form,
    )


def _refuse_ignored(loaded: LoadedModel, options: Mapping[str, Any], data: Any) -> None:
    if loaded.evaluate is None:
        raise ModelError(
            "there is a fit(model) but no evaluate(model)",
            place=loaded.spec,
            hint="define evaluate(model), which returns a score, or a dict with score and higher_is_better",
        )
    if options.get("quick"):
        raise OptionError(
            "fit(model) of the model file trains, and only trainings by this tool can be pruned by magnitude alone",
            place="--quick",
            hint="leave --quick out, or take fit() out of the file and define train_data()",
        )
    defaults = {name: SweepConfig.model_fields[name].default for name in IGNORED}
    ignored = [flag for name, flag in IGNORED.items() if options.get(name, defaults[name]) != defaults[name]]
    if data is not None:
        ignored.append("--data")
    if options.get("warm_up"):
        ignored.append("--warm-up")
    if ignored:
        raise OptionError(
            f"{ignored[0]} has no effect: fit(model) of the model file trains, in its own way",
            place=ignored[0],
            hint="set it there, or take fit() out of the file and define train_data()",
        )

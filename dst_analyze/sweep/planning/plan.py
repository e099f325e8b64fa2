"""The plan of a sweep, made by checking everything that can be checked without training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.deprecation import with_new_names
from dst_analyze.errors import DataError, DstError, OptionError, at, attempt
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.loading.weights import put_weights, read_weights
from dst_analyze.run.config import RENAMED, SweepConfig, ThresholdScale
from dst_analyze.run.defaults import DEFAULT_STEPS, AskedPace, asked_scale
from dst_analyze.run.events import Emit, ignore_event
from dst_analyze.run.files.paths import default_path, is_blank
from dst_analyze.run.reader import read_header
from dst_analyze.run.record import DataSummary, DefaultOptimizer, Manifest
from dst_analyze.run.writer import Existing, check_free
from dst_analyze.sweep.data.batches import (
    Batches,
)
from dst_analyze.sweep.data.named_datasets import DEFAULT_ROOT
from dst_analyze.sweep.engines.resources import threads_per_trial, threads_per_warm_up
from dst_analyze.sweep.planning.default_optimizer import default_optimizer
from dst_analyze.sweep.planning.description.fingerprint import data_sha256, model_sha256, weights_sha256
from dst_analyze.sweep.planning.description.manifest import manifest_of
from dst_analyze.sweep.planning.estimates.forecast import Travel
from dst_analyze.sweep.planning.find_data import digits_for, epochs_of, given_data, named_data
from dst_analyze.sweep.planning.own_loop_plan import plan_own_loop
from dst_analyze.sweep.planning.preflight import gradient_noise, load_trainable, run_preflight
from dst_analyze.sweep.planning.trace_on_data import trace_on_data
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.own_loop.fit_function import FirstTraining
from dst_analyze.sweep.training.recipe import Recipe
from dst_analyze.sweep.training.trial import ModelSource, ModelSpec, Task, seeded


@dataclass(frozen=True)
class Plan:
    """A sweep that has been checked and can start."""

    task: Task
    manifest: Manifest
    out: Path
    existing: Existing
    request: Request | None  # for another process to make the same plan; None if it cannot
    first: FirstTraining | None = None  # of a model file that trains itself, if that was trained while planning

    @cached_property
    def coupling(self) -> Coupling | DstError:
        """The groups of channels that must shrink together, or the error that prevents finding them."""
        return attempt(lambda: couple_channels(self.task.traced), hint="`dst-analyze slim RUN --debug` shows where")


@dataclass(frozen=True)
class Request:
    """The arguments of a plan, for a worker that makes it again because the data cannot be sent."""

    model: ModelSpec
    data: str | None
    root: Path
    args: Mapping[str, Any]
    options: Mapping[str, Any]

    def task(self) -> Task:
        """Return the task, planned again; nothing is downloaded, as the first plan has done so if requested."""
        return _plan(self.model, self.data, self.root, False, self.args, self.options, _skip_check).task


@dataclass(frozen=True)
class Planned:
    """A task with the model and data it was made from."""

    loaded: LoadedModel
    task: Task
    manifest: Manifest
    first: FirstTraining | None = None


@dataclass(frozen=True)
class PlannedBefore:
    """The values that an existing run chose by default; the defaults may have changed since."""

    factor: float  # of the alphas
    steps: int
    clock: float
    warm_up: int
    threshold_scale: ThresholdScale
    optimizer: DefaultOptimizer | None = None


Earlier = tuple[SweepConfig, Manifest]
"""What a run folder that is gone on with says of itself."""


def _skip_check(name: str, config: SweepConfig) -> Callable[[], Earlier | None]:
    """Skip the check of the run folder, which the first plan has made."""
    return lambda: None


def plan_sweep(
    model: ModelSpec,
    data: Any = None,
    *,
    model_args: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    data_root: Path | str = DEFAULT_ROOT,
    download: bool = False,
    before: PlannedBefore | None = None,
    emit: Emit = ignore_event,
    **options: Any,
) -> Plan:
    """Return a plan, after checking options, model, folder and data, and taking one step on one batch.

    ``before``: the values of an existing run, which replace those that would be found or chosen now.
    A model file that trains itself is trained once here, to learn how long that is; ``emit`` gets notices.
    """
    args = dict(model_args or {})
    options = with_new_names(options, RENAMED, stacklevel=3)
    paths: list[Path] = []

    def check(name: str, config: SweepConfig) -> Callable[[], Earlier | None]:
        paths.append(path := Path(out) if out is not None else default_path(name, config))
        check_free(path, config, existing)
        return lambda: None if existing == "force" or is_blank(path) else read_header(path)

    root = Path(data_root)
    planned = _plan(model, data, root, download, args, options, check, before, emit)
    named = isinstance(model, str | os.PathLike) and (data is None or isinstance(data, str))
    request = Request(model, data, root, args, options) if named and not planned.task.own_loop else None
    return Plan(planned.task, planned.manifest, paths[0], existing, request, planned.first)


def plan_task(
    model: ModelSpec,
    data: Any = None,
    *,
    model_args: Mapping[str, Any] | None = None,
    data_root: Path | str = DEFAULT_ROOT,
    download: bool = False,
    **options: Any,
) -> Task:
    """Return the task, checked as by `plan_sweep`, for trainings without a run folder and without alphas."""
    options = {**with_new_names(options, RENAMED, stacklevel=3), "alpha_scale": 1.0}  # no alphas: nothing to scale
    args = dict(model_args or {})
    return _plan(model, data, Path(data_root), download, args, options, _skip_check).task


def _plan(
    model: ModelSpec,
    data: Any,
    root: Path,
    download: bool,
    args: Mapping[str, Any],
    options: Mapping[str, Any],
    check: Callable[[str, SweepConfig], Callable[[], Earlier | None]],
    before: PlannedBefore | None = None,
    emit: Emit = ignore_event,
) -> Planned:
    """Return the task; ``check`` gets the model's name and the configuration before the slow part."""
    config = SweepConfig.checked(model="", model_args=args, **options)
    device = Device.chosen(config.device, amp=config.amp, amp_dtype=config.amp_dtype)
    # Seeded, so that a model file with random weights or data gives the same ones every time.
    source = model_source(model, args, config)
    with seeded(config.seeds[0]), at(str(model) if isinstance(model, str | os.PathLike) else ""):
        loaded = load_trainable(source)
        fingerprints = {
            "model": loaded.spec,
            "model_sha256": model_sha256(loaded, model),
            "weights_sha256": None if source.weights is None else weights_sha256(source.weights),
        }
        if loaded.fit is not None:
            config = config.model_copy(update=fingerprints)
            own = plan_own_loop(loaded, source, config, options, data, check(loaded.name, config)(), emit)
            return Planned(loaded, own.task, own.manifest, own.first)
        if isinstance(data, str):
            found = named_data(loaded, data, config, root, download=download)
        else:
            found = given_data(loaded, data, config)
        config = config.model_copy(
            update={**fingerprints, "data": found.description if found and data is not None else data or ""}
        )
        check(loaded.name, config)
        if found is None and data is None and loaded.needs_data:
            raise DataError(loaded.needs_data.partition(": ")[0], hint=loaded.needs_data.partition(": ")[2])
        if config.control and getattr(loaded.loss, "takes_model", False):
            raise OptionError(
                "a loss that calls the model itself reads the labels where no one can shuffle them",
                place="--control",
                hint="leave --control out, or define loss(outputs, batch)",
            )
        traced = trace_on_data(loaded, found, config)
        how = "" if source.weights is None else put_weights(loaded.model, source.weights, source.weights_from)
        stand_in, found = found is None and data is None, found or digits_for(traced, config)
        chosen = before.optimizer if before else None
        steps = before.steps if before else _steps(config, found.train)
        task = Task(
            source=source,
            traced=traced,
            train_data=found.train,
            test_data=found.test or found.train,
            config=config,
            steps=steps,
            accuracy=False,
            recipe=_recipe(loaded, config, steps, before),
            device=device,
            threads=threads_per_trial(traced.macs, config.batch_size),
            warm_up_threads=threads_per_warm_up(traced.macs, config.batch_size, config.warm_ups),
            loss=loaded.loss,
        )
        task = run_preflight(task, loaded, found.description)
        if loaded.optimizer is None and config.optimizer is None and config.recipe != "paper":
            if before is None:
                chosen = default_optimizer(loaded.model, accuracy=task.accuracy, detects=task.losses_in_training)
            task = replace(task, recipe=Recipe.of(config, steps, _asked(before), chosen))
        noise = None if before or config.quick else gradient_noise(task, loaded.model)
        travel = Travel(task.recipe, noise, before.factor if before else asked_scale(config))
        task = replace(task, config=config.scaled(travel.factor))
        digest = data_sha256(task.train_data, task.test_data, seed=config.seeds[0])
    summary = DataSummary(
        description=found.description,
        name=data if isinstance(data, str) else "",
        stand_in=stand_in,
        score=task.score,
        scored_on="test" if found.test else "train",
        sha256=digest,
    )
    weights = how and f"{source.weights_from}: {how}"
    return Planned(loaded, task, manifest_of(loaded, task, travel, summary, chosen, weights))


def model_source(model: ModelSpec, args: Mapping[str, Any], config: SweepConfig) -> ModelSource:
    """Return the source of a sweep's models, with the weights they start from."""
    if not config.weights:
        return ModelSource(model, args)
    if isinstance(model, nn.Module):
        raise OptionError(
            "the model is a module that already holds weights",
            place="--weights",
            hint="load them into it: model.load_state_dict(...)",
        )
    return ModelSource(model, args, read_weights(Path(config.weights)), config.weights)


def _recipe(loaded: LoadedModel, config: SweepConfig, steps: int, before: PlannedBefore | None) -> Recipe:
    asked = _asked(before)
    hook, place = loaded.optimizer, f"optimizer() of {loaded.spec}"
    if hook is None:
        return Recipe.of(config, steps, asked)
    return Recipe.of_hook(config, steps, hook, loaded.model, place=place, asked=asked)


def _asked(before: PlannedBefore | None) -> AskedPace | None:
    return AskedPace(before.clock, before.warm_up, before.threshold_scale) if before else None


def _steps(config: SweepConfig, data: Batches) -> int:
    epochs = epochs_of(config)
    if epochs is None:
        return config.steps or DEFAULT_STEPS
    if data.per_epoch is None:
        raise OptionError(
            "it is unknown how long an epoch of these data is, as they have no length",
            hint="give --steps instead of epochs",
        )
    return epochs * data.per_epoch

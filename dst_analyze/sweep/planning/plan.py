"""The plan of a sweep, made by checking everything that can be checked without training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dst_analyze.channels.coupling import couple_channels
from dst_analyze.channels.groups import Coupling
from dst_analyze.deprecation import with_new_names
from dst_analyze.errors import DataError, DstError, ModelError, OptionError, at, attempt
from dst_analyze.model.inputs.describe import BATCH_FORMS, describe_batch
from dst_analyze.model.inputs.infer import find_example_inputs, has_annotations
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.inputs.two_samples import two_samples
from dst_analyze.model.isolation import preserved
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.loading.weights import put_weights, read_weights
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.model.user_errors import headline, is_out_of_memory, user_code
from dst_analyze.run.alpha_search import search_of
from dst_analyze.run.config import DEFAULT_BATCH_SIZE, RENAMED, SweepConfig, ThresholdScale
from dst_analyze.run.defaults import DEFAULT_STEPS, AskedPace, asked_scale, on_collapse_of
from dst_analyze.run.events import Emit, ignore_event
from dst_analyze.run.files.paths import default_path, is_blank
from dst_analyze.run.reader import read_header
from dst_analyze.run.record import DataSummary, DefaultOptimizer, Manifest
from dst_analyze.run.writer import Existing, check_free
from dst_analyze.sweep.data.batches import (
    SCORED_AT_MOST,
    Batches,
    LoaderBatches,
    TensorBatches,
    as_batches,
    first_batch,
    is_tensors,
)
from dst_analyze.sweep.data.digits import fitted_digits
from dst_analyze.sweep.data.named_datasets import DEFAULT_ROOT, DIGITS, DataRequest, load_named_data, scaled
from dst_analyze.sweep.engines.resources import free_memory, gigabytes, threads_per_trial
from dst_analyze.sweep.planning.default_optimizer import default_optimizer
from dst_analyze.sweep.planning.description.fingerprint import code_sha256, data_sha256, model_sha256, weights_sha256
from dst_analyze.sweep.planning.description.summaries import summarize_model, used_versions
from dst_analyze.sweep.planning.estimates.forecast import Travel, forecast, warning
from dst_analyze.sweep.planning.estimates.initial_alphas import first_alphas
from dst_analyze.sweep.planning.own_loop_plan import plan_own_loop
from dst_analyze.sweep.planning.preflight import gradient_noise, load_trainable, run_preflight
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.objective import main_output, split_batch
from dst_analyze.sweep.training.own_loop.fit_function import FirstTraining
from dst_analyze.sweep.training.recipe import PAPER_EPOCHS, Recipe
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
    device = Device.chosen(config.device, amp=config.amp)
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
            found = _named_data(loaded, data, config, root, download=download)
        else:
            found = _given_data(loaded, data, config)
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
        traced = _trace(loaded, found, config)
        how = "" if source.weights is None else put_weights(loaded.model, source.weights, source.weights_from)
        stand_in, found = found is None and data is None, found or _digits(traced, config)
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
            loss=loaded.loss,
        )
        task = run_preflight(task, loaded, found.description)
        if loaded.optimizer is None and config.optimizer is None and config.recipe != "paper":
            if before is None:
                chosen = default_optimizer(loaded.model, accuracy=task.accuracy, detects=task.losses_in_training)
            task = replace(task, recipe=Recipe.of(config, steps, _asked(before), chosen))
        noise = None if before else gradient_noise(task, loaded.model)
        travel = Travel(task.recipe, noise, before.factor if before else asked_scale(config))
        task = replace(task, config=config.scaled(travel.factor))
        digest = data_sha256(task.train_data, task.test_data, seed=config.seeds[0])
    summary = DataSummary(
        description=found.description,
        name=data if isinstance(data, str) else "",
        stand_in=stand_in,
        score="accuracy" if task.accuracy else "loss",
        scored_on="test" if found.test else "train",
        sha256=digest,
    )
    weights = how and f"{source.weights_from}: {how}"
    return Planned(loaded, task, _manifest(loaded, task, travel, summary, chosen, weights))


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


@dataclass(frozen=True)
class FoundData:
    """Batches to train and test on, with a description for messages."""

    train: Batches
    test: Batches | None
    description: str


def _named_data(loaded: LoadedModel, name: str, config: SweepConfig, root: Path, *, download: bool) -> FoundData | None:
    """Return the data of a name; None for the digits, which are resized once the model is traced."""
    if name == DIGITS:
        return None
    source = load_named_data(DataRequest(name, root, download, _input_shape(loaded)))
    size = config.batch_size or DEFAULT_BATCH_SIZE
    train, test = (
        TensorBatches(part, size, scaled)
        if is_tensors(part)
        else as_batches(part, place=f"--data {name}", batch_size=size, shuffle=part is source.train)
        for part in (source.train, source.test)
    )
    return FoundData(train, test, source.description)


def _input_shape(loaded: LoadedModel) -> tuple[int, ...] | None:
    """Return the shape of one sample, from the model's example or inferred; None if unknown."""
    try:
        tensors = find_example_inputs(replace(loaded, train_data=None)).tensors()
    except ModelError:
        return None
    return tuple(tensors[0].shape[1:]) if len(tensors) == 1 else None


def _given_data(loaded: LoadedModel, data: Any, config: SweepConfig) -> FoundData | None:
    """Return the caller's data, else the model file's; None if there are none."""
    if data is not None:
        train, test = data if _is_pair(data) else (data, None)
        where = "the data given"
    elif loaded.train_data is not None:
        train = loaded.train_data()
        test = loaded.test_data() if loaded.test_data else None
        where = f"train_data() of {loaded.spec}"
    elif loaded.test_data is not None:
        raise DataError("there is a test_data() but no train_data()", place=loaded.spec, hint="define train_data() too")
    else:
        return None
    needed = None if _epochs(config) else config.steps or DEFAULT_STEPS
    batches = as_batches(train, place=where, batch_size=config.batch_size, needed=needed)
    size = None if isinstance(batches, LoaderBatches) else config.batch_size
    tests = None
    if test is not None:
        tests = as_batches(test, place="test_data()", batch_size=size, shuffle=False, needed=SCORED_AT_MOST)
    # The description is a part of a run's configuration: in other words, runs could no longer be resumed.
    endless = (tests or batches).per_epoch is None
    bound = f"; scored on the first {SCORED_AT_MOST} batches, as nobody knows how many there are" if endless else ""
    return FoundData(batches, tests, f"{where}: {batches.describe()}{bound}")


def _recipe(loaded: LoadedModel, config: SweepConfig, steps: int, before: PlannedBefore | None) -> Recipe:
    asked = _asked(before)
    hook, place = loaded.optimizer, f"optimizer() of {loaded.spec}"
    if hook is None:
        return Recipe.of(config, steps, asked)
    return Recipe.of_hook(config, steps, hook, loaded.model, place=place, asked=asked)


def _asked(before: PlannedBefore | None) -> AskedPace | None:
    return AskedPace(before.clock, before.warm_up, before.threshold_scale) if before else None


def _is_pair(data: Any) -> bool:
    """Return True for (train, test), False for a tuple of tensors."""
    return isinstance(data, tuple) and len(data) == 2 and not is_tensors(data)


def _trace(loaded: LoadedModel, data: FoundData | None, config: SweepConfig) -> TracedModel:
    """Return the traced model; inputs are the file's example, else two training samples, else inferred ones."""

    def trace(inputs: Inputs) -> TracedModel:
        return trace_model(loaded.model, inputs, include=config.include, exclude=config.exclude)

    if loaded.example_inputs is not None or data is None:
        return trace(find_example_inputs(loaded))
    with user_code("the training data", DataError, file=loaded.file):
        batch = first_batch(data.train, place=data.description)
        inputs = split_batch(batch, loaded.model)[0]
    try:
        if not inputs.tensors():
            raise DataError(
                f"no part of a batch is a tensor for the model: a batch is {describe_batch(batch)}",
                place=data.description,
                hint=f"batches are {BATCH_FORMS}",
            )
        try:
            return trace(two_samples(loaded.model, inputs, listed=has_annotations(batch)))
        except ModelError:
            # A loss that calls the model itself may give it a part of what the batch holds: one view of several.
            views = _views(batch) if getattr(loaded.loss, "takes_model", False) else None
            if views is None:
                raise
            return trace(views.first_samples(2))
    except ModelError as error:
        if error.__cause__ is None:  # the model was not run, so the data are not the cause
            raise
        raise DataError(
            f"the training data do not fit the model: {headline(error.__cause__)}",
            place=error.place or data.description,
            trace=error.trace,
            hint=_mismatch_hint(error.__cause__, inputs, loaded, batch),
        ) from error.__cause__


def _views(batch: Any) -> Inputs | None:
    """The first tensor of a batch alone, as a model's input; None if that is the whole batch."""
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return Inputs((leaves[0],)) if len(leaves) > 1 else None


def _mismatch_hint(why: BaseException, inputs: Inputs, loaded: LoadedModel, batch: Any) -> str:
    """Return a hint that compares the data with what the model takes."""
    if is_out_of_memory(why):
        return f"two samples need more than the {gigabytes(free_memory())} that are free: use smaller inputs or layers"
    given = inputs.describe()
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not is_tensors(parts):
        return f"a batch is {describe_batch(batch)}; expected: {BATCH_FORMS}; or define example_inputs()"
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in inputs.tensors()):
        return f"given {given}; layers compute with floats: return images.float() / 255, or the like, in train_data()"
    shape = _input_shape(loaded)
    expected = f"samples of {list(shape)}" if shape else "what example_inputs() gives"
    return f"given {given}; expected {expected}: change train_data() or the model"


def _digits(traced: TracedModel, config: SweepConfig) -> FoundData:
    with preserved(traced.model), torch.no_grad():
        traced.model.eval()
        outputs = main_output(traced.inputs.call(traced.model))
    digits = fitted_digits(traced.inputs, outputs, batch_size=config.batch_size)
    return FoundData(digits.train, digits.test, digits.description)


def _epochs(config: SweepConfig) -> int | None:
    """Return the number of epochs; None if the length of training is given in steps."""
    paper = PAPER_EPOCHS if config.recipe == "paper" and config.steps is None else None
    return config.epochs or config.max_epochs or paper


def _steps(config: SweepConfig, data: Batches) -> int:
    epochs = _epochs(config)
    if epochs is None:
        return config.steps or DEFAULT_STEPS
    if data.per_epoch is None:
        raise OptionError(
            "it is unknown how long an epoch of these data is, as they have no length",
            hint="give --steps instead of epochs",
        )
    return epochs * data.per_epoch


def _manifest(
    loaded: LoadedModel,
    task: Task,
    travel: Travel,
    data: DataSummary,
    optimizer: DefaultOptimizer | None,
    weights: str,
) -> Manifest:
    """Return what the run folder says of a planned sweep; ``weights`` is how a file's names were matched."""
    traced, config = task.traced, task.config
    initial = task.initial_in_scale(loaded.model)
    search = search_of(config)
    first = config.given_alphas or first_alphas(travel, search.targets, initial) if search else ()
    expected = forecast(travel, first or config.given_alphas, initial)
    return Manifest(
        sums="all",
        versions=used_versions(),
        model=summarize_model(
            traced,
            name=loaded.name,
            spec=loaded.spec,
            sha256=config.model_sha256,
            form=task.runs_as,
            files=code_sha256(loaded),
            weights=weights,
        ),
        data=data,
        steps=task.steps,
        warm_up=task.recipe.warm_up,
        reference="trained alike",
        threads=task.threads,
        optimizer=task.recipe.describe(),
        default_optimizer=optimizer,
        clock=task.recipe.clock,
        unit=task.recipe.threshold_scale,
        on_collapse=on_collapse_of(config),
        gradient_noise=travel.noise,
        device=task.device.describe(),
        first_alphas=first,
        forecast=expected,
        warning=" ".join(
            filter(None, (warning(travel, () if search else expected, initial), _single_trial_warning(config)))
        ),
    )


def _single_trial_warning(config: SweepConfig) -> str:
    if len(config.given_alphas) != 1 or len(config.seeds) > 1 or config.target_remaining:
        return ""
    return "One alpha and one seed make one trial, which no other trial confirms: give two alphas, or several seeds."

"""The plan of a sweep: everything that can be checked without training, checked."""

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
from dst_analyze.model.isolation import preserved
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.loading.weights import put_weights, read_weights
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.model.user_errors import headline, is_out_of_memory, user_code
from dst_analyze.run.alpha_search import search_of
from dst_analyze.run.config import DEFAULT_BATCH_SIZE, RENAMED, SweepConfig, ThresholdScale
from dst_analyze.run.defaults import DEFAULT_STEPS, AskedPace, asked_scale, on_collapse_of
from dst_analyze.run.paths import default_path
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
from dst_analyze.sweep.planning.fingerprint import data_sha256, model_sha256, weights_sha256
from dst_analyze.sweep.planning.forecast import Travel, forecast, warning
from dst_analyze.sweep.planning.initial_alphas import first_alphas
from dst_analyze.sweep.planning.preflight import gradient_noise, load_trainable, run_preflight
from dst_analyze.sweep.planning.summaries import summarize_model, used_versions
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.objective import main_output, split_batch
from dst_analyze.sweep.training.recipe import PAPER_EPOCHS, Recipe
from dst_analyze.sweep.training.trial import ModelSource, ModelSpec, Task, seeded


@dataclass(frozen=True)
class Plan:
    """A sweep that has been checked and can start."""

    task: Task
    manifest: Manifest
    out: Path
    existing: Existing
    request: Request | None  # how another process can plan the same, if it can

    @cached_property
    def coupling(self) -> Coupling | DstError:
        """Which channels belong together, or why that is not known: it depends on the model alone."""
        return attempt(lambda: couple_channels(self.task.traced), hint="`dst-analyze slim RUN --debug` shows where")


@dataclass(frozen=True)
class Request:
    """A plan to be made again elsewhere: by a worker that cannot be handed the data."""

    model: ModelSpec
    data: str | None
    root: Path
    args: Mapping[str, Any]
    options: Mapping[str, Any]

    def task(self) -> Task:
        """Nothing is downloaded: the first plan has done that, if it was asked to."""
        return _planned(self.model, self.data, self.root, False, self.args, self.options, _unchecked).task


@dataclass(frozen=True)
class Planned:
    """A task, and what it was made from."""

    loaded: LoadedModel
    task: Task
    data: DataSummary
    travel: Travel
    optimizer: DefaultOptimizer | None  # chosen for the model, if none was asked for
    weights: str = ""  # how names in a file of weights were matched, where they are not the model's


@dataclass(frozen=True)
class PlannedBefore:
    """What a run was planned with, where it was left to the program: defaults may have changed since."""

    factor: float  # of the alphas
    steps: int
    clock: float
    warm_up: int
    unit: ThresholdScale
    optimizer: DefaultOptimizer | None = None


def _unchecked(name: str, config: SweepConfig) -> None:
    """The folder is the first plan's business."""


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
    **options: Any,
) -> Plan:
    """Check everything that can be checked without training: options, model, folder, data, one step on one batch.

    ``before`` is for a run that has been planned once: what was found or chosen for it then holds.
    """
    args = dict(model_args or {})
    options = with_new_names(options, RENAMED, stacklevel=3)
    paths: list[Path] = []

    def check(name: str, config: SweepConfig) -> None:
        paths.append(Path(out) if out is not None else default_path(name, config))
        check_free(paths[0], config, existing)

    root = Path(data_root)
    planned = _planned(model, data, root, download, args, options, check, before)
    named = isinstance(model, str | os.PathLike) and (data is None or isinstance(data, str))
    request = Request(model, data, root, args, options) if named else None
    return Plan(planned.task, _manifest(planned), paths[0], existing, request)


def plan_task(
    model: ModelSpec,
    data: Any = None,
    *,
    model_args: Mapping[str, Any] | None = None,
    data_root: Path | str = DEFAULT_ROOT,
    download: bool = False,
    **options: Any,
) -> Task:
    """Return what would be trained, checked as by `plan_sweep`; for trainings that have neither folder nor alphas."""
    options = {**with_new_names(options, RENAMED, stacklevel=3), "alpha_scale": 1.0}  # no alphas: nothing to scale
    args = dict(model_args or {})
    return _planned(model, data, Path(data_root), download, args, options, _unchecked).task


def _planned(
    model: ModelSpec,
    data: Any,
    root: Path,
    download: bool,
    args: Mapping[str, Any],
    options: Mapping[str, Any],
    check: Callable[[str, SweepConfig], None],
    before: PlannedBefore | None = None,
) -> Planned:
    """The task and what it is of; ``check`` is asked about the model's name and configuration before the slow part."""
    config = SweepConfig.checked(model="", model_args=args, **options)
    device = Device.chosen(config.device, amp=config.amp)
    # Seeded here too: a file that draws its data or its model at random must give the same ones every time.
    source = model_source(model, args, config)
    with seeded(config.seeds[0]), at(str(model) if isinstance(model, str | os.PathLike) else ""):
        loaded = load_trainable(source)
        if isinstance(data, str):
            found = _named_data(loaded, data, config, root, download=download)
        else:
            found = _given_data(loaded, data, config)
        config = config.model_copy(
            update={
                "model": loaded.spec,
                "model_sha256": model_sha256(loaded, model),
                "weights_sha256": None if source.weights is None else weights_sha256(source.weights),
                "data": found.description if found and data is not None else data or "",
            }
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
        traced = _traced(loaded, found, config)
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
    return Planned(loaded, task, summary, travel, chosen, how and f"{source.weights_from}: {how}")


def model_source(model: ModelSpec, args: Mapping[str, Any], config: SweepConfig) -> ModelSource:
    """Where the trials of a sweep get their model, and the weights it starts with."""
    if not config.weights:
        return ModelSource(model, args)
    if isinstance(model, nn.Module):
        raise OptionError(
            "the model is an object that holds weights already",
            place="--weights",
            hint="load them into it: model.load_state_dict(...)",
        )
    return ModelSource(model, args, read_weights(Path(config.weights)), config.weights)


@dataclass(frozen=True)
class FoundData:
    """Batches to train and test on, and how to speak of them."""

    train: Batches
    test: Batches | None
    description: str


def _named_data(loaded: LoadedModel, name: str, config: SweepConfig, root: Path, *, download: bool) -> FoundData | None:
    """The data a name stands for; None for the digits, which are brought into the model's shape once it is traced."""
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
    """What one sample looks like to the model, by its example or a guess; None where there is no saying."""
    try:
        tensors = find_example_inputs(replace(loaded, train_data=None)).tensors()
    except ModelError:
        return None
    return tuple(tensors[0].shape[1:]) if len(tensors) == 1 else None


def _given_data(loaded: LoadedModel, data: Any, config: SweepConfig) -> FoundData | None:
    """The caller's data, else the model file's; None if neither has any."""
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
    return AskedPace(before.clock, before.warm_up, before.unit) if before else None


def _is_pair(data: Any) -> bool:
    """(train, test) rather than a tuple of tensors."""
    return isinstance(data, tuple) and len(data) == 2 and not is_tensors(data)


def _traced(loaded: LoadedModel, data: FoundData | None, config: SweepConfig) -> TracedModel:
    """The model traced with the file's own example, else with the first two samples to train on, else with a guess."""

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
            return trace(inputs.first_samples(2, listed=has_annotations(batch)))
        except ModelError:
            # A loss that calls the model itself may give it a part of what the batch holds: one view of several.
            views = _views(batch) if getattr(loaded.loss, "takes_model", False) else None
            if views is None:
                raise
            return trace(views.first_samples(2))
    except ModelError as error:
        if error.__cause__ is None:  # nothing was run: the data are not to blame
            raise
        raise DataError(
            f"the training data do not fit the model: {headline(error.__cause__)}",
            place=error.place or data.description,
            trace=error.trace,
            hint=_misfit(error.__cause__, inputs, loaded, batch),
        ) from error.__cause__


def _views(batch: Any) -> Inputs | None:
    """The first tensor of a batch alone, as a model's input; None if that is the whole batch."""
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return Inputs((leaves[0],)) if len(leaves) > 1 else None


def _misfit(why: BaseException, inputs: Inputs, loaded: LoadedModel, batch: Any) -> str:
    """What the data are beside what the model takes, as far as that is known."""
    if is_out_of_memory(why):
        return f"not even two samples fit into the {gigabytes(free_memory())} that are free: smaller inputs or layers"
    given = inputs.describe()
    parts = list(batch.values()) if isinstance(batch, Mapping) else batch
    if not is_tensors(parts):
        return f"a batch is {describe_batch(batch)}; expected: {BATCH_FORMS}; or define example_inputs()"
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in inputs.tensors()):
        return f"given {given}; layers compute with floats: return images.float() / 255, or the like, in train_data()"
    shape = _input_shape(loaded)
    expected = f"samples of {list(shape)}" if shape else "what example_inputs() gives"
    return f"given {given}; expected {expected}: bring them together in train_data() or the model"


def _digits(traced: TracedModel, config: SweepConfig) -> FoundData:
    with preserved(traced.model), torch.no_grad():
        traced.model.eval()
        outputs = main_output(traced.inputs.call(traced.model))
    digits = fitted_digits(traced.inputs, outputs, batch_size=config.batch_size)
    return FoundData(digits.train, digits.test, digits.description)


def _epochs(config: SweepConfig) -> int | None:
    """None where the length of training is a number of steps."""
    paper = PAPER_EPOCHS if config.recipe == "paper" and config.steps is None else None
    return config.epochs or config.max_epochs or paper


def _steps(config: SweepConfig, data: Batches) -> int:
    epochs = _epochs(config)
    if epochs is None:
        return config.steps or DEFAULT_STEPS
    if data.per_epoch is None:
        raise OptionError("nobody knows how long an epoch of these data is", hint="give --steps instead of epochs")
    return epochs * data.per_epoch


def _manifest(planned: Planned) -> Manifest:
    loaded, task, travel = planned.loaded, planned.task, planned.travel
    traced, config = task.traced, task.config
    initial = task.counted(loaded.model)
    search = search_of(config)
    first = config.given_alphas or first_alphas(travel, search.targets, initial) if search else ()
    expected = forecast(travel, first or config.given_alphas, initial)
    return Manifest(
        versions=used_versions(),
        model=summarize_model(
            traced,
            name=loaded.name,
            spec=loaded.spec,
            sha256=config.model_sha256,
            form=task.runs_as,
            weights=planned.weights,
        ),
        data=planned.data,
        steps=task.steps,
        warm_up=task.recipe.warm_up,
        reference="trained alike",
        threads=task.threads,
        optimizer=task.recipe.describe(),
        default_optimizer=planned.optimizer,
        clock=task.recipe.clock,
        unit=task.recipe.unit,
        on_collapse=on_collapse_of(config),
        gradient_noise=travel.noise,
        device=task.device.describe(),
        first_alphas=first,
        forecast=expected,
        warning=" ".join(filter(None, (warning(travel, () if search else expected, initial), _lonely(config)))),
    )


def _lonely(config: SweepConfig) -> str:
    if len(config.given_alphas) != 1 or len(config.seeds) > 1 or config.target_remaining:
        return ""
    return "One alpha and one seed make one trial, whose order no other confirms: give two alphas, or several seeds."

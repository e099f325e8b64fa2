"""The plan of a sweep: everything that can be checked without training, checked."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from dst_analyze.errors import DataError, ModelError, OptionError
from dst_analyze.model.example import find_example_inputs
from dst_analyze.model.failures import running
from dst_analyze.model.inputs import Inputs
from dst_analyze.model.loading import LoadedModel, load_model
from dst_analyze.model.preserve import preserved
from dst_analyze.model.tracing import TracedModel, trace_model
from dst_analyze.sweep.data import Batches, LoaderBatches, as_batches, first_batch, is_tensors
from dst_analyze.sweep.digits import fitted_digits
from dst_analyze.sweep.fingerprint import data_sha256, model_sha256
from dst_analyze.sweep.folder import Existing, check_free
from dst_analyze.sweep.layout import default_path
from dst_analyze.sweep.objective import is_classification, main_output, split_batch
from dst_analyze.sweep.record import (
    DEFAULT_LR,
    DEFAULT_STEPS,
    DataSummary,
    Manifest,
    ModelSummary,
    SkippedLayer,
    SweepConfig,
)
from dst_analyze.sweep.threads import threads_per_trial
from dst_analyze.sweep.train import evaluate
from dst_analyze.sweep.trial import MOMENTUM, ModelSource, ModelSpec, Task, make_optimizer, seeded
from dst_analyze.version import __version__


@dataclass(frozen=True)
class Plan:
    """A sweep that has been checked and can start."""

    task: Task
    manifest: Manifest
    out: Path
    existing: Existing
    again: Request | None  # how another process can plan the same, if it can


@dataclass(frozen=True)
class Request:
    """A plan to be made again elsewhere: by a worker that cannot be handed the data."""

    model: ModelSpec
    args: Mapping[str, Any]
    options: Mapping[str, Any]

    def task(self) -> Task:
        return _planned(self.model, None, self.args, self.options, lambda name, config: None)[1]


def plan_sweep(
    model: ModelSpec,
    data: Any = None,
    *,
    model_args: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    existing: Existing = "refuse",
    **options: Any,
) -> Plan:
    """Check everything that can be checked without training: options, model, folder, data, one step on one batch."""
    args = dict(model_args or {})
    paths: list[Path] = []

    def check(name: str, config: SweepConfig) -> None:
        paths.append(Path(out) if out is not None else default_path(name, config))
        check_free(paths[0], config, existing)

    loaded, task, summary = _planned(model, data, args, options, check)
    again = Request(model, args, options) if data is None and isinstance(model, str | os.PathLike) else None
    return Plan(task, _manifest(loaded, task, summary), paths[0], existing, again)


def _planned(
    model: ModelSpec,
    data: Any,
    args: Mapping[str, Any],
    options: Mapping[str, Any],
    check: Callable[[str, SweepConfig], None],
) -> tuple[LoadedModel, Task, DataSummary]:
    """The task; ``check`` is asked about the model's name and configuration before the slow part."""
    config = SweepConfig.checked(model="", model_args=args, **options)
    # Seeded here too: a file that draws its data or its model at random must give the same ones every time.
    with seeded(config.seeds[0]):
        loaded = load_model(model, model_args=args)
        found = _given_data(loaded, data, config)
        config = config.model_copy(
            update={
                "model": loaded.spec,
                "model_sha256": model_sha256(loaded, model),
                "data": found.description if found and data is not None else "",
            }
        )
        check(loaded.name, config)
        traced = _traced(loaded, found, config)
        stand_in, found = found is None, found or _stand_in(traced, config)
        task = Task(
            source=ModelSource(model, args),
            traced=traced,
            train_data=found.train,
            test_data=found.test or found.train,
            config=config,
            steps=_steps(config, found.train),
            accuracy=False,
            threads=threads_per_trial(traced.macs, config.batch_size),
            loss=loaded.loss,
            optimizer=loaded.optimizer,
        )
        task = replace(task, accuracy=_tried(task, loaded))
        digest = data_sha256(task.train_data, task.test_data, seed=config.seeds[0])
    summary = DataSummary(
        description=found.description,
        stand_in=stand_in,
        score="accuracy" if task.accuracy else "loss",
        scored_on="test" if found.test else "train",
        sha256=digest,
    )
    return loaded, task, summary


@dataclass(frozen=True)
class FoundData:
    """Batches to train and test on, and how to speak of them."""

    train: Batches
    test: Batches | None
    description: str


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
    batches = as_batches(train, place=where, batch_size=config.batch_size)
    size = None if isinstance(batches, LoaderBatches) else config.batch_size
    tests = as_batches(test, place="test_data()", batch_size=size, shuffle=False) if test is not None else None
    return FoundData(batches, tests, f"{where}: {batches.describe()}")


def _is_pair(data: Any) -> bool:
    """(train, test) rather than a tuple of tensors."""
    return isinstance(data, tuple) and len(data) == 2 and not is_tensors(data)


def _traced(loaded: LoadedModel, data: FoundData | None, config: SweepConfig) -> TracedModel:
    """The model traced with the file's own example, else with the first two samples to train on, else with a guess."""

    def trace(inputs: Inputs) -> TracedModel:
        return trace_model(loaded.model, inputs, include=config.include, exclude=config.exclude)

    if loaded.example_inputs is not None or data is None:
        return trace(find_example_inputs(loaded))
    with running("the training data", DataError, file=loaded.file):
        inputs = split_batch(first_batch(data.train, place=data.description), loaded.model)[0]
    size = inputs.batch_size
    try:
        return trace(inputs.map(lambda tensor: tensor[:2] if tensor.ndim and len(tensor) == size else tensor))
    except ModelError as error:
        raise DataError(
            f"the training data do not fit the model: {error.cause}",
            place=error.place,
            trace=error.trace,
            hint="a batch is read as (inputs, target); example_inputs() in the model file says what the model takes",
        ) from error


def _stand_in(traced: TracedModel, config: SweepConfig) -> FoundData:
    with preserved(traced.model), torch.no_grad():
        traced.model.eval()
        outputs = main_output(traced.inputs.call(traced.model))
    digits = fitted_digits(traced.inputs, outputs, batch_size=config.batch_size)
    return FoundData(digits.train, digits.test, digits.description)


def _steps(config: SweepConfig, data: Batches) -> int:
    if config.epochs is None:
        return config.steps or DEFAULT_STEPS
    if data.per_epoch is None:
        raise OptionError("nobody knows how long an epoch of these data is", hint="give --steps instead of --epochs")
    return config.epochs * data.per_epoch


def _tried(task: Task, loaded: LoadedModel) -> bool:
    """One step on the first batch and a test, on a masked copy; says whether this is a classification."""
    if task.config.lr is not None and task.optimizer is not None:
        raise OptionError(
            "--lr has no effect: the model file brings its own optimizer",
            place=f"optimizer() of {loaded.spec}",
            hint="set the learning rate there",
        )
    with running("the training data", DataError, file=loaded.file):
        batch = first_batch(task.train_data, place="the training data")
    masked = task.mask(loaded.model)
    objective = task.objective(loaded.model)
    inputs = objective.inputs(batch)
    example = f"the batch is {inputs.describe()}, the example inputs are {task.traced.inputs.describe()}"
    with running("a training step on the first batch", DataError, file=loaded.file, hint=example):
        optimizer = make_optimizer(masked, task.config.lr, task.optimizer)
        outputs = inputs.call(masked.train())
        loss = objective.loss(outputs, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise DataError(
                f"the loss of the first batch is no number to differentiate: {type(loss).__name__}",
                place=f"loss(outputs, batch) of {loaded.spec}",
                hint="return one tensor with one value, computed from the outputs",
            )
        if not torch.isfinite(loss):
            raise DataError(
                f"the loss of the first batch is {loss.item()} before any training", hint="are there NaN in the data?"
            )
        torch.autograd.backward(loss)
        optimizer.step()
    objective = replace(
        objective, accuracy=is_classification(main_output(outputs), split_batch(batch, loaded.model)[1])
    )
    with running(
        "scoring the first test batch", DataError, file=loaded.file, hint="do test data look like training data?"
    ):
        evaluate(masked, [first_batch(task.test_data, place="test_data()")], objective)
    return objective.accuracy


def _manifest(loaded: LoadedModel, task: Task, data: DataSummary) -> Manifest:
    traced, config = task.traced, task.config
    sgd = f"SGD, learning rate {config.lr or DEFAULT_LR}, momentum {MOMENTUM}"
    return Manifest(
        versions={
            "dst-analyze": __version__,
            "torch": torch.__version__,
            "numpy": metadata.version("numpy"),
            "python": platform.python_version(),
        },
        model=ModelSummary(
            name=loaded.name,
            spec=loaded.spec,
            sha256=config.model_sha256,
            params=traced.params,
            macs=traced.macs,
            rung=traced.rung,
            coverage=traced.coverage.describe(),
            skipped=tuple(
                SkippedLayer(name=s.name, reason=s.reason, place=s.place, params=s.params) for s in traced.skipped
            ),
            uncounted=traced.uncounted,
            notes=traced.notes,
        ),
        data=data,
        steps=task.steps,
        threads=task.threads,
        optimizer="the optimizer of the model file" if task.optimizer else sgd,
    )

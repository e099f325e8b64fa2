"""The batches that a sweep trains and scores on: of a name, of the caller, of the model file, or the digits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dst_analyze.errors import DataError, ModelError
from dst_analyze.model.inputs.infer import find_example_inputs
from dst_analyze.model.isolation import preserved
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.run.config import DEFAULT_BATCH_SIZE, SweepConfig
from dst_analyze.run.defaults import DEFAULT_STEPS
from dst_analyze.sweep.data.batches import (
    SCORED_AT_MOST,
    Batches,
    LoaderBatches,
    TensorBatches,
    as_batches,
    is_tensors,
)
from dst_analyze.sweep.data.digits import fitted_digits
from dst_analyze.sweep.data.named_datasets import DIGITS, DataRequest, load_named_data, scaled
from dst_analyze.sweep.training.objective import main_output
from dst_analyze.sweep.training.recipe import PAPER_EPOCHS


@dataclass(frozen=True)
class FoundData:
    """Batches to train and test on, with a description for messages."""

    train: Batches
    test: Batches | None
    description: str


def named_data(loaded: LoadedModel, name: str, config: SweepConfig, root: Path, *, download: bool) -> FoundData | None:
    """Return the data of a name; None for the digits, which are resized once the model is traced."""
    if name == DIGITS:
        return None
    source = load_named_data(DataRequest(name, root, download, sample_shape(loaded)))
    size = config.batch_size or DEFAULT_BATCH_SIZE
    train, test = (
        TensorBatches(part, size, scaled)
        if is_tensors(part)
        else as_batches(part, place=f"--data {name}", batch_size=size, shuffle=part is source.train)
        for part in (source.train, source.test)
    )
    return FoundData(train, test, source.description)


def sample_shape(loaded: LoadedModel) -> tuple[int, ...] | None:
    """Return the shape of one sample, from the model's example or inferred; None if unknown."""
    try:
        tensors = find_example_inputs(replace(loaded, train_data=None)).tensors()
    except ModelError:
        return None
    return tuple(tensors[0].shape[1:]) if len(tensors) == 1 else None


def given_data(loaded: LoadedModel, data: Any, config: SweepConfig) -> FoundData | None:
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
    needed = None if epochs_of(config) else config.steps or DEFAULT_STEPS
    batches = as_batches(train, place=where, batch_size=config.batch_size, needed=needed)
    size = None if isinstance(batches, LoaderBatches) else config.batch_size
    tests = None
    if test is not None:
        tests = as_batches(test, place="test_data()", batch_size=size, shuffle=False, needed=SCORED_AT_MOST)
    # The description is a part of a run's configuration: in other words, runs could no longer be resumed.
    endless = (tests or batches).per_epoch is None
    bound = f"; scored on the first {SCORED_AT_MOST} batches, as nobody knows how many there are" if endless else ""
    return FoundData(batches, tests, f"{where}: {batches.describe()}{bound}")


def _is_pair(data: Any) -> bool:
    """Return True for (train, test), False for a tuple of tensors."""
    return isinstance(data, tuple) and len(data) == 2 and not is_tensors(data)


def digits_for(traced: TracedModel, config: SweepConfig) -> FoundData:
    """Return the embedded digits in the shape that the model takes, the stand-in for data."""
    with preserved(traced.model), torch.no_grad():
        traced.model.eval()
        outputs = main_output(traced.inputs.call(traced.model))
    digits = fitted_digits(traced.inputs, outputs, batch_size=config.batch_size)
    return FoundData(digits.train, digits.test, digits.description)


def epochs_of(config: SweepConfig) -> int | None:
    """Return the number of epochs; None if the length of training is given in steps."""
    paper = PAPER_EPOCHS if config.recipe == "paper" and config.steps is None else None
    return config.epochs or config.max_epochs or paper

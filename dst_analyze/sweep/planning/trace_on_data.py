"""Trace a model on its example or on two training samples; data that do not fit are explained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dst_analyze.errors import DataError, ModelError
from dst_analyze.model.inputs.describe import BATCH_FORMS, describe_batch
from dst_analyze.model.inputs.infer import find_example_inputs, has_annotations
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.inputs.two_samples import two_samples
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.loading.torchvision_compat import lacks_operators
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.model.user_errors import headline, is_out_of_memory, user_code
from dst_analyze.run.config import SweepConfig
from dst_analyze.sweep.data.batches import (
    first_batch,
    is_tensors,
)
from dst_analyze.sweep.engines.resources import free_memory, gigabytes
from dst_analyze.sweep.planning.find_data import FoundData, sample_shape
from dst_analyze.sweep.training.objective import split_batch


def trace_on_data(loaded: LoadedModel, data: FoundData | None, config: SweepConfig) -> TracedModel:
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
        if error.__cause__ is None or lacks_operators(error.__cause__):  # the data are not the cause
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
    shape = sample_shape(loaded)
    expected = f"samples of {list(shape)}" if shape else "what example_inputs() gives"
    return f"given {given}; expected {expected}: change train_data() or the model"

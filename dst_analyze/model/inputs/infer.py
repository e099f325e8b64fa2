"""`find_example_inputs`: the user's, a batch of the data, or a guess from the first layers."""

from __future__ import annotations

import inspect
import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from dst_analyze.errors import DataError, ModelError
from dst_analyze.model.copying import deep_copied
from dst_analyze.model.inputs.inputs import Inputs, as_inputs, first_samples
from dst_analyze.model.isolation import preserved, preserved_buffers, preserved_randomness
from dst_analyze.model.loading.hubs import Draw, known_inputs, takes_any_image_list
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.user_errors import describe_value, headline, user_code, user_trace

_BATCH_SIZE = 2


def find_example_inputs(loaded: LoadedModel) -> Inputs:
    """Return inputs on the model's device: the user's, else a batch of the data, else a guess that runs."""
    device = _device(loaded.model)
    if loaded.example_inputs is not None:
        return _users_inputs(loaded).to(device)
    if loaded.train_data is not None:
        return _data_inputs(loaded).to(device)
    return _guessed_inputs(loaded, device)


def _device(model: nn.Module) -> torch.device:
    return next((tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())), torch.device("cpu"))


def _users_inputs(loaded: LoadedModel) -> Inputs:
    assert loaded.example_inputs is not None
    with preserved_randomness():
        value = loaded.example_inputs()
    inputs = as_inputs(value, loaded.model)
    if not inputs.tensors():
        raise ModelError(
            f"example_inputs() returned {describe_value(value)} without a tensor in it.",
            place=str(loaded.file or ""),
            hint="return one input, a tuple of inputs, or a dict of keywords: `return torch.randn(2, 3, 32, 32)`",
        )
    return inputs


# --- from the data -------------------------------------------------------------------------------------------------


def _data_inputs(loaded: LoadedModel) -> Inputs:
    assert loaded.train_data is not None
    hint = "train_data() returns a DataLoader, a Dataset or tensors; its batches are (inputs, targets) or dicts"
    with preserved_randomness(), user_code("reading train_data()", DataError, file=loaded.file, hint=hint):
        data = loaded.train_data()
        batch = first_batch(data, _BATCH_SIZE)
    inputs = batch_inputs(batch, loaded.model)
    if not isinstance(data, Dataset) and not _runs(loaded.model, inputs):
        # The first axis may number something else than samples, such as the nodes of a graph.
        whole = batch_inputs(first_batch(data, sys.maxsize), loaded.model)
        inputs = whole if _runs(loaded.model, whole) else inputs
    if not inputs.tensors():
        raise DataError(
            f"A batch of train_data() is {describe_value(batch)} without a tensor for the model.", hint=hint
        )
    return inputs


def first_batch(data: Any, size: int) -> Any:
    """Return the first batch of a user's data, cut to ``size`` items if its structure is known."""
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, tuple | list) else (data,)
    if parts and all(isinstance(part, torch.Tensor | np.ndarray) for part in parts):
        return _cut(data, size)
    read = next((read for kind, read in _READERS.items() if isinstance(data, kind)), _read_batches)
    try:
        return read(data, size)
    except StopIteration:
        raise DataError("train_data() is empty.", hint="give it at least one batch") from None


def _cut(batch: Any, size: int) -> Any:
    """Return the first items of a batch; nested lists, which may not be samples, stay whole."""
    if has_annotations(batch):
        return first_samples(batch, len(batch[1]), size, listed=True)
    if isinstance(batch, tuple | list):
        return tuple(part if isinstance(part, tuple | list) else _cut(part, size) for part in batch)
    if isinstance(batch, Mapping):
        return {key: _cut(part, size) for key, part in batch.items()}
    if isinstance(batch, np.ndarray):  # float64 by default, which models hardly ever take
        batch = torch.as_tensor(batch.astype(np.float32) if batch.dtype == np.float64 else batch)
    return batch[:size] if isinstance(batch, torch.Tensor) and batch.ndim else batch


def _read_loader(data: DataLoader[Any], size: int) -> Any:
    """Return a few items collated as the loader does, without workers and without a full batch."""
    if isinstance(data.dataset, IterableDataset) or data.batch_sampler is None:
        return _cut(next(iter(data)), size)
    indices = list(next(iter(data.batch_sampler)))[:size]
    return data.collate_fn([data.dataset[index] for index in indices])


def _read_stream(data: IterableDataset[Any], size: int) -> Any:
    return _collated(list(itertools.islice(data, size)))


def _read_samples(data: Any, size: int) -> Any:
    return _collated([data[index] for index in range(min(size, len(data)))])


def _collated(samples: list[Any]) -> Any:
    if not samples:
        raise StopIteration
    return default_collate(samples)


def _read_batches(data: Any, size: int) -> Any:
    """Return a batch of an object with items or an iterator; a sequence is taken for one of batches."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence):
        return _read_samples(data, size)
    return _cut(next(iter(data)), size)


# Derived classes before their bases: the first match counts.
_READERS: dict[type, Callable[[Any, int], Any]] = {
    DataLoader: _read_loader,
    IterableDataset: _read_stream,
    Dataset: _read_samples,
}

_TARGETS = frozenset({"label", "labels", "label_ids", "target", "targets"})


def batch_inputs(batch: Any, model: nn.Module) -> Inputs:
    """Return the part of a batch that the model takes: the first, or a dict without labels."""
    if isinstance(batch, Mapping):
        return _keywords(batch, model)
    if not isinstance(batch, tuple | list) or not batch:
        return Inputs((batch,))
    first, needed = batch[0], _needed(model)
    if isinstance(first, Mapping):
        return _keywords(first, model)
    if has_annotations(batch):
        samples = list(first) if isinstance(first, tuple | list) else first
        return Inputs((samples, [*batch[1]]) if _accepted(model) > 1 else (samples,))
    if needed == 1:
        return Inputs((first,))
    return Inputs(tuple(first) if isinstance(first, tuple | list) else tuple(batch[:needed]))


def has_annotations(batch: Any) -> bool:
    """True for a detector's batch: images, in a list or stacked, and a list with a dict for each."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        return False
    samples, targets = batch
    if not isinstance(targets, tuple | list) or not targets or not all(isinstance(t, Mapping) for t in targets):
        return False
    listed = isinstance(samples, tuple | list) and all(isinstance(sample, torch.Tensor) for sample in samples)
    return (listed or (isinstance(samples, torch.Tensor) and samples.ndim > 0)) and len(samples) == len(targets)


def _keywords(batch: Mapping[Any, Any], model: nn.Module) -> Inputs:
    parameters = inspect.signature(model.forward).parameters
    named = {key: value for key, value in batch.items() if key in parameters and key not in _TARGETS}
    return Inputs((), named) if named else Inputs((batch,))


def _needed(model: nn.Module) -> int:
    """Return how many positional arguments the model's forward requires; at least one."""
    return max(1, sum(p.default is p.empty for p in _positional(model)))


def _accepted(model: nn.Module) -> int:
    """Return how many positional arguments the model's forward accepts, those with defaults too."""
    return len(_positional(model))


def _positional(model: nn.Module) -> list[inspect.Parameter]:
    parameters = inspect.signature(model.forward).parameters.values()
    return [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


# --- from the model ------------------------------------------------------------------------------------------------


def _guessed_inputs(loaded: LoadedModel, device: torch.device) -> Inputs:
    """Return the first candidate with which the model runs; raise `ModelError` if there is none."""
    model = loaded.model
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())
    draw = Draw(_BATCH_SIZE, dtype)
    subject = deep_copied(model) if any(is_lazy(p) for p in model.parameters()) else model
    tried: list[str] = []
    failure: Exception | None = None
    for candidate in itertools.chain(known_inputs(model, draw), _fitting_inputs(model, draw)):
        if candidate.describe() in tried:
            continue
        inputs = candidate.to(device)
        if takes_any_image_list(model):
            return inputs
        try:
            _run(subject, inputs)
        except Exception as error:
            tried.append(candidate.describe())
            failure = error
        else:
            return inputs
    raise _no_guess(loaded, tried, failure)


def _runs(model: nn.Module, inputs: Inputs) -> bool:
    try:
        _run(model, inputs.to(_device(model)))
    except Exception:
        return False
    return True


def _run(model: nn.Module, inputs: Inputs) -> None:
    """Call the model once in eval mode, without changing the model or the inputs."""
    with ExitStack() as stack:
        stack.enter_context(preserved(model))
        stack.enter_context(preserved_buffers(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if _device(model).type == "meta":
            stack.enter_context(torch.device("meta"))  # for tensors that a forward pass creates, torch.arange(n)
        model.eval()
        inputs.map(torch.clone).call(model)


_SHOWN = 6


def _no_guess(loaded: LoadedModel, tried: Sequence[str], failure: Exception | None) -> ModelError:
    own = loaded.file if ".py" in loaded.spec else None
    where = own.name if own else "a file that builds the model"
    hint = f"define example_inputs() in {where}, for example `return torch.randn(2, 3, 32, 32)`; or train_data()"
    if failure is None:
        return ModelError(f"No layer of {loaded.name} shows what inputs the model takes.", hint=hint)
    place, trace = user_trace(failure, loaded.file)
    shown = ", ".join(tried[:_SHOWN]) + (f" and {len(tried) - _SHOWN} more" if len(tried) > _SHOWN else "")
    return ModelError(
        f"No inputs for {loaded.name} could be guessed: tried {shown}; the last failed with {headline(failure)}",
        place=place,
        trace=trace,
        hint=hint,
    )


_LAYERS_TRIED = 16  # the layer that reads the input is near the beginning of the definition, if not the first
_STEPS = 16  # of a sequence
_SIDES = (32, 64, 96, 224, 28, 8, 16)


def _fitting_inputs(model: nn.Module, draw: Draw) -> Iterator[Inputs]:
    """Yield inputs that the first layers with weights could read, one like it per argument."""
    kinds = tuple(_FITTING)
    layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
    for layer in layers[:_LAYERS_TRIED]:
        fitting = next(fitting for kind, fitting in _FITTING.items() if isinstance(layer, kind))
        for tensor in fitting(layer, draw):
            others = (torch.roll(tensor, count, 0) for count in range(1, _needed(model)))
            yield Inputs((tensor, *others))


def _for_linear(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    """Yield vectors, sequences of vectors, images to be flattened, and images read in patches."""
    yield draw.floats(layer.in_features)
    yield draw.floats(_STEPS, layer.in_features)
    sides = {channels: math.isqrt(layer.in_features // channels) for channels in (1, 3)}
    square = {channels: side for channels, side in sides.items() if channels * side * side == layer.in_features}
    for channels, side in square.items():
        yield draw.floats(channels, side, side)
    for channels, side in square.items():
        for whole in (whole for whole in _SIDES if side > 1 and whole > side and whole % side == 0):
            yield draw.floats(channels, whole, whole)


def _for_conv1d(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    for length in (64, 128, 256, 1024, 4096, 16000, 16):
        yield draw.floats(layer.in_channels, length)


def _for_conv2d(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    for side in sorted(_SIDES, key=lambda side: side != 28) if layer.in_channels == 1 else _SIDES:
        yield draw.floats(layer.in_channels, side, side)


def _for_conv3d(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    for depth, side in ((16, 32), (16, 64), (16, 112), (32, 32), (8, 16), (16, 224)):
        yield draw.floats(layer.in_channels, depth, side, side)


def _for_transposed(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    for side in (1, 4, 8, 16):
        yield draw.floats(layer.in_channels, *[side] * len(layer.kernel_size))


def _for_recurrent(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    steps = draw.floats(_STEPS, layer.input_size)
    yield from (steps, steps.transpose(0, 1)) if layer.batch_first else (steps.transpose(0, 1), steps)


def _for_cell(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    yield draw.floats(layer.input_size)
    yield draw.floats(_STEPS, layer.input_size)


def _for_embedding(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    yield draw.tokens(layer.num_embeddings, _STEPS)
    yield draw.tokens(layer.num_embeddings)


def _for_attention(layer: Any, draw: Draw) -> Iterator[torch.Tensor]:
    yield draw.floats(_STEPS, layer.embed_dim)


_FITTING: dict[type[nn.Module], Callable[[Any, Draw], Iterator[torch.Tensor]]] = {
    nn.Linear: _for_linear,
    nn.Conv1d: _for_conv1d,
    nn.Conv2d: _for_conv2d,
    nn.Conv3d: _for_conv3d,
    nn.ConvTranspose1d: _for_transposed,
    nn.ConvTranspose2d: _for_transposed,
    nn.ConvTranspose3d: _for_transposed,
    nn.RNNBase: _for_recurrent,
    nn.RNNCellBase: _for_cell,
    nn.Embedding: _for_embedding,
    nn.EmbeddingBag: _for_embedding,
    nn.MultiheadAttention: _for_attention,
}

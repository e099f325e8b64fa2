"""`Inputs`: the arguments of a model's call, in one form."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call of a model: positional and by keyword, with tensors nested anywhere."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Any]) -> Any:
        """Return what the function returns for these arguments."""
        return function(*self.args, **self.kwargs)

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
        """Return the same arguments with every tensor changed."""

        def leaf(value: Any) -> Any:
            return change(value) if isinstance(value, torch.Tensor) else value

        return Inputs(tree_map(leaf, self.args), tree_map(leaf, dict(self.kwargs)))

    def to(self, device: torch.device | str) -> Inputs:
        """Return the same arguments with all tensors on a device."""
        return self.map(lambda tensor: tensor.to(device))

    def first_samples(self, count: int, *, listed: bool = False) -> Inputs:
        """Return the arguments for the first samples of the batch; ``listed``: the first is a list of samples.

        Another list holds what the model takes beside each other, and stays whole.
        """
        if self.args and isinstance(self.args[0], list) and not listed:
            return self
        size = self.batch_size
        args = tuple(first_samples(value, size, count, listed=listed) for value in self.args)
        return Inputs(args, first_samples(dict(self.kwargs), size, count))

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors among the arguments, in their order."""
        return [leaf for leaf in tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, torch.Tensor)]

    @property
    def batch_size(self) -> int:
        """The length of the first tensor's first dimension, or of a list of images as detectors take it."""
        if self.args and isinstance(self.args[0], list):
            return max(len(self.args[0]), 1)
        return next((int(t.shape[0]) for t in self.tensors() if t.ndim), 1)

    def describe(self) -> str:
        """Return dtypes and shapes, for messages: ``float32[2, 3, 32, 32]``."""
        return (
            ", ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.tensors()) or "no tensors"
        )


def first_samples(batch: Any, size: int, count: int, *, listed: bool = False) -> Any:
    """Return the first samples of a batch of ``size``: tensors are cut along their first axis.

    A list with a dict or, if ``listed``, a tensor per sample loses items, which are not cut themselves: the first axis
    of an image in a list is its channels.
    """
    if isinstance(batch, torch.Tensor):
        return batch[:count] if batch.ndim and len(batch) == size else batch
    if isinstance(batch, Mapping):
        return {key: first_samples(value, size, count, listed=listed) for key, value in batch.items()}
    if not isinstance(batch, tuple | list):
        return batch
    single = torch.Tensor | Mapping if listed else Mapping
    if len(batch) == size and all(isinstance(item, single) for item in batch):
        return type(batch)(batch[:count]) if type(batch) in (tuple, list) else batch[:count]
    parts = [first_samples(part, size, count, listed=listed) for part in batch]
    return tuple(parts) if isinstance(batch, tuple) else parts


def as_inputs(value: Any, model: nn.Module) -> Inputs:
    """Return a user's example inputs as `Inputs`: a tensor, a tuple of arguments, or a dict of keywords.

    A dict whose keys are not arguments of the model's forward is passed as a single argument.
    """
    if isinstance(value, Inputs):
        return value
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return Inputs(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        try:
            inspect.signature(model.forward).bind(**value)
        except TypeError:
            return Inputs((value,))
        return Inputs((), dict(value))
    return Inputs((value,))

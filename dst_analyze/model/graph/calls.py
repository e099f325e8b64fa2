"""A model's call as its graph has it: flat tensors in, plain values out; and how to rebuild both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_structure

from dst_analyze.model.inputs.inputs import Inputs

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class UnsupportedCallError(Exception):
    """Raised if a model is called with, or returns, an object that a graph cannot handle."""


@dataclass(frozen=True)
class CallShape:
    """The form of the calls that a graph can take: nesting, constants and sizes of the example.

    Attributes:
        skeleton: The arguments with a zero for each leaf.
        leaves: For each leaf None if it is a tensor, else a tuple with its value, which is built into the graph.
        tensors: dtype and shape of each tensor.
        batch: Size of the first axis that may differ; tensors with another first axis keep their shape.
        any_size: True if tensors may have any sizes.
        top_level: True if all arguments are positional and tensors.
    """

    skeleton: Any
    leaves: tuple[tuple[Any] | None, ...]
    tensors: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    batch: int
    any_size: bool
    top_level: bool

    @classmethod
    def of(cls, inputs: Inputs, *, any_size: bool) -> CallShape:
        """Return the shape of calls like an example.

        Raises:
            UnsupportedCallError: An argument is neither a tensor nor a plain value.
        """
        given = inputs.args, dict(inputs.kwargs)
        leaves = tree_leaves(given)
        odd = next((leaf for leaf in leaves if not isinstance(leaf, (torch.Tensor, *_PLAIN))), None)
        if odd is not None:
            raise UnsupportedCallError(f"the model is called with a {type(odd).__name__}")
        tensors = inputs.tensors()
        return cls(
            tree_map(lambda _: 0, given),
            tuple(None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves),
            tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors),
            inputs.batch_size,
            any_size,
            not inputs.kwargs and all(isinstance(arg, torch.Tensor) for arg in inputs.args),
        )

    @cached_property
    def _structure(self) -> TreeSpec:
        return tree_structure(self.skeleton)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_structure"}  # cannot be pickled

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[torch.Tensor] | None:
        """Return a call's tensors in the order of the placeholders; None if the graph cannot take it."""
        tensors: Sequence[Any] = args
        if not self.top_level or kwargs:
            leaves, structure = tree_flatten((args, dict(kwargs)))
            if structure != self._structure:
                return None
            for leaf, constant in zip(leaves, self.leaves, strict=True):
                if constant is not None and (type(leaf) is not type(constant[0]) or leaf != constant[0]):
                    return None
            tensors = [leaf for leaf, constant in zip(leaves, self.leaves, strict=True) if constant is None]
        if len(tensors) != len(self.tensors):
            return None
        for tensor, (dtype, shape) in zip(tensors, self.tensors, strict=True):
            if not isinstance(tensor, torch.Tensor) or tensor.dtype != dtype or tensor.ndim != len(shape):
                return None
            if self.any_size or tensor.shape == shape:
                continue
            if tensor.shape[1:] != shape[1:] or shape[0] != self.batch:
                return None
        return tensors


@dataclass(frozen=True)
class OutputShape:
    """The types of a model's output, to rebuild it from the plain output of its graph.

    ``make`` is None for a value that is plain already; ``items`` are the parts by key or index, None where the model
    returns None, which graphs leave out of mappings.
    """

    make: Callable[..., Any] | None = None
    by_keyword: bool = False
    items: tuple[tuple[Any, OutputShape | None], ...] = ()

    @classmethod
    def of(cls, value: Any) -> OutputShape:
        """Return the shape of an output.

        Raises:
            UnsupportedCallError: It contains an object that no graph returns.
        """
        if isinstance(value, torch.Tensor | int | float | complex | str):
            return cls()
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return cls(type(value), True, cls._parts(value._asdict()))
        if isinstance(value, Mapping):
            return cls(type(value), dataclasses.is_dataclass(value), cls._parts(value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
            return cls(type(value), True, cls._parts(fields))
        if type(value) in (list, tuple):
            return cls(type(value), False, tuple((at, cls._part(item)) for at, item in enumerate(value)))
        raise UnsupportedCallError(f"the model returns a {type(value).__name__}")

    @classmethod
    def _part(cls, value: Any) -> OutputShape | None:
        return None if value is None else cls.of(value)

    @classmethod
    def _parts(cls, value: Mapping[Any, Any]) -> tuple[tuple[Any, OutputShape | None], ...]:
        return tuple((key, cls._part(item)) for key, item in value.items())

    @property
    def plain(self) -> bool:
        """True if the graph's output is the model's."""
        if self.make is None:
            return True
        parts = [part for _, part in self.items]
        return self.make in (list, tuple, dict) and all(part is not None and part.plain for part in parts)

    def rebuild(self, value: Any) -> Any:
        """Return the graph's output in the model's types."""
        if self.make is None:
            return value
        if self.make in (list, tuple):
            return self.make(
                part.rebuild(item) if part else None for (_, part), item in zip(self.items, value, strict=True)
            )
        named = {key: part.rebuild(value[str(key)]) if part else None for key, part in self.items}
        return self.make(**named) if self.by_keyword else self.make(named)

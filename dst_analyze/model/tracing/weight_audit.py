"""The audit: run the example once and record every weight that reaches a matmul or a convolution.

A `TorchFunctionMode` sees each torch call with its arguments, whatever Python code makes it. So the audit decides which
weights can be masked, independent of any graph. Parameters are followed through views and through arithmetic among
parameters (weight standardisation, low-rank updates) until they meet data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from dst_analyze.model.graph.torch_calls import name_of
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.tracing.axes import AxisMap, RowLayout
from dst_analyze.model.tracing.macs import counted_macs
from dst_analyze.model.tracing.weight_ops import WeightArgument, weights_of
from dst_analyze.model.user_errors import place_here


@dataclass
class WeightUse:
    """A weight that reached an operation: the MACs of all its uses, the shape and place of the first."""

    parameter: str  # qualified name of the parameter; "" for a tensor that is not registered as one
    op: str
    layout: RowLayout
    shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    place: str
    recurrent: bool
    mode: str  # the run that showed it first, "eval" or "train"
    tensor: torch.Tensor = field(repr=False)
    macs: int = 0
    macs_note: str = ""  # "closed form" or "not counted" where torch's counter does not know the operation


@dataclass(frozen=True)
class _Origin:
    """The largest parameter that a tensor was computed from, and how the tensor's axes run over it."""

    parameter: torch.Tensor
    name: str
    axes: AxisMap | None


class Audit:
    """A record of one model's runs: the weights in order of first use, and all parameters that were read."""

    def __init__(self, model: nn.Module, original: nn.Module | None = None) -> None:
        """Prepare to audit a model; if it is a copy, also note what its runs read of the original."""
        self.uses: dict[int, WeightUse] = {}
        self.read: set[str] = set()
        self.missed_macs = 0  # multiplications in the eval run that torch's counter missed and a formula knows
        self.names: dict[int, str] = {}
        for name, parameter in model.named_parameters():
            self.names.setdefault(id(parameter), name)
        shared = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.originals = {
            id(tensor): name
            for name, tensor in ((*original.named_parameters(), *original.named_buffers()) if original else ())
            if id(tensor) not in shared
        }
        self.foreign: dict[str, str] = {}  # what was read of the original, and where

    def run(self, model: nn.Module, inputs: Inputs, mode: Literal["train", "eval"]) -> Any:
        """Run the example once and record its weights; the caller sets the model's mode."""
        inputs = inputs.map(torch.clone)  # the model may write into its inputs
        with torch.no_grad(), _Watch(self, inputs, mode):
            return inputs.call(model)


class _Watch(TorchFunctionMode):
    def __init__(self, audit: Audit, inputs: Inputs, mode: str) -> None:
        super().__init__()
        self.audit, self.mode = audit, mode
        self.origins: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self.data: WeakIdKeyDictionary = WeakIdKeyDictionary()
        for tensor in inputs.tensors():
            self.data[tensor] = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self.origins.clear()
        self.data.clear()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        tensors = list(_tensors(args, kwargs))
        for original in (self.audit.originals.get(id(tensor)) for tensor in tensors):
            if original is not None:
                self.audit.foreign.setdefault(original, place_here())
        origins = [(tensor, origin) for tensor in tensors if (origin := self._origin(tensor)) is not None]
        reached = self._weights(name, args, kwargs) if origins else []
        if reached:
            result, macs = counted_macs(lambda: func(*args, **kwargs))
            for argument, origin in reached:
                self._record(name, argument, origin, result, macs)
        else:
            result = func(*args, **kwargs)
        self._follow(name, args, kwargs, tensors, origins, result)
        return result

    def _origin(self, tensor: torch.Tensor) -> _Origin | None:
        found: _Origin | None = self.origins.get(tensor)
        if found is None and (name := self.audit.names.get(id(tensor))) is not None:
            self.audit.read.add(name)
            found = self.origins[tensor] = _Origin(tensor, name, AxisMap.of(tensor.shape))
        if found is None and tensor.is_leaf and tensor.requires_grad and tensor not in self.data:
            found = self.origins[tensor] = _Origin(tensor, "", AxisMap.of(tensor.shape))  # trainable, not registered
        return found

    def _weights(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[tuple[WeightArgument, _Origin]]:
        pairs = ((argument, self._origin(argument.tensor)) for argument in weights_of(name, args, kwargs))
        return [(argument, origin) for argument, origin in pairs if origin is not None]

    def _record(self, op: str, argument: WeightArgument, origin: _Origin, result: Any, macs: int) -> None:
        use = self.audit.uses.get(id(origin.parameter))
        if use is None:
            use = self.audit.uses[id(origin.parameter)] = WeightUse(
                parameter=origin.name,
                op=op.strip("_"),
                layout=_layout(argument, origin),
                shape=tuple(origin.parameter.shape),
                output_shape=next((tuple(leaf.shape) for leaf in _tensors((result,), {})), ()),
                place=place_here(),
                recurrent=argument.recurrent,
                mode=self.mode,
                tensor=origin.parameter,
            )
        if self.mode != use.mode:
            return  # a second run repeats the first's uses: count each multiplication once
        if argument.positions is not None:
            closed_form = argument.positions * argument.tensor.numel()
            use.macs += closed_form
            use.macs_note = "closed form"
            if not macs and self.mode == "eval":
                self.audit.missed_macs += closed_form
        elif macs:
            use.macs += macs
        else:
            use.macs_note = "not counted"

    def _follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: list[torch.Tensor],
        origins: list[tuple[torch.Tensor, _Origin]],
        result: Any,
    ) -> None:
        """Mark results as data if they were made from data, else as made from parameters."""
        outputs = list(_tensors((result,), {}))
        if any(tensor in self.data for tensor in tensors):
            for output in outputs:
                self.data[output] = True
        elif origins:
            source, origin = max(origins, key=lambda pair: pair[0].numel())
            for output in outputs:
                if output is not source and id(output) not in self.audit.names and output.numel() > 1:
                    axes = _followed(name, args, kwargs, source, output, origin.axes)
                    self.origins[output] = _Origin(origin.parameter, origin.name, axes)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))


def _layout(argument: WeightArgument, origin: _Origin) -> RowLayout:
    axes = origin.axes
    if axes is not None and argument.split is not None:
        axes = axes.split(*argument.split)
    if axes is None or len(axes.axes) <= max(argument.columns, default=-1):
        # A step between the parameter and the operation is unknown: take its first axis for the rows.
        whole = AxisMap.of(origin.parameter.shape)
        return whole.layout(tuple(range(1, origin.parameter.ndim)))
    inputs = argument.columns if argument.inputs is None else argument.inputs
    return axes.layout(argument.columns, argument.blocks, inputs)


_PERMUTING = frozenset(
    ("t", "T", "mT", "H", "mH", "transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "adjoint")
)


def _followed(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], source: torch.Tensor, output: torch.Tensor, axes: Any
) -> AxisMap | None:
    """Return the axes of a call's output, made from ``source`` (and others); None if unknown."""
    if not isinstance(axes, AxisMap):
        return None
    if name in _PERMUTING:
        return axes.permuted(_permutation(name, args, kwargs, source.ndim))
    if name == "__getitem__":
        return _indexed(axes, args[1], source.ndim)
    if name in ("unbind", "select"):
        axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        return axes.dropped(int(axis) % source.ndim)
    if output.ndim == source.ndim and (output.shape == source.shape or name in ("chunk", "split", "narrow")):
        return axes
    return axes.reshaped(output.shape) if output.numel() == source.numel() else None


def _permutation(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int) -> list[int]:
    """Return how a call reorders axes, found by repeating it on a tensor whose axes all differ in length."""
    probe = torch.empty(tuple(range(2, ndim + 2)), device="meta")
    with torch._C.DisableTorchFunction():
        member = getattr(torch.Tensor, name)
        moved = member(probe, *args[1:], **kwargs) if callable(member) else getattr(probe, name)
    return [int(size) - 2 for size in moved.shape]


def _indexed(axes: AxisMap, index: Any, ndim: int) -> AxisMap | None:
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [item for item in items if not isinstance(item, torch.Tensor)]:
        at = items.index(Ellipsis)
        filled = ndim - sum(item is not None and item is not Ellipsis for item in items)
        items[at : at + 1] = [slice(None)] * filled
    axis = 0
    for item in items:
        if item is None:
            axes, axis = axes.inserted(axis), axis + 1
        elif isinstance(item, slice):
            axis += 1
        elif isinstance(item, int) and not isinstance(item, bool):
            axes = axes.dropped(axis)
        elif isinstance(item, torch.Tensor) and item.ndim == 1 and item.dtype in (torch.int64, torch.int32, torch.bool):
            axis += 1
        else:
            return None
    return axes

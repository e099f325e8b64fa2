"""Stand-ins for example inputs: stored as shapes and ranges, and made again from random numbers.

A run folder keeps them, so that its model can be traced on a machine without the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dst_analyze.model.inputs.inputs import Inputs


class UnknownKindError(TypeError):
    """Raised for a value among the inputs that JSON cannot hold."""


def describe_inputs(inputs: Inputs) -> dict[str, Any] | None:
    """Return the inputs as JSON, tensors by dtype, shape and range; None if JSON cannot hold a value."""
    try:
        return {"args": [_described(value) for value in inputs.args], "kwargs": _described(dict(inputs.kwargs))}
    except UnknownKindError:
        return None


def stand_in_inputs(described: Mapping[str, Any]) -> Inputs:
    """Return inputs of the described shapes, random within their ranges; the same on every call."""
    noise = torch.Generator().manual_seed(0)
    return Inputs(tuple(_made(value, noise) for value in described["args"]), _made(described["kwargs"], noise))


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout != torch.strided or value.is_quantized:
            raise UnknownKindError
        low, high = _range(value)
        return {"tensor": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "range": [low, high]}
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_described(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _described(item) for key, item in value.items()}}
    raise UnknownKindError


def _range(tensor: torch.Tensor) -> tuple[float, float] | tuple[int, int]:
    """Return the smallest and the largest value; floats are rounded to reveal no data."""
    if tensor.is_floating_point():
        finite = tensor[tensor.isfinite()]
        if not finite.numel():
            return 0.0, 1.0
        return float(f"{float(finite.min()):.1g}"), float(f"{float(finite.max()):.1g}")
    if not tensor.numel():
        return 0, 0
    return int(tensor.min()), int(tensor.max())


def _made(described: Any, noise: torch.Generator) -> Any:
    if "tensor" in described:
        dtype, (low, high) = getattr(torch, described["tensor"]), described["range"]
        if dtype.is_floating_point:
            return (low + (high - low) * torch.rand(described["shape"], generator=noise)).to(dtype)
        return torch.randint(int(low), int(high) + 1, described["shape"], generator=noise).to(dtype)
    if "value" in described:
        return described["value"]
    if "dict" in described:
        return {key: _made(item, noise) for key, item in described["dict"].items()}
    kind, items = next(iter(described.items()))
    made = [_made(item, noise) for item in items]
    return tuple(made) if kind == "tuple" else made

"""Torch's calls as a function mode sees them: names, kinds, and nested arguments."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.overrides import is_tensor_method_or_property

# torch shows the same call for an operator and a method; the graph has the operator, as on rung 1.
OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "matmul": operator.matmul,
    "remainder": operator.mod,
    "neg": operator.neg,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "add_": operator.iadd,
    "sub_": operator.isub,
    "mul_": operator.imul,
    "div_": operator.itruediv,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__invert__": operator.invert,
    "__floordiv__": operator.floordiv,
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
}
SWAPPED: dict[str, Callable[..., Any]] = {
    "__rsub__": operator.sub,
    "__rdiv__": operator.truediv,
    "__rpow__": operator.pow,
    "__rfloordiv__": operator.floordiv,
    "__rmod__": operator.mod,
    "__rmatmul__": operator.matmul,
}
# Properties of a tensor that are the same for every batch, so that they need no note.
# fmt: off
METADATA = frozenset({
    "_base", "_is_view", "_version", "can_cast", "data_ptr", "device", "dim", "dtype", "element_size",
    "get_device", "grad", "grad_fn", "has_names", "is_complex", "is_conj", "is_contiguous", "is_cpu", "is_cuda",
    "is_floating_point", "is_inference", "is_leaf", "is_meta", "is_mps", "is_neg", "is_nested", "is_quantized",
    "is_same_size", "is_signed", "is_sparse", "is_storage", "is_tensor", "is_xla", "itemsize", "layout", "names",
    "ndim", "ndimension", "output_nr", "promote_types", "requires_grad", "result_type", "retains_grad",
    "storage_offset", "stride", "type", "untyped_storage",
})
# fmt: on

_RANDOM = frozenset({
    "alpha_dropout", "bernoulli", "cauchy", "dropout", "dropout1d", "dropout2d", "dropout3d", "exponential",
    "feature_alpha_dropout", "feature_dropout", "geometric", "gumbel_softmax", "log_normal", "multinomial", "normal",
    "poisson", "rand", "randint", "randn", "random", "randperm", "rrelu", "uniform",
})  # fmt: skip


def name_of(function: Any) -> str:
    """Return a torch function's name; for a property's getter or setter, the property's."""
    name = str(getattr(function, "__name__", function))
    if name in ("__get__", "__set__"):
        owner = function.__self__
        return str(getattr(owner, "__name__", None) or owner.fget.__name__)
    return name


def is_method(function: Any) -> bool:
    """True for methods of tensors; some are written in Python (``unflatten``)."""
    if isinstance(function, MethodDescriptorType | WrapperDescriptorType) or is_tensor_method_or_property(function):
        return True
    return getattr(torch.Tensor, getattr(function, "__name__", ""), None) is function


def is_inplace(func: Any, name: str, kwargs: Mapping[str, Any]) -> bool:
    """True if a call changes one of its arguments: its name ends in an underscore, or it has an ``out``."""
    underscore = name.endswith("_") and not name.endswith("__")
    special = name == "__setitem__" or getattr(func, "__name__", "") == "__set__"
    return underscore or special or kwargs.get("out") is not None


def is_random(name: str) -> bool:
    """True if the torch function of this name draws random numbers."""
    return name.removesuffix("_like").removesuffix("_").removeprefix("_") in _RANDOM


def draws_in(node: fx.Node) -> list[fx.Node]:
    """Return the random numbers that a value is made from; none if it is made from anything else too."""
    found, queue, seen = list[fx.Node](), [node], set[fx.Node]()
    while queue:
        node = queue.pop()
        if node.op not in ("call_function", "call_method"):
            return []
        if node not in seen:
            seen.add(node)
            queue += node.all_input_nodes
            if is_random(name_of(node.target)):
                found.append(node)
    return found


def is_certain(node: fx.Node) -> bool:
    """True if a comparison with a random number always comes out alike: with LayerDrop at zero."""
    if node.target not in (operator.lt, operator.ge) or len(node.args) != 2:
        return False
    drawn, bound = node.args
    return isinstance(drawn, fx.Node) and drawn.target is torch.rand and isinstance(bound, int | float) and bound <= 0


def autocast_state() -> list[bool]:
    """Return whether autocast is on for CPU and for CUDA."""
    return [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested arguments with every leaf changed."""
    if isinstance(value, torch.Size):
        return tuple(change(item) for item in value)
    if type(value) in (tuple, list):
        return type(value)([mapped(item, change) for item in value])
    if type(value) is dict:
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(mapped(item, change) for item in (value.start, value.stop, value.step)))
    return change(value)


def python_number(value: Any) -> Any:
    """Return a numpy scalar as the number that generated code can write; any other value as it is."""
    return value.item() if isinstance(value, np.generic) else value


def leaves(value: Any) -> list[Any]:
    """Return the leaves of nested arguments, also those in named tuples."""
    found: list[Any] = []
    mapped(value, lambda leaf: found.extend(leaves(tuple(leaf)) if is_record(leaf) else [leaf]))
    return found


def is_record(value: Any) -> bool:
    """True for instances of tuple's subclasses, such as a PackedSequence or the result of a sort."""
    return isinstance(value, tuple) and type(value) is not tuple

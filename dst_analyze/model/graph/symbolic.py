"""Rung 1: torch.fx's symbolic tracing; and the inputs, outputs and leaves of graphs on both rungs.

The graph's placeholders are the tensors of the example in the order of `Inputs.tensors()`, so that
``graph_module(*inputs.tensors())`` is the call; everything else in the example is built into the graph.
"""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import SUPPORTED_NODES, tree_leaves

from dst_analyze.model.graph.module_calls import CallRecorder
from dst_analyze.model.graph.torch_calls import python_number
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.tracing.registered import is_whole

# --- leaves -----------------------------------------------------------------------------------------------------

_TORCH_LAYERS = ("torch.nn.modules.", "torch.ao.nn.")
# Built from other layers, which the graph shows instead, down to MultiheadAttention and Linear.
_COMPOSITES = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)
# Methods that a subclass may define and still compute what its torch.nn base computes.
_HARMLESS = {"__init__", "__repr__", "__setstate__", "extra_repr", "reset_parameters"}
# Names in a forward's code that show that it draws random numbers or reads the training flag.
_CHANCE = {
    "training",
    "dropout",
    "bernoulli",
    "bernoulli_",
    "multinomial",
    "normal_",
    "uniform_",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "randperm",
}


def is_leaf(module: nn.Module, tensors: int) -> bool:
    """True if a call of this module, with this number of tensors, is meant to be one node of the graph."""
    return is_standard(module) or is_whole(module) or (tensors == 1 and is_stochastic(module))


def is_standard(module: nn.Module) -> bool:
    """True for torch.nn's layers and batch norms, whose use of their parameters is known."""
    if isinstance(module, _COMPOSITES) or _has_computed_weight(module):
        return False
    if isinstance(module, _NormBase):
        return {name for name, _ in module.named_parameters()} <= {"weight", "bias"}
    for cls in type(module).__mro__:
        if cls.__module__.startswith(_TORCH_LAYERS):
            return cls is not nn.Module
        if any(
            callable(value) or isinstance(value, property) for key, value in vars(cls).items() if key not in _HARMLESS
        ):
            return False
    return False


def _has_computed_weight(module: nn.Module) -> bool:
    """True if a hook computes a weight before each call, as old `weight_norm` does: the graph shows how.

    Old `spectral_norm` is not among them: it computes another weight in training, which a graph of eval mode lacks.
    """
    return any(isinstance(hook, WeightNorm) for hook in module._forward_pre_hooks.values())


def is_stochastic(module: nn.Module) -> bool:
    """True for modules like dropout: no parameters, but random numbers or the training flag.

    A module that only calls a dropout layer of its own is not: the graph shows that layer.
    """
    forward = inspect.getattr_static(type(module), "forward", None)  # not a function for a scripted module
    code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
    if code is None or any(True for _ in module.parameters()):
        return False
    return not _CHANCE.isdisjoint(set(_names(code)) - module._modules.keys())


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# --- inputs and outputs -----------------------------------------------------------------------------------------


def placeholder_names(model: nn.Module, inputs: Inputs) -> list[str]:
    """Return a name per tensor of the example, from forward's arguments: ``x``, ``masks_0``."""
    by_tensor: dict[int, list[str]] = {}
    try:
        signature = inspect.signature(model.forward)
        bound = signature.bind(*inputs.args, **inputs.kwargs).arguments
    except (TypeError, ValueError):
        bound = dict(inputs.kwargs)
    else:
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                bound |= bound.pop(name, {})
    for argument, value in bound.items():
        for name, tensor in _named_tensors(argument, value):
            by_tensor.setdefault(id(tensor), []).append(name)
    names: list[str] = []
    for index, tensor in enumerate(inputs.tensors()):
        candidates = by_tensor.get(id(tensor))  # several for a tensor passed several times: used in turn
        names.append(_identifier(candidates.pop(0) if candidates else f"input_{index}", {"self", *names}))
    return names


def _identifier(name: str, taken: set[str]) -> str:
    """Return a name that is not taken and that generated code can use."""
    name = re.sub(r"\W", "_", name)
    if not name.isidentifier() or keyword.iskeyword(name):
        name = f"input_{name}"
    return next(choice for choice in (name, *(f"{name}_{i}" for i in range(1, len(taken) + 2))) if choice not in taken)


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named_tensors(f"{name}_{key}", item)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named_tensors(f"{name}_{index}", item)
    else:
        for index, leaf in enumerate(tree_leaves(value)):
            if isinstance(leaf, torch.Tensor):
                yield f"{name}_{index}", leaf


def notes_on_arguments(inputs: Inputs) -> list[str]:
    """Return a note for each type of argument that may hold tensors which are not inputs of the graph."""
    plain = (torch.Tensor, int, float, complex, str, bytes, torch.dtype, torch.device, type(None))
    odd = [
        type(leaf).__name__ for leaf in tree_leaves((inputs.args, dict(inputs.kwargs))) if not isinstance(leaf, plain)
    ]
    return [f"built in from the example: an argument of type {name}" for name in dict.fromkeys(odd)]


def plain_output(value: Any, drop: Callable[[str], None], name: str = "output") -> Any:
    """Return a model's output in types that fx supports: dataclasses as dicts without Nones.

    ``drop`` is called with a note for each value that a graph cannot return, such as a cache object.
    """
    if isinstance(value, fx.Proxy | torch.Tensor | int | float | complex | str | None):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    elif dataclasses.is_dataclass(value) and not isinstance(value, Mapping):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif not isinstance(value, Mapping | list | tuple) and type(value) in SUPPORTED_NODES:
        value = SUPPORTED_NODES[type(value)].flatten_fn(value)[0]
    if isinstance(value, Mapping):
        named = {str(key): plain_output(item, drop, f"{name}.{key}") for key, item in value.items()}
        return {key: item for key, item in named.items() if item is not None}
    if isinstance(value, list | tuple):
        items = [plain_output(item, drop, f"{name}.{index}") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    drop(f"{name} ({type(value).__name__}) is left out of the graph")
    return None


# --- the tracer -------------------------------------------------------------------------------------------------


class SymbolicTracer(fx.Tracer):
    """torch.fx's tracer with other leaves; the example shows how tensors nest in the arguments."""

    traced_func_name = "__call__"  # includes the root's hooks; forward may be any callable

    def __init__(self, inputs: Inputs, drop: Callable[[str], None]) -> None:
        super().__init__()
        self._inputs, self._drop = inputs, drop

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the function to trace and its placeholders; it rebuilds the example's nesting from them."""
        self._parameters = {id(p): name for name, p in self.root.named_parameters()}
        self._calls = CallRecorder(self.root)
        proxies = [
            self.create_proxy("placeholder", name, (), {}) for name in placeholder_names(self.root, self._inputs)
        ]

        def call(*flat: fx.Proxy) -> Any:
            rest = iter(flat)
            output = self._inputs.map(lambda _: next(rest)).call(self.root)  # type: ignore[arg-type, return-value]
            return plain_output(output, self._drop)

        call.__annotations__.clear()  # fx would write them into the generated code
        return call, list(proxies)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if m is self.root:
            return forward(*args, **kwargs)
        self._tensors = sum(isinstance(leaf, fx.Proxy) for leaf in tree_leaves((args, kwargs)))
        if self.is_leaf_module(m, ""):
            return super().call_module(m, forward, args, kwargs)
        with self._calls.entered(self.path_of_module(m), m, (args, kwargs), _nodes_in):
            return super().call_module(m, forward, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Return a new node with the place in the model where it was recorded."""
        node = super().create_node(*args, **kwargs)
        self._calls.annotate(node)
        return node

    def create_arg(self, a: Any) -> Any:
        return super().create_arg(python_number(a))

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_leaf(m, self._tensors)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Return a parameter's node; faster than fx, which searches all names for each read."""
        name = self._parameters.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
        return parameter_proxy_cache[name]


def _nodes_in(value: Any) -> list[fx.Node]:
    return [leaf.node for leaf in tree_leaves(value) if isinstance(leaf, fx.Proxy)]

"""Rung 2: a tracer that runs the example and records a node for every torch call.

Values are ordinary tensors, so Python code may do anything with them; the tracer knows the node that computes each.
Sizes are integers that carry their node, so that ``x.view(x.shape[0], -1)`` holds for other batch sizes. Where Python
needs a plain value (a comparison, a length, an item), the example's is built into the graph and noted. A submodule that
cannot be traced becomes a single opaque node.
"""

from __future__ import annotations

import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import base_types
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from dst_analyze.model.graph.module_calls import CallRecorder
from dst_analyze.model.graph.new_tensors import NewTensors
from dst_analyze.model.graph.symbolic import is_leaf, placeholder_names, plain_output
from dst_analyze.model.graph.torch_calls import (
    METADATA,
    OPERATORS,
    SWAPPED,
    autocast_state,
    draws_in,
    is_certain,
    is_inplace,
    is_method,
    is_random,
    is_record,
    leaves,
    mapped,
    name_of,
    python_number,
)
from dst_analyze.model.graph.traced_numbers import Number, TracedFloat, TracedInt, plain
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.user_errors import describe_error, place_here, place_of, source_of


class UntraceableError(Exception):
    """Raised for a step of the model that no node of a graph can express.

    ``hidden_call``: a tensor comes from a call that torch does not show, and could be taken for a constant.
    """

    def __init__(self, message: str, *, hidden_call: bool = False) -> None:
        super().__init__(message)
        self.hidden_call = hidden_call


@dataclass(frozen=True)
class Opaque:
    """A submodule that is a single node because it could not be traced."""

    name: str
    reason: str  # exception type and message, on one line
    place: str  # file:line where tracing stopped, if known
    hidden_call: bool = False  # tracing stopped at a tensor from a call that torch does not show

    @classmethod
    def stopped_by(cls, error: Exception, name: str, place: str) -> Opaque:
        """Return the part of a model at which an error ended tracing."""
        hidden_call = isinstance(error, UntraceableError) and error.hidden_call
        return cls(name, describe_error(error), place, hidden_call)


_MOST_NODES = 50_000  # larger graphs are unreadable


@dataclass
class _Binding:
    """A tensor's node, and whether its value depends on the example rather than on the model alone."""

    node: fx.Node
    varies: bool
    sizes: dict[int, fx.Node] = field(default_factory=dict)


class RecordingTracer(TorchFunctionMode):
    """A tracer that runs a model on its example and records the graph."""

    def __init__(
        self,
        root: nn.Module,
        inputs: Inputs,
        drop: Callable[[str], None],
        *,
        strict: bool = False,
        trusting: bool = False,
    ) -> None:
        """Prepare to trace a model.

        Args:
            root: The model.
            inputs: The example.
            drop: Called with a note for each output that a graph cannot return.
            strict: True to build in no contents of tensors, only shapes; modules that need contents become opaque.
            trusting: True to take a tensor from a call that torch does not show (``torch.FloatTensor([0.5])``) for a
                constant.
        """
        super().__init__()
        self._strict, self._trusting = strict, trusting
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.opaque: list[Opaque] = []
        self.answers: dict[str, None] = {}  # values of the example that are built in, in order, each once
        self.specialised = False  # contents, not only shapes, are built in: another example may take another path
        self._root, self._inputs, self._drop = root, inputs, drop
        self._paths = {id(module): name for name, module in root.named_modules()}
        self._names = {id(t): name for name, t in (*root.named_buffers(), *root.named_parameters())}
        self._bindings: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self._attributes: dict[str, fx.Node] = {}
        self._stack: OrderedDict[str, tuple[str, type]] = OrderedDict()
        self._calls = CallRecorder(root)
        self._effects: set[fx.Node] = set()
        self._paused = False
        self._autocast = autocast_state()
        # A tensor without a node is a constant if it is older than the trace. If it is not, a call that torch does not
        # show made it from others, and taking it for a constant would cut the graph.
        self._new = NewTensors()

    def trace(self) -> fx.Graph:
        """Return the graph of one run of the example."""
        names = iter(placeholder_names(self._root, self._inputs))

        def placeholder(tensor: torch.Tensor) -> torch.Tensor:
            value = tensor.detach().clone()  # the model may write into its inputs
            self._bindings[value] = _Binding(self.graph.placeholder(next(names)), varies=True)
            return value

        try:
            with self._new:
                inputs = self._inputs.map(placeholder)
                with self._watching(), self, torch.no_grad():
                    output = inputs.call(self._root)
                self.graph.output(self._argument(plain_output(output, self._drop)))
            self._remove_dead_nodes()
            self.graph.lint()
            return self.graph
        finally:
            # A traced number may outlive the tracer in a cache: it must act as a plain one and keep no tensors alive.
            self._paused = True
            self._bindings, self._root = WeakTensorKeyDictionary(), nn.Module()

    # Called by traced numbers.

    def compute_number(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return the result of arithmetic on sizes, as a traced number."""
        value = function(*(plain(arg) for arg in args))
        if self._paused or type(value) not in (int, float):
            return value
        if function is operator.mul and any(type(arg) is int and arg == 1 for arg in args):
            return next(arg for arg in args if isinstance(arg, Number))  # as in math.prod, which starts with 1
        return self._traced_number(value, self._create("call_function", function, self._arguments(args)))

    def note_answer(self, question: str, answer: object) -> None:
        """Note that a value of the example is built into the graph."""
        if not self._paused:
            self.answers[f"{place_here()}: {question} is {answer}".lstrip(": ")] = None

    # Torch calls.

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*mapped(args, plain), **mapped(kwargs, plain))
        return result if self._paused else self._recorded(func, args, kwargs, result)

    def _recorded(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        name = name_of(func)
        varies = is_random(name) or self._varies((args, kwargs))
        inplace = is_inplace(func, name, kwargs)
        if not inplace and not any(isinstance(leaf, torch.Tensor) for leaf in leaves(result)):
            return self._plain_result(name, args, kwargs, result) if varies and name not in METADATA else result
        try:
            node = self._call_node(func, name, args, kwargs)
        except UntraceableError:
            if varies or inplace or any(isinstance(leaf, torch.Tensor) for leaf in leaves((args, kwargs))):
                raise
            node = self._constant(result)  # made from plain values that no graph can hold, such as an array
        if inplace:
            self._effects.add(node)
        return self._bound(result, node, varies, inplace)

    def _plain_result(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """Return a call's result that is no tensor: sizes as traced numbers, all else as the example has it."""
        tensor = args[0] if args else None
        if isinstance(tensor, torch.Tensor) and name in ("shape", "size"):
            if isinstance(result, int):
                (dim,) = (*args[1:], *kwargs.values())
                return self._size(tensor, plain(dim) % tensor.ndim)
            return torch.Size([self._size(tensor, dim) for dim in range(tensor.ndim)])
        if isinstance(tensor, torch.Tensor) and name in ("numel", "nelement"):
            return self._traced_number(result, self._create("call_method", name, self._arguments(args)))
        if name != "__len__":
            if isinstance(tensor, torch.Tensor) and self._is_chance(tensor):
                return result
            if self._strict:
                raise UntraceableError(f"{name} asks for the contents of a tensor")
            self.specialised = True
        shown = repr(result)
        self.note_answer(f"{name} of a tensor", shown if len(shown) <= 40 else f"{shown[:40]}...")
        return result

    def _is_chance(self, tensor: torch.Tensor) -> bool:
        """True if a condition only looks like chance: its draws stay in the graph. Real chance cannot be traced."""
        node = self._bindings[tensor].node if tensor in self._bindings else None
        draws = draws_in(node) if node is not None and self._root.training else []
        if not draws:
            return False
        if node is None or not is_certain(node):
            raise UntraceableError("chance decides which operations run")
        self._effects.update(draws)
        return True

    def _size(self, tensor: torch.Tensor, dim: int) -> Any:
        sizes = self._bindings[tensor].sizes if tensor in self._bindings else {}
        if dim not in sizes or sizes[dim]._erased:
            sizes[dim] = self._create("call_method", "size", (self._argument(tensor), dim))
        return self._traced_number(int(tensor.shape[dim]), sizes[dim])

    def _traced_number(self, value: Any, node: fx.Node) -> Any:
        number: Any = (TracedInt if isinstance(value, int) else TracedFloat)(value)
        number.tracer, number.node = self, node
        return number

    def _call_node(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        arguments, keywords = self._arguments(args), self._argument(kwargs)
        wrapper = getattr(func, "__name__", "")
        if wrapper == "__get__":
            return self._create("call_function", getattr, (arguments[0], name))
        if wrapper == "__set__":
            return self._create("call_function", setattr, (arguments[0], name, arguments[1]))
        if not is_method(func):
            return self._create("call_function", func, arguments, keywords)
        if name in OPERATORS and not keywords:
            return self._create("call_function", OPERATORS[name], arguments)
        if name in SWAPPED and not keywords:
            return self._create("call_function", SWAPPED[name], arguments[::-1])
        return self._create("call_method", name, arguments, keywords)

    # Modules.

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Intercept calls of modules and of scripted functions, which a function mode does not see."""
        module_call, script_call = nn.Module.__call__, torch.jit.ScriptFunction.__call__
        tracer = self

        def watched(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if tracer._paused or module is tracer._root or id(module) not in tracer._paths:
                return module_call(module, *args, **kwargs)
            return tracer._called(module_call, module, args, kwargs)

        def unscripted(function: Any, *args: Any, **kwargs: Any) -> Any:
            """Call the Python function that a scripted one was made from, which torch keeps for its compiler."""
            python = None if tracer._paused else getattr(function, "_torchdynamo_inline", None)
            return python(*args, **kwargs) if python else script_call(function, *args, **kwargs)

        nn.Module.__call__, torch.jit.ScriptFunction.__call__ = watched, unscripted  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            nn.Module.__call__, torch.jit.ScriptFunction.__call__ = module_call, script_call  # type: ignore[method-assign]

    def _called(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        name, depth = self._paths[id(module)], len(self._stack)
        self._stack[f"{name}@{depth}"] = (name, type(module))
        try:
            tensors = sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))
            # Under torch.func.functional_call a layer's weights may be computed: then the graph shows its inside.
            if is_leaf(module, tensors) and all(id(p) in self._names for p in module.parameters()):
                return self._leaf(original, module, args, kwargs)
            mark = len(self.graph.nodes)
            try:
                with self._calls.entered(name, module, (args, kwargs), self._nodes_in):
                    result = original(module, *args, **kwargs)
                for leaf in leaves(result):
                    self._require_known(leaf)
                return result
            except MemoryError:
                raise
            except Exception as error:
                self._roll_back(mark, name)
                try:
                    result = self._leaf(original, module, args, kwargs)
                except Exception:
                    raise error from None  # it fails as a single node too: report the first reason to the caller
                self.opaque.append(Opaque.stopped_by(error, name, place_of(error) or source_of(type(module))))
                return result
        finally:
            while len(self._stack) > depth:
                self._stack.popitem()

    def _leaf(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Any:
        arguments, keywords = self._arguments(args), self._argument(kwargs)
        with self._pause():
            result = original(module, *mapped(args, plain), **mapped(kwargs, plain))
            node = self._create("call_module", self._paths[id(module)], arguments, keywords)
            return self._bound(result, node, self._varies((args, kwargs)), inplace=False)

    def _roll_back(self, mark: int, name: str) -> None:
        """Remove the nodes recorded since ``mark``."""
        for node in reversed(list(self.graph.nodes)[mark:]):
            self.graph.erase_node(node)
        self.opaque = [opaque for opaque in self.opaque if not opaque.name.startswith(f"{name}.")]

    @contextmanager
    def _pause(self) -> Iterator[None]:
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    # Values and nodes.

    def _create(
        self, op: str, target: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> fx.Node:
        if len(self.graph.nodes) >= _MOST_NODES:
            raise UntraceableError(f"more than {_MOST_NODES} operations")
        if autocast_state() != self._autocast:
            raise UntraceableError("an operation under autocast, which a graph cannot switch on")
        node = self.graph.create_node(op, target, args, kwargs or {})
        node.meta["nn_module_stack"] = self._stack.copy()
        self._calls.annotate(node)
        return node

    def _nodes_in(self, value: Any) -> list[fx.Node]:
        """Return the nodes that compute the tensors and numbers in an argument."""
        known = [
            leaf
            for leaf in tree_leaves(value)
            if isinstance(leaf, Number) or (isinstance(leaf, torch.Tensor) and leaf in self._bindings)
        ]
        return [leaf.node if isinstance(leaf, Number) else self._bindings[leaf].node for leaf in known]

    def _varies(self, value: Any) -> bool:
        return any(
            isinstance(leaf, Number)
            or (isinstance(leaf, torch.Tensor) and leaf in self._bindings and self._bindings[leaf].varies)
            for leaf in leaves(value)
        )

    def _bound(self, result: Any, node: fx.Node, varies: bool, inplace: bool) -> Any:
        """Bind every tensor of a result to its node; one that has a node already is replaced by an alias."""
        if isinstance(result, torch.Tensor):
            if not inplace and self._is_known(result):
                result = result.detach()
            self._bindings[result] = _Binding(node, varies)
            return result
        if isinstance(result, Mapping):
            for key, item in result.items():
                self._bound(item, self._create("call_function", operator.getitem, (node, key)), varies, inplace)
            return result
        if isinstance(result, list | tuple):
            items = [
                self._bound(item, self._create("call_function", operator.getitem, (node, index)), varies, inplace)
                for index, item in enumerate(result)
            ]
            return type(result)(items) if type(result) in (list, tuple) else result
        return result

    def _arguments(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._argument(arg) for arg in args)

    def _argument(self, value: Any) -> Any:
        return mapped(value, self._leaf_argument)

    def _leaf_argument(self, value: Any) -> Any:
        """Return a value as fx keeps it in a node's arguments."""
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if isinstance(value, Number):
            if value.node._erased:
                raise UntraceableError("a size measured inside a module that was rolled back")
            return value.node
        value = python_number(value)
        if value is None or value is ... or isinstance(value, base_types):
            return value
        if is_record(value):
            items = self._arguments(tuple(value))
            return self._create("call_function", type(value), items) if hasattr(value, "_fields") else items
        raise UntraceableError(f"an argument of type {type(value).__name__}")

    def _node_of(self, tensor: torch.Tensor) -> fx.Node:
        if tensor in self._bindings:
            node: fx.Node = self._bindings[tensor].node
            if node._erased:
                raise UntraceableError("a tensor computed inside a module that was rolled back")
            return node
        self._require_known(tensor)
        return self._attribute(self._names[id(tensor)]) if id(tensor) in self._names else self._constant(tensor)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return tensor in self._bindings or id(tensor) in self._names or tensor not in self._new

    def _require_known(self, value: Any) -> None:
        if not isinstance(value, torch.Tensor) or self._is_known(value):
            return
        what = f"a tensor {list(value.shape)} made by a call that torch does not show"
        if not self._trusting:
            raise UntraceableError(what, hidden_call=True)
        self.specialised = True
        self.note_answer(what, "a constant")

    def _attribute(self, name: str) -> fx.Node:
        if name not in self._attributes or self._attributes[name]._erased:
            self._attributes[name] = self._create("get_attr", name)
        return self._attributes[name]

    def _constant(self, value: Any) -> fx.Node:
        if not isinstance(value, torch.Tensor):
            raise UntraceableError(f"a constant of type {type(value).__name__}")
        free = (f"_tensor_constant{number}" for number in itertools.count())
        name = next(name for name in free if name not in self.constants and not hasattr(self._root, name))
        with self._pause():
            self.constants[name] = value.detach().clone()
        return self._create("get_attr", name)

    def _remove_dead_nodes(self) -> None:
        """Remove nodes that nothing reads: sizes used in comparisons only, unused parts of a tuple."""
        for node in reversed(list(self.graph.nodes)):
            if node.op in ("call_function", "call_method", "get_attr") and not node.users and node not in self._effects:
                self.graph.erase_node(node)

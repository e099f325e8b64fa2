"""Which elements of every tensor cannot change with the model's inputs: one run of the example, beside it marks.

An element is marked as **moving** if any input may change it. Marks travel by rules that only ever err towards moving:
an operation without a rule makes all it computes move. What is not moving has, for inputs of the example's size, the
very value the example gave it; so a constant is proven by the rules and read off the run. (Finite activations are
taken for granted: zero times infinity is not zero.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_any, tree_leaves, tree_map

from dst_analyze.channels.rule_call import Effect, effect_of, op_name, rule_for
from dst_analyze.model.families import family_of_call

# fmt: off
_CHANCE = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "poisson", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "random", "rrelu", "uniform",
)
# fmt: on
_DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
_WRITING = ("setitem", "setattr", "iadd", "isub", "imul", "itruediv", "ipow")
_SUMS = ("sum", "mean", "amax")  # of marks, these are marked where any mark went in
_INDEXED = ("getitem", "repeat_interleave")  # by a tensor: nothing marks can stand in for

NodeVisitor = Callable[[fx.Node, "ConstancyRun"], None]


class ConstancyRun(fx.Interpreter):
    """Runs the example in eval mode with marks beside every tensor; ``seen`` looks at each node before it runs."""

    def __init__(self, module: fx.GraphModule, seen: NodeVisitor) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._seen = seen
        self._marks: dict[fx.Node, Any] = {}
        self._order = {node: index for index, node in enumerate(module.graph.nodes)}
        self._fixed: set[fx.Node] = set()  # computed from parameters alone
        self._written: dict[int, int] = {}  # memory -> the last operation that wrote to it in place

    def run_node(self, n: fx.Node) -> Any:
        self._seen(n, self)
        marks = fx.map_arg((n.args, n.kwargs), self.moving)  # before the operation writes over them
        possible = fx.map_arg((n.args, n.kwargs), self.possible) if self._asks_for_zeros(n) else None
        result = super().run_node(n)
        if n.op == "get_attr" or (n.all_input_nodes and self._fixed.issuperset(n.all_input_nodes)):
            self._fixed.add(n)
        self._marks[n] = self._marked(n, marks, possible, result)
        if _writes(n, self.module):
            for tensor in tree_leaves(fx.map_arg((n.args[:1], n.kwargs), self.env.__getitem__)):
                if isinstance(tensor, torch.Tensor):
                    self._written[tensor.untyped_storage().data_ptr()] = self._order[n]
        return result

    def moving(self, n: fx.Node) -> Any:
        """The marks of a node's result as it is now; all of it moves if its memory was written to since."""

        def now(value: Any, marks: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            written = self._written.get(value.untyped_storage().data_ptr(), -1)
            return _all(value) if written > self._order[n] else marks

        value = self.env[n]
        if isinstance(value, torch.Tensor):
            return now(value, self._marks[n])
        if tree_any(lambda leaf: isinstance(leaf, torch.Tensor), value):
            return tree_map(now, value, self._marks[n])
        return value

    def possible(self, n: fx.Node) -> Any:
        """Where a node's result may be other than zero: it moves there, or stands at another value."""

        def other(value: Any, marks: Any) -> Any:
            return marks | (value != 0) if isinstance(value, torch.Tensor) else value

        return tree_map(other, self.env[n], self.moving(n))

    # Rules.

    def _asks_for_zeros(self, n: fx.Node) -> bool:
        if n.op not in ("call_function", "call_method", "call_module"):
            return False
        family = family_of_call(None, self._op(n)) if n.op != "call_module" else None
        products = family is not None and bool(family.constants.function)
        return products or self._op(n) in ("mul", "multiply") or self._knows_sizes(n)

    def _knows_sizes(self, n: fx.Node) -> bool:
        """Whether a constant would be another for inputs of another size: a border, a sum. Zero stays zero."""
        op = self._op(n)
        padding = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        amount = getattr(padding, "padding", argument(n, 3, "padding", 0) if padding is None else 0)
        pooled = op.lower().startswith("avg_pool") or op.startswith("AvgPool") or op == "unfold"
        return op in ("sum", "pad") or "Pad" in op or (pooled and amount not in (0, (0, 0), [0, 0]))

    def _op(self, n: fx.Node) -> str:
        return op_name(n, self.fetch_attr(str(n.target)) if n.op == "call_module" else None)

    def _marked(self, n: fx.Node, marks: Any, possible: Any, result: Any) -> Any:
        if n.op == "placeholder":
            return tree_map(_all, result)
        if n.op == "get_attr":
            return tree_map(_none, result)
        if n.op == "output" or not tree_any(lambda leaf: isinstance(leaf, torch.Tensor), result):
            return result
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        op, effect = op_name(n, module), effect_of(rule_for(n, module))
        inside = [leaf for leaf in tree_leaves(marks) if isinstance(leaf, torch.Tensor)]
        if is_random_op(op, n, module):
            return tree_map(_all, result)
        if n in self._fixed:
            return tree_map(_none, result)
        if self._knows_sizes(n):
            marks = possible
            inside = [leaf for leaf in tree_leaves(marks) if isinstance(leaf, torch.Tensor)]
        marked: Any = None
        family = family_of_call(module, op)
        mark = family.constants.find(layer=module is not None) if family is not None else None
        if mark is not None:
            marked = mark(self, MarkedCall(n, module, marks, possible, result))
        elif not any(bool(leaf.any()) for leaf in inside):
            return tree_map(_none, result)
        elif effect is Effect.ELEMENTWISE and isinstance(result, torch.Tensor):
            marked = self._product(n, marks, possible) if op in ("mul", "multiply") else _union(inside, result)
        elif effect is Effect.PER_CHANNEL:
            marked = _per_channel(inside[0], result) if _batched(op, result) else None
        elif op in _SUMS or effect is Effect.REARRANGES:
            marked = self._run_on(n, marks)
        return marked if _fits(marked, result) else tree_map(_all, result)

    def _product(self, n: fx.Node, marks: Any, possible: Any) -> Any:
        """Zero times anything stays zero."""
        (a, b), (ma, mb) = _pair(possible), _pair(marks)
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            return ma if isinstance(ma, torch.Tensor) else mb
        return (ma & b) | (mb & a)

    # Rules named in the table of families; None says that all of the result moves.

    def mark_linear_layer(self, call: MarkedCall) -> Any:
        if not call.moves:
            return _none(call.result)
        if type(call.module).forward is not nn.Linear.forward:
            return None
        args, kwargs = call.marks
        return F.linear(_named(args, kwargs, 0, "input").float(), (call.module.weight != 0).float()) > 0

    def mark_linear(self, call: MarkedCall) -> Any:
        args, kwargs = (_floats(item) for item in call.marks)
        pargs, pkwargs = (_floats(item) for item in call.possible)
        x, w = _named(args, kwargs, 0, "input"), _named(args, kwargs, 1, "weight")
        px, pw = _named(pargs, pkwargs, 0, "input"), _named(pargs, pkwargs, 1, "weight")
        bias = _named(args, kwargs, 2, "bias")
        made = (F.linear(x, pw) + F.linear(px, w)) > 0
        return made if bias is None else made | (bias > 0)

    def mark_added_product(self, call: MarkedCall) -> Any:
        """Of `addmm` only: the batched form is not followed."""
        if not call.moves:
            return _none(call.result)
        if self._op(call.node) != "addmm":
            return None
        (start, a, b), (_, pa, pb) = (_floats(item[0]) for item in (call.marks, call.possible))
        return ((a @ pb + pa @ b) > 0) | (start > 0)

    def mark_product(self, call: MarkedCall) -> Any:
        """One operand's marks at a time, with the others where they may be other than zero."""
        if not call.moves:
            return _none(call.result)
        moved: Any = None
        for turn in range(sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(call.marks))):
            made = self._run_on(call.node, _swapped(call.marks, call.possible, turn))
            if not isinstance(made, torch.Tensor):
                return None
            moved = made if moved is None else moved | made
        return moved

    def mark_convolution(self, call: MarkedCall) -> Any:
        """Channel by channel; padded, a constant that is not zero makes a border, so it counts as moving."""
        n, kernel = call.node, convolution_of(call.node, call.module, self.env.__getitem__)
        others = [self.moving(node) for node in n.all_input_nodes if kernel is None or node is not kernel.source]
        if kernel is None or any(bool(marks.any()) for marks in others if isinstance(marks, torch.Tensor)):
            return None
        x = self.moving(kernel.source) if kernel.unpadded else self.possible(kernel.source)
        along = [dim for dim in range(x.ndim) if dim != kernel.channel(x)]
        made = (kernel.reading & (x.any(dim=along) if along else x)).any(1)
        shape = [-1 if dim == kernel.channel(x) else 1 for dim in range(call.result.ndim)]
        return made.view(shape).expand(call.result.shape)

    def _run_on(self, n: fx.Node, marks: Any) -> Any:
        """The operation itself, on marks in the place of values."""
        args, kwargs = (_floats(item) for item in marks)
        if self._op(n) in _INDEXED and any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args[1:], kwargs))):
            return None
        try:
            made = getattr(super(), n.op)(n.target, args, kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        return tree_map(lambda leaf: leaf != 0 if isinstance(leaf, torch.Tensor) else leaf, made)


@dataclass(frozen=True)
class MarkedCall:
    """A node that has run: its arguments' marks, where they may be other than zero, and its result."""

    node: fx.Node
    module: Any
    marks: Any  # (args, kwargs) with marks in the place of tensors
    possible: Any  # the same, for functions that multiply
    result: Any

    @property
    def moves(self) -> bool:
        return any(bool(leaf.any()) for leaf in tree_leaves(self.marks) if isinstance(leaf, torch.Tensor))


@dataclass(frozen=True)
class Convolution:
    """A call of a convolution, as a layer or as a function."""

    source: fx.Node
    weight: torch.Tensor
    groups: int
    padding: Any
    transposed: bool

    @property
    def unpadded(self) -> bool:
        """Whether it sees nothing but its input, all of it in the same way."""
        amounts = self.padding if isinstance(self.padding, tuple | list) else [self.padding]
        return not self.transposed and all(amount in (0, "valid") for amount in amounts)

    @property
    def reading(self) -> torch.Tensor:
        """Which input channels each output channel reads, as [outputs, inputs], groups spelt out."""
        blocks = [
            block.t() if self.transposed else block
            for block in (self.weight != 0).flatten(2).any(2).float().chunk(self.groups)
        ]
        spelt_out: torch.Tensor = torch.block_diag(*blocks)
        return spelt_out > 0

    def channel(self, x: torch.Tensor) -> int:
        return x.ndim - self.weight.ndim + 1


def convolution_of(n: fx.Node, module: Any, value: Callable[[fx.Node], Any]) -> Convolution | None:
    """The convolution a node calls; ``value`` tells what a node among its arguments is worth."""
    source = argument(n, 0, "input")
    if not isinstance(source, fx.Node):
        return None
    if module is not None:
        transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
        return Convolution(source, module.weight, module.groups, module.padding, transposed)
    transposed = "transpose" in str(getattr(n.target, "__name__", n.target))
    weight = argument(n, 1, "weight")
    if not isinstance(weight, fx.Node):
        return None
    groups, padding = fx.map_arg((argument(n, 6, "groups", 1), argument(n, 4, "padding", 0)), value)
    return Convolution(source, value(weight), groups, padding, transposed)


def argument(n: fx.Node, position: int, name: str, default: Any = None) -> Any:
    return n.args[position] if len(n.args) > position else n.kwargs.get(name, default)


# --- marks ------------------------------------------------------------------------------------------------------


def _all(value: Any) -> Any:
    return torch.ones_like(value, dtype=torch.bool) if isinstance(value, torch.Tensor) else value


def _none(value: Any) -> Any:
    return torch.zeros_like(value, dtype=torch.bool) if isinstance(value, torch.Tensor) else value


def _floats(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) else leaf, value)


def _union(marks: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor | None:
    moved = torch.zeros_like(result, dtype=torch.bool)
    try:
        for mark in marks:
            moved = moved | mark
    except RuntimeError:  # a tensor that only says of which type
        return None
    return moved


def _per_channel(moving: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    """Channels along axis 1 are kept apart, all else is taken together."""
    if moving.ndim < 2 or moving.shape[1] != result.shape[1]:
        return None
    channels = moving.transpose(0, 1).flatten(1).any(1)
    return channels.view(1, -1, *[1] * (result.ndim - 2)).expand(result.shape)


def _batched(op: str, result: Any) -> bool:
    """Whether axis 1 is the channels: layers that know their dimensions take single samples as well."""
    spatial = next((int(digit) for digit in op if digit in "123"), None)
    pooled = "pool" in op.lower() or "InstanceNorm" in op
    return isinstance(result, torch.Tensor) and (not pooled or spatial is None or result.ndim == spatial + 2)


def _pair(values: Any) -> tuple[Any, Any]:
    args, kwargs = values
    both = [*args, *kwargs.values()]
    return both[0], both[1]


def _named(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return args[position] if len(args) > position else kwargs.get(name)


def _swapped(marks: Any, possible: Any, turn: int) -> Any:
    """Marks for one of the tensors, the possible for the others."""
    count = -1

    def choose(mark: Any, other: Any) -> Any:
        nonlocal count
        if not isinstance(mark, torch.Tensor):
            return mark
        count += 1
        return mark if count == turn else other

    return tree_map(choose, marks, possible)


def _fits(marks: Any, result: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return isinstance(marks, torch.Tensor) and marks.shape == result.shape
    if isinstance(result, tuple | list):
        return (
            isinstance(marks, tuple | list)
            and len(marks) == len(result)
            and all(_fits(mark, item) for mark, item in zip(marks, result, strict=True))
        )
    return not tree_any(lambda leaf: isinstance(leaf, torch.Tensor), result)


def is_random_op(op: str, n: fx.Node, module: nn.Module | None) -> bool:
    if op in _DROPOUTS:
        training = n.args[2] if len(n.args) > 2 else n.kwargs.get("training", True)
        follows = isinstance(training, fx.Node) and training.op == "get_attr"  # the mode, which is eval here
        return module is None and training is not False and not follows
    return module is None and op in _CHANCE


def _writes(n: fx.Node, root: nn.Module) -> bool:
    """Whether a node writes over its first argument."""
    if n.op == "call_module":
        return bool(getattr(root.get_submodule(str(n.target)), "inplace", False))
    if n.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(n.target, "__name__", n.target))
    return (name.endswith("_") and not name.endswith("__")) or name in _WRITING or bool(n.kwargs.get("inplace"))

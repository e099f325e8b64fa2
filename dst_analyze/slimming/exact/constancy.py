"""Find the elements of every tensor that do not depend on the model's inputs, in one run that propagates marks.

An element is marked as **moving** if any input may change it. Marks are propagated by conservative rules: the result of
an operation without a rule moves as a whole. An element that does not move has, for all inputs of the example's size,
the value that it has for the example. So the rules prove a constant, and the run gives its value. (Activations are
assumed to be finite, as zero times infinity is not zero.)
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
_RANDOM = (
    "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "poisson", "rand",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "random", "rrelu", "uniform",
)
# fmt: on
_DROPOUTS = ("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout")
_WRITING = ("setitem", "setattr", "iadd", "isub", "imul", "itruediv", "ipow")
_SUMS = ("sum", "mean", "amax")  # applied to marks, these mark all results that any mark goes into
_INDEXED = ("getitem", "repeat_interleave")  # indices cannot be replaced by marks

NodeVisitor = Callable[[fx.Node, "ConstancyRun"], None]


class ConstancyRun(fx.Interpreter):
    """A run of the example in eval mode that marks moving elements; ``seen`` is called before each node runs."""

    def __init__(self, module: fx.GraphModule, seen: NodeVisitor) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self._seen = seen
        self._marks: dict[fx.Node, Any] = {}
        self._order = {node: index for index, node in enumerate(module.graph.nodes)}
        self._fixed: set[fx.Node] = set()  # computed from parameters alone
        self._written: dict[int, int] = {}  # address of a storage -> the last operation that wrote to it in place

    def run_node(self, n: fx.Node) -> Any:
        self._seen(n, self)
        marks = fx.map_arg((n.args, n.kwargs), self.moving)  # before an in-place operation changes its arguments
        possible = fx.map_arg((n.args, n.kwargs), self.possible) if self._needs_possible(n) else None
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
        """Return the current marks of a node's result; all of it moves if its storage was written to since."""

        def now(value: Any, marks: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            written = self._written.get(value.untyped_storage().data_ptr(), -1)
            return _all_moving(value) if written > self._order[n] else marks

        value = self.env[n]
        if isinstance(value, torch.Tensor):
            return now(value, self._marks[n])
        if tree_any(lambda leaf: isinstance(leaf, torch.Tensor), value):
            return tree_map(now, value, self._marks[n])
        return value

    def possible(self, n: fx.Node) -> Any:
        """Return where a node's result may be nonzero: where it moves, or is another constant."""

        def other(value: Any, marks: Any) -> Any:
            return marks | (value != 0) if isinstance(value, torch.Tensor) else value

        return tree_map(other, self.env[n], self.moving(n))

    # Rules.

    def _needs_possible(self, n: fx.Node) -> bool:
        if n.op not in ("call_function", "call_method", "call_module"):
            return False
        family = family_of_call(None, self._op(n)) if n.op != "call_module" else None
        products = family is not None and bool(family.constants.function)
        return products or self._op(n) in ("mul", "multiply") or self._depends_on_size(n)

    def _depends_on_size(self, n: fx.Node) -> bool:
        """Return True if a nonzero constant depends on the input's size: padding, a sum."""
        op = self._op(n)
        padding = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        amount = getattr(padding, "padding", argument(n, 3, "padding", 0) if padding is None else 0)
        pooled = op.lower().startswith("avg_pool") or op.startswith("AvgPool") or op == "unfold"
        return op in ("sum", "pad") or "Pad" in op or (pooled and amount not in (0, (0, 0), [0, 0]))

    def _op(self, n: fx.Node) -> str:
        return op_name(n, self.fetch_attr(str(n.target)) if n.op == "call_module" else None)

    def _marked(self, n: fx.Node, marks: Any, possible: Any, result: Any) -> Any:
        if n.op == "placeholder":
            return tree_map(_all_moving, result)
        if n.op == "get_attr":
            return tree_map(_none_moving, result)
        if n.op == "output" or not tree_any(lambda leaf: isinstance(leaf, torch.Tensor), result):
            return result
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        op, effect = op_name(n, module), effect_of(rule_for(n, module))
        inside = [leaf for leaf in tree_leaves(marks) if isinstance(leaf, torch.Tensor)]
        if is_random_op(op, n, module):
            return tree_map(_all_moving, result)
        if n in self._fixed:
            return tree_map(_none_moving, result)
        if self._depends_on_size(n):
            marks = possible
            inside = [leaf for leaf in tree_leaves(marks) if isinstance(leaf, torch.Tensor)]
        marked: Any = None
        family = family_of_call(module, op)
        mark = family.constants.find(layer=module is not None) if family is not None else None
        if mark is not None:
            marked = mark(self, MarkedCall(n, module, marks, possible, result))
        elif not any(bool(leaf.any()) for leaf in inside):
            return tree_map(_none_moving, result)
        elif effect is Effect.ELEMENTWISE and isinstance(result, torch.Tensor):
            marked = self._product(n, marks, possible) if op in ("mul", "multiply") else _union(inside, result)
        elif effect is Effect.PER_CHANNEL:
            marked = _per_channel(inside[0], result) if _batched(op, result) else None
        elif op in _SUMS or effect is Effect.REARRANGES:
            marked = self._run_on(n, marks)
        return marked if _fits(marked, result) else tree_map(_all_moving, result)

    def _product(self, n: fx.Node, marks: Any, possible: Any) -> Any:
        """Return the marks of a product, which are zero where an operand is the constant zero."""
        (a, b), (ma, mb) = _pair(possible), _pair(marks)
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            return ma if isinstance(ma, torch.Tensor) else mb
        return (ma & b) | (mb & a)

    # Rules referenced in the table of families; None means that all of the result moves.

    def mark_linear_layer(self, call: MarkedCall) -> Any:
        if not call.moves:
            return _none_moving(call.result)
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
        """Return the marks of `addmm`; None for `baddbmm`."""
        if not call.moves:
            return _none_moving(call.result)
        if self._op(call.node) != "addmm":
            return None
        (start, a, b), (_, pa, pb) = (_floats(item[0]) for item in (call.marks, call.possible))
        return ((a @ pb + pa @ b) > 0) | (start > 0)

    def mark_product(self, call: MarkedCall) -> Any:
        """Return the union over operands of the product of one's marks with the others' possible nonzeros."""
        if not call.moves:
            return _none_moving(call.result)
        moved: Any = None
        for turn in range(sum(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(call.marks))):
            made = self._run_on(call.node, _swapped(call.marks, call.possible, turn))
            if not isinstance(made, torch.Tensor):
                return None
            moved = made if moved is None else moved | made
        return moved

    def mark_convolution(self, call: MarkedCall) -> Any:
        """Return the marks per channel; with padding, nonzero constants count as moving, as their borders differ."""
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
        """Return the result of the operation itself on marks instead of values; None if it fails."""
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
    """A node that has run, with its result and the marks and possible nonzeros of its arguments."""

    node: fx.Node
    module: Any
    marks: Any  # (args, kwargs) with marks in place of tensors
    possible: Any  # (args, kwargs) with possible nonzeros in place of tensors, for products
    result: Any

    @property
    def moves(self) -> bool:
        """True if any element of an argument moves."""
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
        """True if every output reads inputs only, with no padding."""
        amounts = self.padding if isinstance(self.padding, tuple | list) else [self.padding]
        return not self.transposed and all(amount in (0, "valid") for amount in amounts)

    @property
    def reading(self) -> torch.Tensor:
        """The input channels that each output channel reads, as [outputs, inputs] over all groups."""
        blocks = [
            block.t() if self.transposed else block
            for block in (self.weight != 0).flatten(2).any(2).float().chunk(self.groups)
        ]
        expanded: torch.Tensor = torch.block_diag(*blocks)
        return expanded > 0

    def channel(self, x: torch.Tensor) -> int:
        """Return the axis of an input's channels."""
        return x.ndim - self.weight.ndim + 1


def convolution_of(n: fx.Node, module: Any, value: Callable[[fx.Node], Any]) -> Convolution | None:
    """Return the convolution that a node calls; ``value`` returns the value of an argument that is a node."""
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
    """Return an argument given by position or by name."""
    return n.args[position] if len(n.args) > position else n.kwargs.get(name, default)


# --- marks ------------------------------------------------------------------------------------------------------


def _all_moving(value: Any) -> Any:
    return torch.ones_like(value, dtype=torch.bool) if isinstance(value, torch.Tensor) else value


def _none_moving(value: Any) -> Any:
    return torch.zeros_like(value, dtype=torch.bool) if isinstance(value, torch.Tensor) else value


def _floats(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) else leaf, value)


def _union(marks: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor | None:
    moved = torch.zeros_like(result, dtype=torch.bool)
    try:
        for mark in marks:
            moved = moved | mark
    except RuntimeError:  # a tensor that is passed for its type only has another shape
        return None
    return moved


def _per_channel(moving: torch.Tensor, result: torch.Tensor) -> torch.Tensor | None:
    """Return the marks of an operation on each channel (axis 1): a channel moves if any of its inputs does."""
    if moving.ndim < 2 or moving.shape[1] != result.shape[1]:
        return None
    channels = moving.transpose(0, 1).flatten(1).any(1)
    return channels.view(1, -1, *[1] * (result.ndim - 2)).expand(result.shape)


def _batched(op: str, result: Any) -> bool:
    """Return True if axis 1 is the channels; layers of fixed dimension also accept unbatched samples."""
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
    """Return the arguments with marks for the tensor number ``turn`` and possible nonzeros for the others."""
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
    """Return True if an operation draws random numbers in eval mode."""
    if op in _DROPOUTS:
        training = n.args[2] if len(n.args) > 2 else n.kwargs.get("training", True)
        follows = isinstance(training, fx.Node) and training.op == "get_attr"  # self.training, which is False here
        return module is None and training is not False and not follows
    return module is None and op in _RANDOM


def _writes(n: fx.Node, root: nn.Module) -> bool:
    """Return True if a node changes its first argument in place."""
    if n.op == "call_module":
        return bool(getattr(root.get_submodule(str(n.target)), "inplace", False))
    if n.op not in ("call_function", "call_method"):
        return False
    name = str(getattr(n.target, "__name__", n.target))
    return (name.endswith("_") and not name.endswith("__")) or name in _WRITING or bool(n.kwargs.get("inplace"))

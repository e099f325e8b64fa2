"""The operations that a weight can reach: which argument it is, and which axes are summed over.

Each function here takes the arguments of a call and yields the weights among them. `model/families.py` says which of
them belongs to which torch function, and `register_weight_op` adds one. No other operation counts as a matmul or
convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dst_analyze.model.families import weight_finder


@dataclass(frozen=True)
class WeightArgument:
    """A weight in a call, with the roles of its axes.

    Attributes:
        tensor: The weight.
        columns: Axes that the operation sums over; all other axes number output neurons.
        split: An axis and the number of its outer parts, if it has to be seen as two axes: the groups of a transposed
            convolution, the gates of a recurrent layer. All other fields count axes after the split.
        blocks: Axes that number separate matrices.
        positions: How often each weight is multiplied, if torch's FLOP counter does not know the operation.
        recurrent: True if the weight is used once per step of a sequence.
        inputs: Axes that number input channels, if these are not the columns (a kernel's width is not a channel).

    Example:
        >>> import dst_analyze, torch
        >>> weight = torch.randn(8, 4)  # y = x @ weight.T sums over axis 1; axis 0 numbers the 8 output neurons
        >>> dst_analyze.WeightArgument(weight, columns=(1,)).columns
        (1,)
    """

    tensor: torch.Tensor
    columns: tuple[int, ...]
    split: tuple[int, int] | None = None
    blocks: tuple[int, ...] = ()
    positions: int | None = None
    recurrent: bool = False
    inputs: tuple[int, ...] | None = None


WeightFinder = Callable[[tuple[Any, ...], Mapping[str, Any]], Iterator[WeightArgument]]


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], position: int, *names: str) -> Any:
    if position < len(args):
        return args[position]
    return next((kwargs[name] for name in names if name in kwargs), None)


def linear_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a linear call."""
    weight = _argument(args, kwargs, 1, "weight")
    yield WeightArgument(weight, (weight.ndim - 1,))


def convolution_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a convolution call."""
    weight, groups = _argument(args, kwargs, 1, "weight"), _groups_of(args, kwargs)
    if groups in (1, weight.shape[0]):  # each filter of a depthwise convolution reads only its channel
        channel = 1 if groups == 1 else 0
        yield WeightArgument(weight, tuple(range(1, weight.ndim)), inputs=(channel,))
    else:  # [out, in / groups, *kernel]: the input channel is (group, axis 1), the group the outer part of axis 0
        yield WeightArgument(weight, tuple(range(2, weight.ndim + 1)), split=(0, groups), inputs=(0, 2))


def _groups_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Return ``groups``: the seventh argument of ``conv2d``, the ninth of ``convolution``."""
    return int(_argument(args, kwargs, 8 if len(args) > 7 else 6, "groups") or 1)


def transposed_convolution_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a transposed convolution call."""
    weight = _argument(args, kwargs, 1, "weight")
    groups = _argument(args, kwargs, 6, "groups") or 1
    # [in, out / groups, *kernel]: the output channel is (group, axis 1), and the group is the outer part of axis 0.
    yield WeightArgument(weight, (1, *range(3, weight.ndim + 1)), split=(0, int(groups)), inputs=(0, 1))


def tbc_convolution_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a TBC convolution call."""
    yield WeightArgument(_argument(args, kwargs, 1, "weight"), (0, 1), inputs=(1,))


def bilinear_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a bilinear call."""
    first, weight = _argument(args, kwargs, 0, "input1"), _argument(args, kwargs, 2, "weight")
    yield WeightArgument(weight, (1, 2), inputs=(), positions=first.numel() // max(first.shape[-1], 1))


def _product(left: torch.Tensor, right: torch.Tensor) -> Iterator[WeightArgument]:
    yield WeightArgument(left, (left.ndim - 1,))
    yield WeightArgument(right, (max(right.ndim - 2, 0),))


def matmul_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a matmul call."""
    yield from _product(
        _argument(args, kwargs, 0, "input", "self"), _argument(args, kwargs, 1, "other", "mat2", "vec", "tensor")
    )


def reversed_matmul_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a reversed matmul call."""
    yield from _product(args[1], args[0])


def added_matmul_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of an added matmul call."""
    left = _argument(args, kwargs, 1, "mat1", "batch1", "mat")
    yield from _product(left, _argument(args, kwargs, 2, "mat2", "batch2", "vec"))


def einsum_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of an einsum."""
    equation = args[0]
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if not isinstance(equation, str):  # the sublist form: einsum(tensor, [0, 1], ...)
        return
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not output and "->" not in equation:
        output = "".join(sorted(c for c in set(inputs) - {",", "."} if inputs.count(c) == 1))
    for term, tensor in zip(terms, operands, strict=False):
        # An ellipsis stands for leading batch axes here; letters are then counted from the end.
        letters = term.replace("...", "")
        offset = tensor.ndim - len(letters)
        yield WeightArgument(tensor, tuple(offset + i for i, letter in enumerate(letters) if letter not in output))


def tensordot_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights among the arguments of a tensordot call."""
    left, right = args[0], args[1]
    dims = _argument(args, kwargs, 2, "dims")
    dims = 2 if dims is None else dims
    if isinstance(dims, int):
        yield WeightArgument(left, tuple(range(left.ndim - dims, left.ndim)))
        yield WeightArgument(right, tuple(range(dims)))
    else:
        for tensor, axes in zip((left, right), dims, strict=True):
            yield WeightArgument(tensor, tuple(int(axis) % tensor.ndim for axis in axes))


def _gated(gates: int, parameters: Sequence[torch.Tensor], positions: int) -> Iterator[WeightArgument]:
    """Yield a recurrent layer's weights: [gates x hidden, in] is a matrix per gate, a projection one."""
    hidden = max((p.shape[0] for p in parameters if p.ndim == 2), default=0)
    for parameter in parameters:
        if parameter.ndim == 2:
            parts = gates if parameter.shape[0] == hidden else 1
            yield WeightArgument(
                parameter,
                columns=(2,),
                split=(0, parts),
                blocks=(0,),
                positions=positions,
                recurrent=True,
            )


def _recurrent(gates: int) -> WeightFinder:
    def rule(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
        # (input, hx, flat_weights, ...) or, packed, (data, batch_sizes, hx, flat_weights, ...)
        weights = [a for a in args if isinstance(a, (list, tuple))][-1]
        yield from _gated(gates, weights, args[0].numel() // max(args[0].shape[-1], 1))

    return rule


def _recurrent_cell(gates: int) -> WeightFinder:
    def rule(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
        weights = [a for a in args[2:] if isinstance(a, torch.Tensor)]  # (input, hx, w_ih, w_hh, b_ih, b_hh)
        yield from _gated(gates, weights, args[0].numel() // max(args[0].shape[-1], 1))

    return rule


def attention_weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[WeightArgument]:
    """Yield the weights of `F.multi_head_attention_forward`, inside which function modes do not see."""
    queries, keys, values = (t.numel() // max(t.shape[-1], 1) for t in args[:3])
    packed = _argument(args, kwargs, 5, "in_proj_weight")
    if packed is not None:
        positions = (queries + keys + values) // 3
        yield WeightArgument(packed, (2,), split=(0, 3), blocks=(0,), positions=positions)
    for name, positions in (("q_proj_weight", queries), ("k_proj_weight", keys), ("v_proj_weight", values)):
        if kwargs.get(name) is not None:
            yield WeightArgument(kwargs[name], (1,), positions=positions)
    yield WeightArgument(_argument(args, kwargs, 11, "out_proj_weight"), (1,), positions=queries)


rnn_weights, lstm_weights, gru_weights = (_recurrent(gates) for gates in (1, 4, 3))
rnn_cell_weights, lstm_cell_weights, gru_cell_weights = (_recurrent_cell(gates) for gates in (1, 4, 3))

_REGISTERED: dict[str, WeightFinder] = {}


def register_weight_op(name: str, rule: WeightFinder) -> None:
    """Mask the weights of one more torch function.

    Args:
        name: The function's name, such as "linear".
        rule: Called with the positional and keyword arguments of a call; yields a `WeightArgument` for each weight.

    Example:
        >>> import dst_analyze, torch
        >>> def cdist_weights(args, kwargs):
        ...     yield dst_analyze.WeightArgument(args[1], columns=(1,))
        >>> dst_analyze.register_weight_op("cdist", cdist_weights)
        >>> class Prototypes(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.prototypes = torch.nn.Parameter(torch.randn(8, 4))
        ...     def forward(self, x):
        ...         return torch.cdist(x, self.prototypes)
        >>> traced = dst_analyze.trace_model(Prototypes(), torch.randn(2, 4))
        >>> [layer.name for layer in traced.layers]
        ['prototypes']
    """
    _REGISTERED[name] = rule


def weights_of(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[WeightArgument]:
    """Return the tensors that a call sums over, activations among them; empty for other operations."""
    rule = _REGISTERED.get(name) or weight_finder(name)
    if rule is None:
        return []
    return [found for found in rule(args, kwargs) if isinstance(found.tensor, torch.Tensor)]

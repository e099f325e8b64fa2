"""Rules for operations that compute each element from the elements at its place, and for reductions."""

from __future__ import annotations

import operator
import string
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.channels.contraction import contract, join_elementwise
from dst_analyze.channels.labels import collapsed
from dst_analyze.channels.rule_call import (
    Call,
    Effect,
    LabelledTensor,
    effect_of,
    family_rule,
    op_name,
    rule_for,
    rules,
)

# fmt: off
_ELEMENTWISE = (
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "alpha_dropout", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bernoulli", "bfloat16",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bool", "ceil", "celu", "clamp", "clamp_max",
    "clamp_min", "clip", "clone", "contiguous", "copy", "copysign", "cos", "cosh", "cpu", "cuda", "detach", "div",
    "divide", "double", "dropout", "dropout1d", "dropout2d", "dropout3d", "elu", "eq", "erf", "erfc", "erfinv", "exp",
    "exp2", "expm1", "feature_alpha_dropout", "fill", "float", "float_power", "floor", "floordiv", "floor_divide",
    "fmax", "fmin", "fmod", "frac", "ge", "gelu", "greater", "greater_equal", "gt", "half", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "hypot", "int", "invert", "isclose", "isfinite", "isinf", "isnan", "le",
    "leaky_relu", "lerp", "less", "less_equal", "lgamma", "log", "log10", "log1p", "log2", "logaddexp", "logaddexp2",
    "logical_and", "logical_not", "logical_or", "logical_xor", "logit", "logsigmoid", "long", "lt", "masked_fill",
    "maximum", "minimum", "mish", "mod", "mul", "multiply", "nan_to_num", "ne", "neg", "negative", "not_equal",
    "ones_like", "pos", "positive", "pow", "rand_like", "randn_like", "reciprocal", "relu", "relu6", "remainder",
    "requires_grad", "round", "rrelu", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sign", "silu", "sin", "sinc",
    "sinh", "softplus", "softshrink", "softsign", "sqrt", "square", "sub", "subtract", "tan", "tanh", "tanhshrink",
    "threshold", "to", "true_divide", "trunc", "truediv", "type", "type_as", "where", "xlogy", "zero", "zeros_like",
    "angle", "complex", "conj", "imag", "polar", "real",  # of complex numbers
)
# fmt: on


@rules(*_ELEMENTWISE, effect=Effect.ELEMENTWISE)
def elementwise(call: Call) -> LabelledTensor:
    return join_elementwise(call, call.acts, call.shape)


@rules("to", "type_as", effect=Effect.NO_HIDDEN_SUM)
def _converted(call: Call) -> LabelledTensor:
    """Keep the labels; a second tensor, which only gives the dtype, is not joined."""
    return call.out(call.x.families, call.x.constant)


@rules("_weight_norm", effect=Effect.NO_HIDDEN_SUM)
def _weight_norm(call: Call) -> Any:
    direction = call.x
    dim = call.get(2, "dim", 0)
    call.inexact(direction, (d for d in range(direction.ndim) if d != dim), "a norm over the weights")
    return elementwise(call)


@rules("tril", "triu", effect=Effect.NO_HIDDEN_SUM)
def _triangle(call: Call) -> LabelledTensor:
    return call.out(call.without(call.x, (-1, -2), "cut to a triangle along the axis"))


# --- along one axis ---------------------------------------------------------------------------------------------


def _dims(act: LabelledTensor, dim: Any) -> list[int]:
    if dim is None:
        return list(range(act.ndim))
    return [d % act.ndim for d in (dim if isinstance(dim, tuple | list) else [dim])]


def _along(call: Call, dim: Any, why: str) -> LabelledTensor:
    call.inexact(call.x, _dims(call.x, dim), why)
    return call.out(call.x.families)


@rules("cumsum", "cumprod", "logcumsumexp", effect=Effect.NO_HIDDEN_SUM)
def along_axis(call: Call) -> LabelledTensor:
    return _along(call, call.get(1, "dim"), "each value depends on others along the axis")


@rules("normalize", effect=Effect.NO_HIDDEN_SUM)
def _normalize(call: Call) -> LabelledTensor:
    return _along(call, call.get(2, "dim", 1), "a norm over the axis")


@family_rule(Effect.NO_HIDDEN_SUM)
def gated_unit(call: Call) -> LabelledTensor:
    dim = getattr(call.module, "dim", call.get(1, "dim", -1)) % call.x.ndim
    for family in call.x.along(dim):
        half = family.shape[dim] // 2
        call.space.join(family.narrow(dim, 0, half), family.narrow(dim, half, half), call.reason("halves of a gate"))
    return call.out(family.narrow(dim, 0, call.shape[dim]) for family in call.x.families)


@family_rule(Effect.NO_HIDDEN_SUM)
def softmax_layer(call: Call) -> LabelledTensor:
    assert call.module is not None
    dim = -3 if isinstance(call.module, nn.Softmax2d) else getattr(call.module, "dim", None)
    return _along(call, dim, "each value depends on others along the axis")


# --- reductions -------------------------------------------------------------------------------------------------

EXACT_SUMS = ("sum", "nansum", "any", "count_nonzero")


@rules("mean", "sum", "amax", "amin", "std", "var", "norm", "prod", "all", "any", "logsumexp", "std_mean", "var_mean")
@rules("nanmean", "nansum", "count_nonzero", effect=Effect.NO_HIDDEN_SUM)
def _reduction(call: Call) -> Any:
    if call.op == "norm" and not isinstance(call.get(2, "dim"), int | tuple | list):
        dim: Any = None
    else:
        dim = call.get(2 if call.op == "norm" else 1, "dim")
    if isinstance(dim, bool) or (dim is not None and not isinstance(dim, int | tuple | list)):
        dim = None
    return reduced(call, call.x, _dims(call.x, dim))


@rules("vector_norm", "linalg_vector_norm", effect=Effect.NO_HIDDEN_SUM)
def _vector_norm(call: Call) -> Any:
    return reduced(call, call.x, _dims(call.x, call.get(2, "dim")))


@rules("max", "min", "median", effect=Effect.NO_HIDDEN_SUM)
def _extremum(call: Call) -> Any:
    """Compute the extremum of two tensors by element, or of one along an axis, with its positions."""
    if len(call.acts) == 2:
        return elementwise(call)
    dim = call.get(1, "dim")
    if dim is not None and not all(_takes_values(user) for user in call.node.users):
        call.freeze(call.x.along(dim), "positions along the axis are returned")
    return reduced(call, call.x, _dims(call.x, dim))


def _takes_values(user: fx.Node) -> bool:
    """True if a node reads the values and not the positions."""
    return user.target in (operator.getitem, getattr) and user.args[1] in (0, "values")


@rules("argmax", "argmin", effect=Effect.NO_HIDDEN_SUM)
def _argmax(call: Call) -> Any:
    dims = _dims(call.x, call.get(1, "dim"))
    call.freeze((family for dim in dims for family in call.x.along(dim)), "positions along the axis are returned")
    return reduced(call, call.x, dims)


def reduced(call: Call, x: LabelledTensor, dims: Iterable[int]) -> Any:
    """Return the labels left when axes are reduced, with the axes of the call's result."""
    gone = set(dims)
    if call.op not in EXACT_SUMS:
        call.inexact(x, gone, f"the {call.op} is taken over the axis")
    elif any(map(_is_left_by_zeros, call.node.all_input_nodes)):
        call.inexact(x, gone, f"the {call.op} is taken over values that a channel of zeros does not make zero")
    letters = string.ascii_letters[: x.ndim]
    output = "".join(letter for dim, letter in enumerate(letters) if dim not in gone)
    left = contract(call, [(x, letters)], output, weights=False)
    results = call.result if isinstance(call.result, tuple | list) else (call.result,)
    acts = tuple(_insert_axes(left, gone, tuple(result.shape)) for result in results)
    return acts if isinstance(call.result, tuple | list) else acts[0]


_NOT_ZERO_AT_ZERO = frozenset({
    "acos", "cos", "cosh", "erfc", "exp", "exp2", "hardsigmoid", "log", "logsigmoid", "reciprocal", "rsqrt", "sigmoid",
    "softplus",
})  # fmt: skip
_PRODUCTS = ("mul", "imul")
_QUOTIENTS = ("truediv", "div", "itruediv")


_FARTHEST = 50  # operations that are followed back; a scan has thousands


def _is_left_by_zeros(node: fx.Node, far: int = 0, known: dict[fx.Node, bool] | None = None) -> bool:
    """True if a value is not zero where the channel that it is computed from is, as an exponential is not."""
    known = {} if known is None else known
    if node not in known:
        known[node] = False  # until it is told
        known[node] = far < _FARTHEST and _found_left(node, lambda one: _is_left_by_zeros(one, far + 1, known))
    return known[node]


def _found_left(node: fx.Node, is_left: Callable[[fx.Node], bool]) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    name = op_name(node, None)
    if name in _NOT_ZERO_AT_ZERO:
        return True
    if name in _PRODUCTS:
        return all(map(is_left, node.all_input_nodes))
    if name in _QUOTIENTS:
        return isinstance(node.args[0], fx.Node) and is_left(node.args[0])
    return effect_of(rule_for(node, None)) is Effect.ELEMENTWISE and any(map(is_left, node.all_input_nodes))


def _insert_axes(act: LabelledTensor, gone: set[int], shape: tuple[int, ...]) -> LabelledTensor:
    if len(shape) == act.ndim:
        return act
    families = []
    for family in act.families:
        for dim in sorted(gone):
            family = family.unsqueeze(dim)
        families.append(collapsed(family))
    return LabelledTensor(shape, tuple(families), act.constant)


# --- random ----------------------------------------------------------------------------------------------------


@rules("bernoulli", "normal", "uniform", effect=Effect.NO_HIDDEN_SUM)
def _random(call: Call) -> LabelledTensor:
    return call.out(call.x.families, constant=torch.is_tensor(call.result) and call.x.constant)

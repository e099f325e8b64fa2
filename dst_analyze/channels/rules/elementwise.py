"""Rules for operations that compute each element from the elements at its place, and for reductions and norms."""

from __future__ import annotations

import operator
import string
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.channels.contraction import contract, join_elementwise
from dst_analyze.channels.labels import collapsed
from dst_analyze.channels.rule_call import Act, Call, Effect, frozen_module, module_rule, rules

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
)
_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid,
    nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Hardshrink, nn.Softplus,
    nn.Softshrink, nn.Softsign, nn.Threshold, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
    nn.AlphaDropout, nn.FeatureAlphaDropout,
)
# fmt: on


@rules(*_ELEMENTWISE, effect=Effect.ELEMENTWISE)
def elementwise(call: Call) -> Act:
    return join_elementwise(call, call.acts, call.shape)


for _kind in _MODULES:
    module_rule(_kind, elementwise)


@rules("to", "type_as", effect=Effect.NO_HIDDEN_SUM)
def _converted(call: Call) -> Act:
    """Another tensor may say of which type; it does not meet this one."""
    return call.out(call.x.families, call.x.constant)


@rules("_weight_norm", effect=Effect.NO_HIDDEN_SUM)
def _weight_norm(call: Call) -> Any:
    direction = call.x
    dim = call.get(2, "dim", 0)
    call.inexact(direction, (d for d in range(direction.ndim) if d != dim), "a norm over the weights")
    return elementwise(call)


@rules("tril", "triu", effect=Effect.NO_HIDDEN_SUM)
def _triangle(call: Call) -> Act:
    return call.out(call.without(call.x, (-1, -2), "places along a triangle"))


# --- along one axis ---------------------------------------------------------------------------------------------


def _dims(act: Act, dim: Any) -> list[int]:
    if dim is None:
        return list(range(act.ndim))
    return [d % act.ndim for d in (dim if isinstance(dim, tuple | list) else [dim])]


def _along(call: Call, dim: Any, why: str) -> Act:
    call.inexact(call.x, _dims(call.x, dim), why)
    return call.out(call.x.families)


@rules("softmax", "log_softmax", "softmin", "cumsum", "cumprod", "logcumsumexp", effect=Effect.NO_HIDDEN_SUM)
def _softmax(call: Call) -> Act:
    return _along(call, call.get(1, "dim"), "each value depends on all along the axis")


@rules("normalize", effect=Effect.NO_HIDDEN_SUM)
def _normalize(call: Call) -> Act:
    return _along(call, call.get(2, "dim", 1), "a norm over the axis")


@rules("glu", effect=Effect.NO_HIDDEN_SUM)
def _glu(call: Call) -> Act:
    dim = getattr(call.module, "dim", call.get(1, "dim", -1)) % call.x.ndim
    for family in call.x.along(dim):
        half = family.shape[dim] // 2
        call.space.join(family.narrow(dim, 0, half), family.narrow(dim, half, half), call.reason("halves of a gate"))
    return call.out(family.narrow(dim, 0, call.shape[dim]) for family in call.x.families)


def _softmax_module(call: Call) -> Act:
    assert call.module is not None
    dim = -3 if isinstance(call.module, nn.Softmax2d) else getattr(call.module, "dim", None)
    return _along(call, dim, "each value depends on all along the axis")


module_rule(nn.GLU, _glu)
module_rule(nn.Softmax2d, _softmax_module, effect=Effect.NO_HIDDEN_SUM)
module_rule(nn.Softmax, _softmax_module, effect=Effect.NO_HIDDEN_SUM)
module_rule(nn.LogSoftmax, _softmax_module, effect=Effect.NO_HIDDEN_SUM)
module_rule(nn.Softmin, _softmax_module, effect=Effect.NO_HIDDEN_SUM)


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
    """Of two tensors, element by element; of one along an axis, with the places where it was found."""
    if len(call.acts) == 2:
        return elementwise(call)
    dim = call.get(1, "dim")
    if dim is not None and not all(_takes_values(user) for user in call.node.users):
        call.freeze(call.x.along(dim), "its places are counted")
    return reduced(call, call.x, _dims(call.x, dim))


def _takes_values(user: fx.Node) -> bool:
    """Whether a node takes the first of two results, and leaves the places where it was found alone."""
    return user.target in (operator.getitem, getattr) and user.args[1] in (0, "values")


@rules("argmax", "argmin", effect=Effect.NO_HIDDEN_SUM)
def _place(call: Call) -> Any:
    dims = _dims(call.x, call.get(1, "dim"))
    call.freeze((family for dim in dims for family in call.x.along(dim)), "its places are counted")
    return reduced(call, call.x, dims)


def reduced(call: Call, x: Act, dims: Iterable[int]) -> Any:
    """The labels left when axes are reduced; whether they are kept with length 1 is seen from the result."""
    gone = set(dims)
    if call.op not in EXACT_SUMS:
        call.inexact(x, gone, f"the {call.op} is taken over the axis")
    letters = string.ascii_letters[: x.ndim]
    output = "".join(letter for dim, letter in enumerate(letters) if dim not in gone)
    left = contract(call, [(x, letters)], output, weights=False)
    results = call.result if isinstance(call.result, tuple | list) else (call.result,)
    acts = tuple(_kept(left, gone, tuple(result.shape)) for result in results)
    return acts if isinstance(call.result, tuple | list) else acts[0]


def _kept(act: Act, gone: set[int], shape: tuple[int, ...]) -> Act:
    if len(shape) == act.ndim:
        return act
    families = []
    for family in act.families:
        for dim in sorted(gone):
            family = family.unsqueeze(dim)
        families.append(collapsed(family))
    return Act(shape, tuple(families), act.constant)


# --- norms ------------------------------------------------------------------------------------------------------


def normalised(call: Call, x: Act, weights: Iterable[Act | None], dims: int) -> Act:
    """Layer and RMS norm: statistics over the last ``dims`` axes, scale and shift of that shape."""
    call.inexact(x, range(-dims, 0), "a norm over the axis")
    return join_elementwise(call, [x, *(weight for weight in weights if weight is not None)], call.shape)


@rules("layer_norm", "rms_norm", effect=Effect.NO_HIDDEN_SUM)
def _layer_norm(call: Call) -> Act:
    weights = [w for w in (call.get(2, "weight"), call.get(3, "bias")) if isinstance(w, Act)]
    return _restored(normalised(call, call.x, weights, len(call.get(1, "normalized_shape"))), call.x)


def _layer_norm_module(call: Call) -> Act:
    dims = len(call.module.normalized_shape)  # type: ignore[union-attr, arg-type]
    count = max(1, *(len(call.x.along(-1 - dim)) for dim in range(dims)))
    weights = [call.parameter(name, range(dims), count) for name in ("weight", "bias")]
    return _restored(normalised(call, call.x, weights, dims), call.x)


def _restored(act: Act, x: Act) -> Act:
    return Act(act.shape, act.families, x.constant)


def channel_norm(call: Call, x: Act, tensors: Iterable[Act | None]) -> Act:
    """Per-channel scale, shift and statistics along axis 1 (or 0, unbatched)."""
    families = [spread_to(call, x, tensor, channel_dim(x, call)) for tensor in tensors if tensor is not None]
    return _restored(join_elementwise(call, [x, *families], call.shape), x)


def channel_dim(x: Act, call: Call) -> int:
    """Axis 1; of an unbatched input to a layer that knows its dimensions, axis 0."""
    kind = type(call.module).__name__ if call.module is not None else ""
    spatial = next((int(digit) for digit in kind if digit in "123"), None)
    return 0 if "InstanceNorm" in kind and spatial is not None and x.ndim == spatial + 1 else 1


def spread_to(call: Call, x: Act, vector: Act, dim: int) -> Act:
    """A vector per channel, in the shape that meets an activation."""
    if vector.ndim != 1:
        call.freeze((*x.families, *vector.families), "statistics of an unusual shape")
        return Act((1,) * x.ndim, (), True)
    shape = [1] * x.ndim
    shape[dim] = vector.shape[0]
    return Act(tuple(shape), tuple(family.view(shape) for family in vector.families), True)


def _batch_norm_module(call: Call) -> Any:
    module: Any = call.module
    if not type(module).forward.__module__.startswith("torch.") and not _is_per_channel(call):
        return frozen_module(call)
    count = max(1, len(call.x.along(channel_dim(call.x, call))))
    names = ("weight", "bias", "running_mean", "running_var")
    return channel_norm(call, call.x, [call.parameter(name, [0], count) for name in names])


def _is_per_channel(call: Call) -> bool:
    """Of a batch norm with a forward of its own: whether its channels ignore each other, by trying."""
    assert call.module is not None
    x = call.indices()[0]
    if not isinstance(x, torch.Tensor) or x.ndim < 2 or call.shape != tuple(x.shape):
        return False
    other = x.clone()
    other[:, 1::2] += 1
    return bool(torch.equal(call.module(x)[:, ::2], call.module(other)[:, ::2]))


@rules("batch_norm", "instance_norm", effect=Effect.PER_CHANNEL)
def _batch_norm(call: Call) -> Act:
    return channel_norm(call, call.x, call.acts[1:])


@rules("prelu", effect=Effect.PER_CHANNEL)
def _prelu(call: Call) -> Act:
    weight = call.acts[1]
    return channel_norm(call, call.x, [weight] if weight.shape != (1,) and weight.ndim else [])


def _prelu_module(call: Call) -> Act:
    weight = call.parameter("weight", [0], max(1, len(call.x.along(1)) if call.x.ndim > 1 else 1))
    assert weight is not None
    return channel_norm(call, call.x, [weight] if weight.shape != (1,) else [])


def _group_norm(call: Call, x: Act, groups: int, tensors: Iterable[Act | None]) -> Act:
    """Groups keep equal sizes: whole groups leave (exactly) where there are many, else the same place in each."""
    for family in x.along(1):
        channels = call.only_along(family, 1).view(groups, -1)
        whole = groups >= channels.shape[1]
        call.space.join_along(channels, [1 if whole else 0], call.reason("groups of equal size"))
        if not whole:
            call.space.inexact(channels, [1], call.reason("a norm over the channels of a group"))
    return channel_norm(call, x, tensors)


@rules("group_norm", effect=Effect.NO_HIDDEN_SUM)
def _group_norm_function(call: Call) -> Act:
    return _group_norm(call, call.x, call.get(1, "num_groups"), call.acts[1:])


def _group_norm_module(call: Call) -> Act:
    tensors = [call.parameter(name, [0], max(1, len(call.x.along(1)))) for name in ("weight", "bias")]
    return _group_norm(call, call.x, int(call.module.num_groups), tensors)  # type: ignore[union-attr, arg-type]


module_rule(nn.LayerNorm, _layer_norm_module, effect=Effect.NO_HIDDEN_SUM)
module_rule(nn.RMSNorm, _layer_norm_module, effect=Effect.NO_HIDDEN_SUM)
module_rule(nn.modules.batchnorm._NormBase, _batch_norm_module, effect=Effect.PER_CHANNEL)
module_rule(nn.GroupNorm, _group_norm_module, effect=Effect.NO_HIDDEN_SUM)
module_rule(nn.PReLU, _prelu_module, effect=Effect.PER_CHANNEL)


@rules("bernoulli", "normal", "uniform", effect=Effect.NO_HIDDEN_SUM)
def _random(call: Call) -> Act:
    return call.out(call.x.families, constant=torch.is_tensor(call.result) and call.x.constant)

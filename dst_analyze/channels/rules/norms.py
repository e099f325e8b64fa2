"""Rules for normalisation layers, and for PReLU, which also has one parameter per channel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dst_analyze.channels.contraction import join_elementwise
from dst_analyze.channels.rule_call import Call, Effect, LabelledTensor, family_rule, frozen_module


def normalised(call: Call, x: LabelledTensor, weights: Iterable[LabelledTensor | None], dims: int) -> LabelledTensor:
    """Return the labels of a layer or RMS norm over the last ``dims`` axes."""
    call.inexact(x, range(-dims, 0), "a norm over the axis")
    return join_elementwise(call, [x, *(weight for weight in weights if weight is not None)], call.shape)


@family_rule(Effect.NO_HIDDEN_SUM)
def layer_norm_function(call: Call) -> LabelledTensor:
    weights = [w for w in (call.get(2, "weight"), call.get(3, "bias")) if isinstance(w, LabelledTensor)]
    return _restored(normalised(call, call.x, weights, len(call.get(1, "normalized_shape"))), call.x)


@family_rule(Effect.NO_HIDDEN_SUM)
def layer_norm_layer(call: Call) -> LabelledTensor:
    dims = len(call.module.normalized_shape)  # type: ignore[union-attr, arg-type]
    count = max(1, *(len(call.x.along(-1 - dim)) for dim in range(dims)))
    weights = [call.parameter(name, range(dims), count) for name in ("weight", "bias")]
    return _restored(normalised(call, call.x, weights, dims), call.x)


def _restored(act: LabelledTensor, x: LabelledTensor) -> LabelledTensor:
    return LabelledTensor(act.shape, act.families, x.constant)


def channel_norm(call: Call, x: LabelledTensor, tensors: Iterable[LabelledTensor | None]) -> LabelledTensor:
    """Return the labels of a norm with scale, shift and statistics per channel."""
    families = [spread_to(call, x, tensor, channel_dim(x, call)) for tensor in tensors if tensor is not None]
    return _restored(join_elementwise(call, [x, *families], call.shape), x)


def channel_dim(x: LabelledTensor, call: Call) -> int:
    """Return the channel axis: 0 for an unbatched input of an instance norm, else 1."""
    kind = type(call.module).__name__ if call.module is not None else ""
    spatial = next((int(digit) for digit in kind if digit in "123"), None)
    return 0 if "InstanceNorm" in kind and spatial is not None and x.ndim == spatial + 1 else 1


def spread_to(call: Call, x: LabelledTensor, vector: LabelledTensor, dim: int) -> LabelledTensor:
    """Return a vector with one value per channel, in a shape that broadcasts against the activation."""
    if vector.ndim != 1:
        call.freeze((*x.families, *vector.families), "statistics of an unusual shape")
        return LabelledTensor((1,) * x.ndim, (), True)
    shape = [1] * x.ndim
    shape[dim] = vector.shape[0]
    return LabelledTensor(tuple(shape), tuple(family.view(shape) for family in vector.families), True)


@family_rule(Effect.PER_CHANNEL)
def batch_norm_layer(call: Call) -> Any:
    module: Any = call.module
    if not type(module).forward.__module__.startswith("torch.") and not _is_per_channel(call):
        return frozen_module(call)
    count = max(1, len(call.x.along(channel_dim(call.x, call))))
    names = ("weight", "bias", "running_mean", "running_var")
    return channel_norm(call, call.x, [call.parameter(name, [0], count) for name in names])


def _is_per_channel(call: Call) -> bool:
    """True if a user's batch norm keeps channels apart, found by changing every other channel."""
    assert call.module is not None
    x = call.indices()[0]
    if not isinstance(x, torch.Tensor) or x.ndim < 2 or call.shape != tuple(x.shape):
        return False
    other = x.clone()
    other[:, 1::2] += 1
    return bool(torch.equal(call.module(x)[:, ::2], call.module(other)[:, ::2]))


@family_rule(Effect.PER_CHANNEL)
def batch_norm_function(call: Call) -> LabelledTensor:
    return channel_norm(call, call.x, call.acts[1:])


@family_rule(Effect.PER_CHANNEL)
def prelu_function(call: Call) -> LabelledTensor:
    weight = call.acts[1]
    return channel_norm(call, call.x, [weight] if weight.shape != (1,) and weight.ndim else [])


@family_rule(Effect.PER_CHANNEL)
def prelu_layer(call: Call) -> LabelledTensor:
    weight = call.parameter("weight", [0], max(1, len(call.x.along(1)) if call.x.ndim > 1 else 1))
    assert weight is not None
    return channel_norm(call, call.x, [weight] if weight.shape != (1,) else [])


def _group_norm(call: Call, x: LabelledTensor, groups: int, tensors: Iterable[LabelledTensor | None]) -> LabelledTensor:
    """Join channels so that groups keep equal sizes: whole groups if there are many, or by place."""
    for family in x.along(1):
        channels = call.only_along(family, 1).view(groups, -1)
        whole = groups >= channels.shape[1]
        call.space.join_along(channels, [1 if whole else 0], call.reason("groups of equal size"))
        if not whole:
            call.space.inexact(channels, [1], call.reason("a norm over the channels of a group"))
    return channel_norm(call, x, tensors)


@family_rule(Effect.NO_HIDDEN_SUM)
def group_norm_function(call: Call) -> LabelledTensor:
    return _group_norm(call, call.x, call.get(1, "num_groups"), call.acts[1:])


@family_rule(Effect.NO_HIDDEN_SUM)
def group_norm_layer(call: Call) -> LabelledTensor:
    tensors = [call.parameter(name, [0], max(1, len(call.x.along(1)))) for name in ("weight", "bias")]
    return _group_norm(call, call.x, int(call.module.num_groups), tensors)  # type: ignore[union-attr, arg-type]

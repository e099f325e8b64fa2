"""Rules for convolutions, including grouped, depthwise and transposed ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dst_analyze.channels.contraction import contract, join_elementwise
from dst_analyze.channels.labels import Granularity, spread, varying
from dst_analyze.channels.rule_call import Call, LabelledTensor
from dst_analyze.channels.rules.linear import combined


def convolution(
    call: Call,
    x: LabelledTensor,
    weight: LabelledTensor,
    bias: LabelledTensor | None,
    groups: int,
    *,
    transposed: bool = False,
) -> LabelledTensor:
    """Join the channels of a convolution; kernels keep their size.

    The weight is [out, in / groups, ...], that of a transposed convolution [in, out / groups, ...].
    """
    channel = x.ndim - weight.ndim + 1
    if groups > 1 and not weight.constant:  # groups are samples here, each with a different kernel
        call.freeze((*x.families, *weight.families, *(bias.families if bias is not None else ())), "kernels per sample")
        return call.out([])
    for dim in range(2, weight.ndim):
        call.freeze(weight.along(dim), "the size of a kernel")
        call.freeze((f for f in x.along(dim + channel - 1) if channel not in varying(f)), "convolved along the axis")
    read, made = weight.along(0 if transposed else 1), weight.along(1 if transposed else 0)
    inputs = [call.only_along(family, channel) for family in x.along(channel)]
    reads = [call.only_along(family, 0 if transposed else 1) for family in read]
    makes = [call.only_along(family, 1 if transposed else 0) for family in made]
    in_, out = x.shape[channel], call.shape[channel]
    if groups == 1:
        contract(
            call,
            [(_vector(inputs, in_), "i"), (LabelledTensor((in_,), tuple(reads), weight.constant), "i")],
            "",
        )
        for labels in makes:
            call.space.role("produces", labels)
    elif transposed:
        makes = _grouped(call, inputs, makes, reads, groups, in_, out, transposed=True)
    else:
        makes = _grouped(call, inputs, makes, reads, groups, in_, out, transposed=False)
    families = [spread(labels, channel, call.shape) for labels in makes]
    small = [f for f in x.families if all(dim < channel for dim in varying(f))]
    for family in small:
        for dim in range(channel, x.ndim):
            family = family.narrow(dim, 0, 1)
        families.append(family.expand(call.shape))
    result = LabelledTensor(call.shape, tuple(families), x.constant and weight.constant)
    if bias is not None:
        shape = (bias.shape[0], *[1] * (x.ndim - channel - 1))
        result = join_elementwise(
            call, [result, LabelledTensor(shape, tuple(f.view(shape) for f in bias.families), True)], call.shape
        )
    return call.out(result.families)


def groups_leave_whole(groups: int, in_: int, out: int) -> bool:
    """True if there are at least as many groups as channels within one: then groups are removed whole."""
    return groups >= min(in_, out) // groups


def _vector(families: list[torch.Tensor], length: int) -> LabelledTensor:
    return LabelledTensor((length,), tuple(families))


def _grouped(
    call: Call,
    inputs: list[torch.Tensor],
    makes: list[torch.Tensor],
    reads: list[torch.Tensor],
    groups: int,
    in_: int,
    out: int,
    *,
    transposed: bool,
) -> list[torch.Tensor]:
    """Join channels so that groups keep equal sizes: whole groups if there are many, else by place.

    If that leaves nothing to remove, as where the output is fixed, it is done the other way.

    One axis of the weight numbers all channels of its side, the other only those within a group.
    """
    why = call.reason("groups of equal size" if inputs else "is combined with a tensor of fixed size")
    full, inner = (reads, makes) if transposed else (makes, reads)
    if len(inputs) > 1:
        call.freeze((*inputs, *makes, *reads), "several channel axes meet in one")
        return []
    made = call.space.fresh(out) if transposed else (full[0] if full else torch.zeros(out, dtype=torch.int32))
    entering = inputs[0] if inputs else torch.zeros(in_, dtype=torch.int32)
    if transposed and full:
        call.space.join(entering, full[0], why)
    for labels in full:
        call.space.role("reads" if transposed else "produces", labels)
    if transposed:
        call.space.role("produces", made)
    ins, outs = entering.view(groups, -1), made.view(groups, -1)
    whole = Granularity(((ins, ins[:, :1]), (outs, outs[:, :1]), (ins[:, 0], outs[:, 0])), (), why)
    inside = tuple(inner)
    whole = replace(whole, whole=inside) if call.module is not None else replace(whole, stays=inside)
    within = outs[0] if transposed else ins[0]
    placed = Granularity(((ins, ins[:1]), (outs, outs[:1]), *((labels, within) for labels in inner)), (), why)
    first, second = (whole, placed) if groups_leave_whole(groups, in_, out) else (placed, whole)
    # Groups of one channel leave no choice; the number of a transposed convolution's groups is read off its sizes.
    call.space.choose(first, first if transposed or groups == in_ == out else second)
    if first is whole:
        for labels in full:
            call.space.role("produces", labels)
    else:
        for labels in inner:
            call.space.role("produces" if transposed else "reads", labels)
    return [made]


def convolution_function(call: Call) -> LabelledTensor:
    bias = call.get(2, "bias")
    return convolution(
        call,
        call.get(0, "input"),
        call.get(1, "weight"),
        bias if isinstance(bias, LabelledTensor) else None,
        call.get(6, "groups", 1),
        transposed="transpose" in call.op,
    )


def convolution_layer(call: Call) -> LabelledTensor:
    module: Any = call.module
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    reads, makes = ([0], [1]) if transposed else ([1], [0])
    count = max(1, len(call.x.along(call.x.ndim - module.weight.ndim + 1)))
    if transposed and module.groups > 1 and groups_leave_whole(module.groups, module.in_channels, module.out_channels):
        reads, makes = [0], []  # the axis of places within a group stays
    weight, read = call.parameter("weight", makes), call.parameter("weight", reads, count)
    assert weight is not None
    assert read is not None
    bias = call.parameter("bias", [0])
    return convolution(call, call.x, combined(weight, read), bias, module.groups, transposed=transposed)

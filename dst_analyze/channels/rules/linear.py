"""Rules for what multiplies by weights: linear layers, convolutions, embeddings, and contractions of activations."""

from __future__ import annotations

import string
from typing import Any

import torch
from torch import nn

from dst_analyze.channels.contraction import contract, join_elementwise, parse_einsum
from dst_analyze.channels.labels import collapsed, spread, varying
from dst_analyze.channels.rule_call import Act, Call, module_rule, rules


def _lead(ndim: int) -> str:
    return string.ascii_uppercase[:ndim]


def linear(call: Call, x: Act, weight: Act, bias: Act | None) -> Act:
    """x [..., i] and weight [o, i]."""
    lead = _lead(x.ndim - 1)
    if x.constant:  # a table of coordinates made into biases: which operand is the weight cannot be told later on
        for family in weight.families:
            call.space.role("reads" if weight.ndim - 1 in varying(family) else "produces", family)
    letters = [(x, f"{lead}i"), (weight, "oi" if weight.ndim == 2 else "i")]
    out = contract(call, letters, lead + "o" * (weight.ndim == 2), weights=not x.constant)
    return join_elementwise(call, [out, bias], out.shape) if bias is not None else out


@rules("linear")
def _linear(call: Call) -> Act:
    bias = call.get(2, "bias")
    return linear(call, call.get(0, "input"), call.get(1, "weight"), bias if isinstance(bias, Act) else None)


def _linear_module(call: Call) -> Act:
    weight = call.parameter("weight", [0])
    read = call.parameter("weight", [1], max(1, len(call.x.along(-1))))
    assert weight is not None
    assert read is not None
    return linear(call, call.x, _both(weight, read), call.parameter("bias", [0]))


def _both(one: Act, other: Act) -> Act:
    return Act(one.shape, (*one.families, *other.families), True)


def _bilinear_module(call: Call) -> Act:
    one, two = call.acts
    weight, bias = call.parameter("weight", [0, 1, 2]), call.parameter("bias", [0])
    assert weight is not None
    lead = _lead(one.ndim - 1)
    out = contract(call, [(one, f"{lead}i"), (two, f"{lead}j"), (weight, "oij")], f"{lead}o")
    return join_elementwise(call, [out, bias], out.shape) if bias is not None else out


# --- convolutions -----------------------------------------------------------------------------------------------


def convolution(call: Call, x: Act, weight: Act, bias: Act | None, groups: int, *, transposed: bool = False) -> Act:
    """Weight [out, in / groups, ...], or transposed [in, out / groups, ...]; kernels stay whole."""
    channel = x.ndim - weight.ndim + 1
    if groups > 1 and not weight.constant:  # samples laid side by side, each with a kernel of its own
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
            [(_vector(inputs, in_), "i"), (Act((in_,), tuple(reads), weight.constant), "i")],
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
    result = Act(call.shape, tuple(families), x.constant and weight.constant)
    if bias is not None:
        shape = (bias.shape[0], *[1] * (x.ndim - channel - 1))
        result = join_elementwise(
            call, [result, Act(shape, tuple(f.view(shape) for f in bias.families), True)], call.shape
        )
    return call.out(result.families)


def groups_leave_whole(groups: int, in_: int, out: int) -> bool:
    """Whether there are more groups than places within one: then groups leave as a whole."""
    return groups >= min(in_, out) // groups


def _vector(families: list[torch.Tensor], length: int) -> Act:
    return Act((length,), tuple(families))


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
    """The same number in every group: whole groups leave where there are many, else the same place in each group.

    One axis of the weight numbers all channels of its side, the other only those within a group.
    """
    why = call.reason("groups of equal size" if inputs else "meets an axis of fixed size")
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
    if groups_leave_whole(groups, in_, out):
        call.freeze(inner, "groups are kept or removed whole")
        for labels in full:
            call.space.role("produces", labels)
        call.space.join(ins, ins[:, :1].contiguous(), why)
        call.space.join(outs, outs[:, :1].contiguous(), why)
        call.space.join(ins[:, 0], outs[:, 0], why)
    else:
        call.space.join(ins, ins[:1].contiguous(), why)
        call.space.join(outs, outs[:1].contiguous(), why)
        for labels in inner:
            call.space.join(labels, outs[0] if transposed else ins[0], why)
            call.space.role("produces" if transposed else "reads", labels)
    return [made]


@rules("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv(call: Call) -> Act:
    bias = call.get(2, "bias")
    return convolution(
        call,
        call.get(0, "input"),
        call.get(1, "weight"),
        bias if isinstance(bias, Act) else None,
        call.get(6, "groups", 1),
        transposed="transpose" in call.op,
    )


def _conv_module(call: Call) -> Act:
    module: Any = call.module
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    reads, makes = ([0], [1]) if transposed else ([1], [0])
    count = max(1, len(call.x.along(call.x.ndim - module.weight.ndim + 1)))
    if module.groups > 1 and groups_leave_whole(module.groups, module.in_channels, module.out_channels):
        reads, makes = ([0], []) if transposed else ([], [0])  # one axis numbers places within a group: those stay
    weight, read = call.parameter("weight", makes), call.parameter("weight", reads, count)
    assert weight is not None
    assert read is not None
    bias = call.parameter("bias", [0])
    return convolution(call, call.x, _both(weight, read), bias, module.groups, transposed=transposed)


# --- embeddings -------------------------------------------------------------------------------------------------


@rules("embedding")
def _embedding(call: Call) -> Act:
    weight: Act = call.get(1, "weight")
    call.freeze(weight.along(0), "one entry per token")
    for family in weight.along(1):
        call.space.role("produces", family)
    made = [spread(f[0], len(call.shape) - 1, call.shape) for f in weight.along(1)]
    return call.out(made, constant=False)


def _embedding_module(call: Call) -> Act:
    weight = call.parameter("weight", [0, 1])
    assert weight is not None
    call.freeze((family for act in call.acts for family in act.families), "used as an index")
    call.freeze(weight.along(0), "one entry per token")
    for family in weight.along(1):
        call.space.role("produces", family)
    return call.out([spread(f[0], len(call.shape) - 1, call.shape) for f in weight.along(1)], constant=False)


# --- products of activations ------------------------------------------------------------------------------------


@rules("matmul", "bmm", "mm", "mv", "__matmul__")
def _matmul(call: Call) -> Act:
    return product(call, call.acts[0], call.acts[1])


def product(call: Call, a: Act, b: Act) -> Act:
    if a.ndim == 1 or b.ndim == 1:
        one = "i" if a.ndim == 1 else f"{_lead(a.ndim - 2)}li"
        two = "i" if b.ndim == 1 else f"{_lead(b.ndim - 2)}ir"
        return contract(call, [(a, one), (b, two)], (one + two).replace("i", ""))
    batch = string.ascii_uppercase[: max(a.ndim, b.ndim) - 2]
    one, two = f"{batch[len(batch) - a.ndim + 2 :]}li", f"{batch[len(batch) - b.ndim + 2 :]}ir"
    return contract(call, [(a, one), (b, two)], f"{batch}lr")


@rules("addmm", "baddbmm")
def _added(call: Call) -> Act:
    start, a, b = call.acts
    return join_elementwise(call, [start, product(call, a, b)], call.shape)


@rules("einsum")
def _einsum(call: Call) -> Act:
    spelt = parse_einsum(call.args[0], [act.ndim for act in call.acts])
    if spelt is None:
        equation = call.args[0] if isinstance(call.args[0], str) else "without an equation"
        call.freeze((family for act in call.acts for family in act.families), f"the einsum {equation}")
        return call.out([])
    inputs, output = spelt
    return contract(call, list(zip(call.acts, inputs, strict=True)), output)


@rules("scaled_dot_product_attention")
def _attention(call: Call) -> Act:
    query, key, value = call.acts[:3]
    mask = call.get(3, "attn_mask")
    if call.get(7, "enable_gqa", False):
        key, value = (_for_each_query(act, query.shape[-3]) for act in (key, value))
    batch = _lead(query.ndim - 2)
    scores = contract(call, [(query, f"{batch}ld"), (key, f"{batch}sd")], f"{batch}ls")
    if isinstance(mask, Act):
        scores = join_elementwise(call, [scores, mask], scores.shape)
    return contract(call, [(scores, f"{batch}ls"), (value, f"{batch}sv")], f"{batch}lv")


def _for_each_query(act: Act, heads: int) -> Act:
    """Keys or values of grouped queries, each head as often as there are queries that look at it."""
    times, shape = heads // act.shape[-3], (*act.shape[:-3], heads, *act.shape[-2:])
    return Act(shape, tuple(collapsed(family.repeat_interleave(times, -3)) for family in act.families), act.constant)


module_rule(nn.Linear, _linear_module)
module_rule(nn.Bilinear, _bilinear_module)
module_rule(nn.modules.conv._ConvNd, _conv_module)
module_rule(nn.Embedding, _embedding_module)
module_rule(nn.EmbeddingBag, _embedding_module)

"""Rules for linear layers, embeddings, and products of activations."""

from __future__ import annotations

import string

from dst_analyze.channels.contraction import contract, join_elementwise, parse_einsum
from dst_analyze.channels.labels import spread, varying
from dst_analyze.channels.rule_call import Call, Effect, LabelledTensor, family_rule


def lead_letters(ndim: int) -> str:
    """Return letters for the leading axes of a tensor, for use in an einsum."""
    return string.ascii_uppercase[:ndim]


def linear(call: Call, x: LabelledTensor, weight: LabelledTensor, bias: LabelledTensor | None) -> LabelledTensor:
    """Join the channels of x [..., i] and weight [o, i]."""
    lead = lead_letters(x.ndim - 1)
    if x.constant:  # as in biases from a table of coordinates: `contract` cannot know which operand is the weight
        for family in weight.families:
            call.space.role("reads" if weight.ndim - 1 in varying(family) else "produces", family)
    letters = [(x, f"{lead}i"), (weight, "oi" if weight.ndim == 2 else "i")]
    out = contract(call, letters, lead + "o" * (weight.ndim == 2), weights=not x.constant)
    return join_elementwise(call, [out, bias], out.shape) if bias is not None else out


def linear_function(call: Call) -> LabelledTensor:
    bias = call.get(2, "bias")
    return linear(call, call.get(0, "input"), call.get(1, "weight"), bias if isinstance(bias, LabelledTensor) else None)


def linear_layer(call: Call) -> LabelledTensor:
    weight = call.parameter("weight", [0])
    read = call.parameter("weight", [1], max(1, len(call.x.along(-1))))
    assert weight is not None
    assert read is not None
    return linear(call, call.x, combined(weight, read), call.parameter("bias", [0]))


def combined(one: LabelledTensor, other: LabelledTensor) -> LabelledTensor:
    """Return one weight with the families of two."""
    return LabelledTensor(one.shape, (*one.families, *other.families), True)


def bilinear_layer(call: Call) -> LabelledTensor:
    one, two = call.acts
    weight, bias = call.parameter("weight", [0, 1, 2]), call.parameter("bias", [0])
    assert weight is not None
    lead = lead_letters(one.ndim - 1)
    out = contract(call, [(one, f"{lead}i"), (two, f"{lead}j"), (weight, "oij")], f"{lead}o")
    return join_elementwise(call, [out, bias], out.shape) if bias is not None else out


# --- embeddings -------------------------------------------------------------------------------------------------


@family_rule(Effect.NO_HIDDEN_SUM)
def embedding_function(call: Call) -> LabelledTensor:
    weight: LabelledTensor = call.get(1, "weight")
    call.freeze(weight.along(0), "one entry per token")
    for family in weight.along(1):
        call.space.role("produces", family)
    made = [spread(f[0], len(call.shape) - 1, call.shape) for f in weight.along(1)]
    return call.out(made, constant=False)


@family_rule(Effect.NO_HIDDEN_SUM)
def embedding_layer(call: Call) -> LabelledTensor:
    weight = call.parameter("weight", [0, 1])
    assert weight is not None
    call.freeze((family for act in call.acts for family in act.families), "used as an index")
    call.freeze(weight.along(0), "one entry per token")
    for family in weight.along(1):
        call.space.role("produces", family)
    return call.out([spread(f[0], len(call.shape) - 1, call.shape) for f in weight.along(1)], constant=False)


# --- products of activations ------------------------------------------------------------------------------------


def matrix_product(call: Call) -> LabelledTensor:
    return product(call, call.acts[0], call.acts[1])


def product(call: Call, a: LabelledTensor, b: LabelledTensor) -> LabelledTensor:
    if a.ndim == 1 or b.ndim == 1:
        one = "i" if a.ndim == 1 else f"{lead_letters(a.ndim - 2)}li"
        two = "i" if b.ndim == 1 else f"{lead_letters(b.ndim - 2)}ir"
        return contract(call, [(a, one), (b, two)], (one + two).replace("i", ""))
    batch = string.ascii_uppercase[: max(a.ndim, b.ndim) - 2]
    one, two = f"{batch[len(batch) - a.ndim + 2 :]}li", f"{batch[len(batch) - b.ndim + 2 :]}ir"
    return contract(call, [(a, one), (b, two)], f"{batch}lr")


def added_product(call: Call) -> LabelledTensor:
    start, a, b = call.acts
    return join_elementwise(call, [start, product(call, a, b)], call.shape)


def einsum(call: Call) -> LabelledTensor:
    parsed = parse_einsum(call.args[0], [act.ndim for act in call.acts])
    if parsed is None:
        equation = call.args[0] if isinstance(call.args[0], str) else "without an equation"
        call.freeze((family for act in call.acts for family in act.families), f"the einsum {equation}")
        return call.out([])
    inputs, output = parsed
    return contract(call, list(zip(call.acts, inputs, strict=True)), output)

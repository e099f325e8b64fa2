"""Rules for attention: heads are removed whole."""

from __future__ import annotations

import operator
from typing import Any

from dst_analyze.channels.contraction import contract, join_elementwise
from dst_analyze.channels.labels import collapsed
from dst_analyze.channels.rule_call import Call, LabelledTensor, frozen_module
from dst_analyze.channels.rules.linear import lead_letters
from dst_analyze.channels.rules.recurrent import join_gates, label_last_axis, parameter_axis, read_features


def attention_layer(call: Call) -> Any:
    """Join the channels of nn.MultiheadAttention: heads inside; inputs and outputs separately."""
    module: Any = call.module
    query, key, value = (call.get(i, name) for i, name in enumerate(("query", "key", "value")))
    per_head = call.result[1] is not None and call.result[1].ndim == query.ndim + 1
    if module.bias_k is not None or module.add_zero_attn or per_head:
        return frozen_module(call)
    heads = call.space.fresh(module.num_heads)
    inner = heads.repeat_interleave(module.head_dim)
    if module.in_proj_weight is not None:
        for act in (query, key, value):
            read_features(call, act, parameter_axis(call, "in_proj_weight", 1))
        join_gates(call, "in_proj_weight", 3, inner)
    else:
        for act, name in ((query, "q_proj_weight"), (key, "k_proj_weight"), (value, "v_proj_weight")):
            read_features(call, act, parameter_axis(call, name, 1))
            join_gates(call, name, 1, inner)
    join_gates(call, "in_proj_bias", 3, inner)
    made = call.space.of(f"{call.node.target}.out_proj.weight", 0, module.embed_dim)
    read = call.space.of(f"{call.node.target}.out_proj.weight", 1, module.embed_dim)
    call.space.join(read, inner, call.reason("the heads' channels"))
    call.space.role("reads", read)
    call.space.role("produces", made)
    if module.out_proj.bias is not None:
        bias = call.space.of(f"{call.node.target}.out_proj.bias", 0, module.embed_dim)
        call.space.join(bias, made, call.reason("a bias"))
    for mask in (call.kwargs.get("attn_mask"), call.kwargs.get("key_padding_mask")):
        if isinstance(mask, LabelledTensor):
            call.freeze(mask.families, "an attention mask")
    output, weights = call.result
    if weights is not None and _uses(call, 1):
        call.space.inexact(heads, [0], call.reason("the returned attention is a mean over the heads"))
    return label_last_axis(output, made), None if weights is None else LabelledTensor(tuple(weights.shape))


def _uses(call: Call, index: int) -> bool:
    """True if any node reads this one of several results."""
    return any(user.target is not operator.getitem or user.args[1] == index for user in call.node.users)


def dot_product_attention(call: Call) -> LabelledTensor:
    query, key, value = call.acts[:3]
    mask = call.get(3, "attn_mask")
    if call.get(7, "enable_gqa", False):
        key, value = (_for_each_query(act, query.shape[-3]) for act in (key, value))
    batch = lead_letters(query.ndim - 2)
    scores = contract(call, [(query, f"{batch}ld"), (key, f"{batch}sd")], f"{batch}ls")
    if isinstance(mask, LabelledTensor):
        scores = join_elementwise(call, [scores, mask], scores.shape)
    return contract(call, [(scores, f"{batch}ls"), (value, f"{batch}sv")], f"{batch}lv")


def _for_each_query(act: LabelledTensor, heads: int) -> LabelledTensor:
    """Return keys or values for grouped queries: each head repeated for all queries that read it."""
    times, shape = heads // act.shape[-3], (*act.shape[:-3], heads, *act.shape[-2:])
    return LabelledTensor(
        shape, tuple(collapsed(family.repeat_interleave(times, -3)) for family in act.families), act.constant
    )

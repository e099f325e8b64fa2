"""Rules for layers with a state: a hidden unit leaves every gate, layer and direction at once; heads leave whole."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from dst_analyze.channels.contraction import contract
from dst_analyze.channels.labels import along, spread, varying
from dst_analyze.channels.rule_call import Act, Call, collect, frozen_module, module_rule, rules, unlabelled

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1, "LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}


def _features(call: Call, act: Act, vector: Act) -> None:
    """The last axis of an activation is read by a weight; nothing else of it may be a channel."""
    call.freeze((f for f in act.families if act.ndim - 1 not in varying(f)), "an axis a recurrent layer runs over")
    last = Act((act.shape[-1],), tuple(call.only_along(family, -1) for family in act.along(-1)))
    contract(call, [(last, "i"), (vector, "i")], "")


def _axis(call: Call, name: str, dim: int, families: int = 1) -> Act:
    parameter = call.parameter(name, [dim], families)
    assert parameter is not None
    return Act((parameter.shape[dim],), tuple(call.only_along(f, dim) for f in parameter.families), True)


def _gates(call: Call, name: str, gates: int, hidden: torch.Tensor) -> None:
    """Rows of a weight or a bias: the hidden units, once per gate."""
    if getattr(call.module, name, None) is None:
        return
    for rows in _axis(call, name, 0).families:
        call.space.join(rows.view(gates, -1), hidden.view(1, -1), call.reason("gates of a unit"))
        call.space.role("produces", rows)


def _columns(call: Call, name: str, units: torch.Tensor) -> None:
    for labels in _axis(call, name, 1).families:
        call.space.join(labels, units, call.reason("states of a unit"))
        call.space.role("reads", labels)


def _recurrent(call: Call) -> Any:
    module: Any = call.module
    data = call.x  # of a packed sequence its data, the first of its parts
    hidden = call.space.fresh(module.hidden_size)
    out = call.space.fresh(module.proj_size) if module.proj_size else hidden
    if module.proj_size:  # torch takes a projection that does not shrink for none
        call.space.floor(hidden, module.proj_size + 1)
    gates, directions = _GATES[module.mode], 2 if module.bidirectional else 1
    above = torch.cat([out] * directions)
    for layer in range(module.num_layers):
        for end in ("", "_reverse")[:directions]:
            suffix = f"l{layer}{end}"
            if layer:
                _columns(call, f"weight_ih_{suffix}", above)
            else:
                count = max(1, len(data.along(-1)))
                _features(call, data, _axis(call, f"weight_ih_{suffix}", 1, count))
            _columns(call, f"weight_hh_{suffix}", out)
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                _gates(call, f"{part}_{suffix}", gates, hidden)
            if module.proj_size:
                _columns(call, f"weight_hr_{suffix}", hidden)
                _gates(call, f"weight_hr_{suffix}", 1, out)
    states: list[Act] = []
    collect(call.get(1, "hx"), states)
    for state, labels in zip(states, (out, hidden), strict=False):
        _state(call, state, labels)
    return _results(call, call.result, [above, out, hidden])


def _state(call: Call, state: Act, labels: torch.Tensor) -> None:
    """A state handed in has the units' labels, or fixes them."""
    if families := state.along(-1):
        for family in families:
            call.space.join(call.only_along(family, -1), labels, call.reason("an initial state"))
    else:
        call.freeze([labels], "an initial state of fixed size")


def _results(call: Call, result: Any, labels: list[torch.Tensor]) -> Any:
    """(output, h_n) or (output, (h_n, c_n))."""
    output, states = result
    several = isinstance(states, tuple)
    acts = tuple(
        _last(state, units) for state, units in zip(states if several else (states,), labels[1:], strict=False)
    )
    made = _packed(output, labels[0]) if isinstance(output, PackedSequence) else _last(output, labels[0])
    return (made, acts if several else acts[0])


def _packed(sequence: PackedSequence, labels: torch.Tensor) -> tuple[Any, ...]:
    return (_last(sequence.data, labels), *unlabelled(tuple(sequence))[1:])


@rules("_pack_padded_sequence", "_pad_packed_sequence")
def _repacked(call: Call) -> Any:
    """Steps of all sequences in one axis, or in two again; features stay the last."""
    families = call.without(call.x, range(call.x.ndim - 1), "an axis a recurrent layer runs over")
    first, *rest = call.result
    made = [spread(along(family, -1), first.ndim - 1, tuple(first.shape)) for family in families]
    return (Act(tuple(first.shape), tuple(made)), *unlabelled(tuple(rest)))


@rules("PackedSequence")
def _sequence(call: Call) -> Any:
    return (call.x, *unlabelled(tuple(call.result))[1:])


def _last(tensor: torch.Tensor, labels: torch.Tensor) -> Act:
    return Act(tuple(tensor.shape), (spread(labels, tensor.ndim - 1, tuple(tensor.shape)),))


def _cell(call: Call) -> Any:
    module: Any = call.module
    gates = _GATES.get(type(module).__name__)
    if gates is None:
        return frozen_module(call)
    data = call.acts[0]
    rows = _axis(call, "weight_hh", 1).families
    hidden = rows[0] if rows else torch.zeros(1, dtype=torch.int32)
    _columns(call, "weight_hh", hidden)
    _features(call, data, _axis(call, "weight_ih", 1, max(1, len(data.along(-1)))))
    for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        _gates(call, part, gates, hidden)
    for state in call.acts[1:]:
        _state(call, state, hidden)
    if isinstance(call.result, tuple):
        return tuple(_last(state, hidden) for state in call.result)
    return _last(call.result, hidden)


def _attention(call: Call) -> Any:
    """nn.MultiheadAttention: heads leave whole; what it reads and what it makes are axes of their own."""
    module: Any = call.module
    query, key, value = (call.get(i, name) for i, name in enumerate(("query", "key", "value")))
    per_head = call.result[1] is not None and call.result[1].ndim == query.ndim + 1
    if module.bias_k is not None or module.add_zero_attn or per_head:
        return frozen_module(call)
    heads = call.space.fresh(module.num_heads)
    inner = heads.repeat_interleave(module.head_dim)
    if module.in_proj_weight is not None:
        for act in (query, key, value):
            _features(call, act, _axis(call, "in_proj_weight", 1))
        _gates(call, "in_proj_weight", 3, inner)
    else:
        for act, name in ((query, "q_proj_weight"), (key, "k_proj_weight"), (value, "v_proj_weight")):
            _features(call, act, _axis(call, name, 1))
            _gates(call, name, 1, inner)
    _gates(call, "in_proj_bias", 3, inner)
    made = call.space.of(f"{call.node.target}.out_proj.weight", 0, module.embed_dim)
    read = call.space.of(f"{call.node.target}.out_proj.weight", 1, module.embed_dim)
    call.space.join(read, inner, call.reason("the heads' channels"))
    call.space.role("reads", read)
    call.space.role("produces", made)
    if module.out_proj.bias is not None:
        bias = call.space.of(f"{call.node.target}.out_proj.bias", 0, module.embed_dim)
        call.space.join(bias, made, call.reason("a bias"))
    for mask in (call.kwargs.get("attn_mask"), call.kwargs.get("key_padding_mask")):
        if isinstance(mask, Act):
            call.freeze(mask.families, "a mask of attention")
    output, weights = call.result
    if weights is not None and _uses(call, 1):
        call.space.inexact(heads, [0], call.reason("the attention handed out is a mean over the heads"))
    return _last(output, made), None if weights is None else Act(tuple(weights.shape))


def _uses(call: Call, index: int) -> bool:
    """Whether one of several results is read by anything."""
    return any(user.target is not operator.getitem or user.args[1] == index for user in call.node.users)


module_rule(nn.RNNBase, _recurrent)
module_rule(nn.modules.rnn.RNNCellBase, _cell)
module_rule(nn.MultiheadAttention, _attention)

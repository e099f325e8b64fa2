"""Rules for recurrent layers: a hidden unit is removed from every gate, layer and direction at once."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from dst_analyze.channels.contraction import contract
from dst_analyze.channels.labels import along, spread, varying
from dst_analyze.channels.rule_call import Call, LabelledTensor, collect, frozen_module, rules, unlabelled

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1, "LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}


def read_features(call: Call, act: LabelledTensor, vector: LabelledTensor) -> None:
    """Join the last axis of an activation with the axis that reads it; freeze all other axes."""
    call.freeze((f for f in act.families if act.ndim - 1 not in varying(f)), "an axis a recurrent layer runs over")
    last = LabelledTensor((act.shape[-1],), tuple(call.only_along(family, -1) for family in act.along(-1)))
    contract(call, [(last, "i"), (vector, "i")], "")


def parameter_axis(call: Call, name: str, dim: int, families: int = 1) -> LabelledTensor:
    """Return one axis of a parameter as a vector of labels."""
    parameter = call.parameter(name, [dim], families)
    assert parameter is not None
    return LabelledTensor((parameter.shape[dim],), tuple(call.only_along(f, dim) for f in parameter.families), True)


def join_gates(call: Call, name: str, gates: int, hidden: torch.Tensor) -> None:
    """Join the rows of a weight or a bias, which repeat the hidden units for each gate."""
    if getattr(call.module, name, None) is None:
        return
    for rows in parameter_axis(call, name, 0).families:
        call.space.join(rows.view(gates, -1), hidden.view(1, -1), call.reason("gates of a unit"))
        call.space.role("produces", rows)


def _columns(call: Call, name: str, units: torch.Tensor) -> None:
    for labels in parameter_axis(call, name, 1).families:
        call.space.join(labels, units, call.reason("states of a unit"))
        call.space.role("reads", labels)


def recurrent_layer(call: Call) -> Any:
    module: Any = call.module
    data = call.x  # for a packed sequence its data, the first of its parts
    hidden = call.space.fresh(module.hidden_size)
    out = call.space.fresh(module.proj_size) if module.proj_size else hidden
    if module.proj_size:  # torch requires that a projection is smaller than the hidden size
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
                read_features(call, data, parameter_axis(call, f"weight_ih_{suffix}", 1, count))
            _columns(call, f"weight_hh_{suffix}", out)
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                join_gates(call, f"{part}_{suffix}", gates, hidden)
            if module.proj_size:
                _columns(call, f"weight_hr_{suffix}", hidden)
                join_gates(call, f"weight_hr_{suffix}", 1, out)
    states: list[LabelledTensor] = []
    collect(call.get(1, "hx"), states)
    for state, labels in zip(states, (out, hidden), strict=False):
        _state(call, state, labels)
    return _results(call, call.result, [above, out, hidden])


def _state(call: Call, state: LabelledTensor, labels: torch.Tensor) -> None:
    """Join an initial state with the units' labels; freeze them if it has none."""
    if families := state.along(-1):
        for family in families:
            call.space.join(call.only_along(family, -1), labels, call.reason("an initial state"))
    else:
        call.freeze([labels], "an initial state of fixed size")


def _results(call: Call, result: Any, labels: list[torch.Tensor]) -> Any:
    """Return the labels of (output, h_n) or (output, (h_n, c_n))."""
    output, states = result
    several = isinstance(states, tuple)
    acts = tuple(
        label_last_axis(state, units)
        for state, units in zip(states if several else (states,), labels[1:], strict=False)
    )
    made = _packed(output, labels[0]) if isinstance(output, PackedSequence) else label_last_axis(output, labels[0])
    return (made, acts if several else acts[0])


def _packed(sequence: PackedSequence, labels: torch.Tensor) -> tuple[Any, ...]:
    return (label_last_axis(sequence.data, labels), *unlabelled(tuple(sequence))[1:])


@rules("_pack_padded_sequence", "_pad_packed_sequence")
def _repacked(call: Call) -> Any:
    """Move the steps of all sequences to one axis, or back to two; features stay on the last."""
    families = call.without(call.x, range(call.x.ndim - 1), "an axis a recurrent layer runs over")
    first, *rest = call.result
    made = [spread(along(family, -1), first.ndim - 1, tuple(first.shape)) for family in families]
    return (LabelledTensor(tuple(first.shape), tuple(made)), *unlabelled(tuple(rest)))


@rules("PackedSequence")
def _sequence(call: Call) -> Any:
    return (call.x, *unlabelled(tuple(call.result))[1:])


def label_last_axis(tensor: torch.Tensor, labels: torch.Tensor) -> LabelledTensor:
    """Return a tensor of this shape with the labels along its last axis."""
    return LabelledTensor(tuple(tensor.shape), (spread(labels, tensor.ndim - 1, tuple(tensor.shape)),))


def recurrent_cell(call: Call) -> Any:
    module: Any = call.module
    gates = _GATES.get(type(module).__name__)
    if gates is None:
        return frozen_module(call)
    data = call.acts[0]
    rows = parameter_axis(call, "weight_hh", 1).families
    hidden = rows[0] if rows else torch.zeros(1, dtype=torch.int32)
    _columns(call, "weight_hh", hidden)
    read_features(call, data, parameter_axis(call, "weight_ih", 1, max(1, len(data.along(-1)))))
    for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        join_gates(call, part, gates, hidden)
    for state in call.acts[1:]:
        _state(call, state, hidden)
    if isinstance(call.result, tuple):
        return tuple(label_last_axis(state, hidden) for state in call.result)
    return label_last_axis(call.result, hidden)

"""Public forms of torch's private functions, which a trace records inside of torch's own Python code."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dst_analyze.model.graph.dead_code import remove_dead_nodes


def use_public_forms(graph: fx.Graph) -> None:
    """Replace calls of torch's private functions by the public functions that call them."""
    for node in list(graph.nodes):
        if node.target is PackedSequence:
            _pack(graph, node)
    for node in list(graph.nodes):  # the first part of a sequence is packed before the second is padded
        if node.target is torch._pack_padded_sequence:
            x, lengths, batch_first = node.args
            node.target, node.args = pack_padded_sequence, (x, lengths)
            node.kwargs = {"batch_first": batch_first}
        elif node.target is torch._pad_packed_sequence:
            _pad(graph, node)
        elif node.target is torch._weight_norm:
            _weight_norm(graph, node)
    remove_dead_nodes(graph)


def _call(graph: fx.Graph, like: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
    node = graph.create_node("call_function", target, args, kwargs)
    node.meta = {key: value for key, value in like.meta.items() if key in ("calls", "line", "is_tensor")}
    return node


def _item(value: Any, of: Any, index: int) -> Any:
    """Return the node that a value is an item of; None if it is something else."""
    is_item = isinstance(value, fx.Node) and value.target is operator.getitem and value.args[1] == index
    owner = value.args[0] if is_item else None
    return owner if isinstance(owner, fx.Node) and owner.target is of else None


def _pack(graph: fx.Graph, packed: fx.Node) -> None:
    """Write the sort, the selection and the packing of `pack_padded_sequence` as the one call that they are of."""
    data, _, order = (*packed.args, None, None, None)[:3]
    inner = _item(data, torch._pack_padded_sequence, 0)
    if inner is None:
        return
    x, lengths, batch_first = inner.args
    sort = _item(lengths, torch.sort, 0)
    chosen = x.target == "index_select" and x.args[2] is order if isinstance(x, fx.Node) else False
    options = {"batch_first": batch_first, "enforce_sorted": False}
    if order is None:  # the samples were in order
        options = {"batch_first": batch_first}
    elif sort is None or not chosen:
        return
    else:
        x, lengths = x.args[0], sort.args[0]
    if isinstance(lengths, fx.Node) and lengths.target == "to" and lengths.kwargs == {"dtype": torch.int64}:
        lengths = lengths.args[0]
    with graph.inserting_before(inner):
        whole = _call(graph, inner, pack_padded_sequence, (x, lengths), options)
        whole.meta["is_tensor"] = False
        fields = {"batch_sizes": [n for n in inner.users if _item(n, torch._pack_padded_sequence, 1)]}
        fields |= {
            name: [packed.args[i]]
            for i, name in ((2, "sorted_indices"), (3, "unsorted_indices"))[: len(packed.args) - 2]
            if isinstance(packed.args[i], fx.Node)
        }
        made = {name: _call(graph, inner, getattr, (whole, name), {}) for name in fields}
    unsorted = packed.args[3] if len(packed.args) > 3 else None
    packed.replace_all_uses_with(whole)
    graph.erase_node(packed)
    for name, nodes in fields.items():
        for node in nodes:
            if isinstance(node, fx.Node):
                later = [user for user in node.users if user > inner]
                for user in later:
                    user.replace_input_with(node, made[name])
    if isinstance(unsorted, fx.Node) and not unsorted.users and unsorted.target == "scatter_":
        graph.erase_node(unsorted)  # it wrote the order into a new tensor


def _pad(graph: fx.Graph, node: fx.Node) -> None:
    """Write the padding of a packed sequence, and the selection that puts it in order again, as one call."""
    data, sizes, batch_first, padding, length = node.args
    sequence = _whole(data, sizes, length)
    options = {"batch_first": batch_first} | ({"padding_value": padding} if padding else {})
    if sequence is None:
        with graph.inserting_before(node):
            sequence = _call(graph, node, PackedSequence, (data, sizes), {})
        options["total_length"] = length
    else:
        ordered = [user for item in node.users for user in item.users if _is_put_in_order(user, sequence)]
        for user in ordered:
            user.replace_all_uses_with(user.args[0])  # type: ignore[arg-type]
    node.target, node.args, node.kwargs = pad_packed_sequence, (sequence,), options


def _whole(data: Any, sizes: Any, length: Any) -> fx.Node | None:
    """Return the packed sequence that a recurrent layer gave, if it is padded as it is; None if it is not known."""
    sequence: Any = data.args[0] if isinstance(data, fx.Node) and data.target is operator.getitem else None
    given = sequence.args[0] if isinstance(sequence, fx.Node) and sequence.target is operator.getitem else None
    source = given.args[0] if isinstance(given, fx.Node) and given.op == "call_module" else None
    packed = isinstance(source, fx.Node) and source.target is pack_padded_sequence
    own_sizes = isinstance(sizes, fx.Node) and sizes.target is getattr and sizes.args == (source, "batch_sizes")
    whole = isinstance(length, fx.Node) and length.target == "size" and length.args == (sizes, 0)
    return sequence if packed and own_sizes and whole else None


def _is_put_in_order(user: fx.Node, sequence: fx.Node) -> bool:
    """Return True if a node selects the samples in the order that they had before they were packed."""
    if user.target != "index_select":
        return False
    order, source = user.args[2], sequence.args[0].args[0]  # type: ignore[union-attr]
    return isinstance(order, fx.Node) and order.target is getattr and order.args == (source, "unsorted_indices")


def _weight_norm(graph: fx.Graph, node: fx.Node) -> None:
    v, g, dim = (*node.args, 0)[:3]
    with graph.inserting_before(node):
        norm = _call(graph, node, torch.norm_except_dim, (v, 2, dim), {})
        scale = _call(graph, node, operator.truediv, (g, norm), {})
    node.target, node.args = operator.mul, (v, scale)

"""Which values a ``forward`` unpacks on one line: ``q, k, v = x.chunk(3)`` and ``batch, length, _ = x.shape``."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch import fx

from dst_analyze.slimming.source.forward.regions import Region
from dst_analyze.slimming.source.forward.source_lines import Names, in_one_call, in_one_statement, line_of, statement_at

_MOST = 8
_SIZES = {
    2: ("batch", "width"),
    3: ("batch", "length", "width"),
    4: ("batch", "channels", "height", "width"),
}


@dataclass(frozen=True)
class Unpacking:
    """The items of a value that get names at once.

    Attributes:
        items: The node of each item; None for one that is not used.
        names: What the model's source calls them; empty where it does not say.
        hidden: Nodes that need no statement of their own.
        shape_of: The tensor whose shape is unpacked; None for a node's own value.
    """

    items: tuple[fx.Node | None, ...]
    names: Names
    hidden: frozenset[fx.Node]
    shape_of: fx.Node | None = None


def unpackings(region: Region) -> dict[fx.Node, Unpacking]:
    """Return what is unpacked, by the node that is computed first."""
    own = [step for step in region.steps if isinstance(step, fx.Node)]
    found = _sizes(own)
    given: dict[fx.Node, Any] = {}  # what the source calls an item that is unpacked itself
    for node in own:
        if node not in found and (unpacking := _items(node, set(own), given.get(node))) is not None:
            found[node] = unpacking
            names = zip(unpacking.items, unpacking.names, strict=True)
            given |= {item: name for item, name in names if item is not None}
    return found


def size_name(node: fx.Node) -> str | None:
    """Return a name for the size of an axis; None if a node is something else."""
    if node.op == "call_method" and node.target == "size" and len(node.args) == 2:
        tensor, dim = node.args
    elif node.target is operator.getitem and _is_shape(node.args[0]):
        tensor, dim = node.args[0].args[0], node.args[1]  # type: ignore[union-attr]
    else:
        return None
    rank = _rank(tensor)
    if not isinstance(dim, int) or not rank:
        return "size"
    return _SIZES[rank][dim % rank] if rank in _SIZES else "batch" if dim % rank == 0 else "size"


def _is_shape(value: Any) -> bool:
    if not isinstance(value, fx.Node):
        return False
    return (value.target is getattr and value.args[1] == "shape") or (
        value.op == "call_method" and value.target == "size" and len(value.args) == 1
    )


def _rank(tensor: Any) -> int:
    meta: Any = tensor.meta.get("tensor_meta") if isinstance(tensor, fx.Node) else None
    return len(meta.shape) if hasattr(meta, "shape") else 0


def _items(node: fx.Node, own: set[fx.Node], given: Any) -> Unpacking | None:
    """Return how a tuple is unpacked; None if it is used as a whole, or only one item of it is used.

    ``given``: what the source calls the tuple, if it is an item that was unpacked.
    """
    getitems: dict[int, fx.Node] = {}
    for user in node.users:
        index = user.args[1] if user.target is operator.getitem and user.args[0] is node else None
        if user not in own or not isinstance(index, int) or index < 0 or index in getitems:
            return None
        getitems[index] = user
    if not getitems:
        return None
    meta: Any = node.meta.get("tensor_meta")
    count = _rank(node.args[0]) if _is_shape(node) else len(meta) if type(meta) is tuple else 0
    if _rank(node):  # the rows of a tensor
        count = int(meta.shape[0])
        names = _target_names(list(getitems.values()), count)
        if not names or len(getitems) != count:
            return None
    if not isinstance(given, tuple):
        given = _target_names(list(getitems.values()) if given is not None else [node, *getitems.values()], count)
    names = given if len(given) == count else ()
    if not max(getitems) < count <= _MOST or (len(getitems) == 1 and not names):
        return None
    items = tuple(getitems.get(index) for index in range(count))
    return Unpacking(items, names or ("",) * count, frozenset(getitems.values()))


def _target_names(nodes: list[fx.Node], count: int) -> Names:
    statements = (statement_at(line_of(node)) for node in nodes)
    return next((s.targets for s in statements if s is not None and len(s.targets) == count > 0), ())


def _sizes(own: list[fx.Node]) -> dict[fx.Node, Unpacking]:
    """Return the sizes of tensors that are read one by one, where the source unpacks them or two are used twice."""
    by_tensor: dict[fx.Node, dict[int, fx.Node]] = {}
    for node in own:
        if node.op != "call_method" or node.target != "size" or len(node.args) != 2:
            continue
        tensor, dim = node.args
        rank = _rank(tensor)
        if isinstance(tensor, fx.Node) and isinstance(dim, int) and 0 < rank <= _MOST and not _is_changed(tensor):
            by_tensor.setdefault(tensor, {}).setdefault(dim % rank, node)
    found: dict[fx.Node, Unpacking] = {}
    for tensor, sizes in by_tensor.items():
        rank = _rank(tensor)
        names = _target_names(list(sizes.values()), rank)
        kept = [node for node in sizes.values() if len(node.users) > 1 or _is_used_later(node)]
        if not names and len(kept) < 2:
            continue
        first = min(sizes.values())
        items = tuple(sizes.get(dim) for dim in range(rank))
        found[first] = Unpacking(items, names or ("",) * rank, frozenset({*sizes.values()} - {first}), tensor)
    return found


def _is_used_later(size: fx.Node) -> bool:
    """Return True if the source reads a size in one statement and uses it in another."""
    here, there = line_of(size), [line_of(user) for user in size.users]
    return not any(in_one_statement(here, line) or in_one_call(here, line) for line in there)


def _is_changed(tensor: fx.Node) -> bool:
    """Return True if a method may change a tensor's shape in place."""
    return any(user.op == "call_method" and str(user.target).endswith("_") for user in tensor.users)

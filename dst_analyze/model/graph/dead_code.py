"""Removal of graph nodes whose results nothing reads."""

from __future__ import annotations

import torch
from torch import fx

_CHANGING = ("setitem", "setattr", "iadd", "isub", "imul", "itruediv", "ipow", "_assert")


def is_idle_draw(node: fx.Node) -> bool:
    """True for random numbers that nothing reads, which the tracer keeps: those drawn later are others without them."""
    return node.target is torch.rand and not node.users


def remove_dead_nodes(graph: fx.Graph) -> None:
    """Remove unread nodes except operations in place (``bias.zero_()``), which fx's pass drops."""
    for node in reversed(list(graph.nodes)):
        if node.op not in ("call_function", "call_method", "get_attr") or node.users or is_idle_draw(node):
            continue
        name = str(getattr(node.target, "__name__", node.target))
        changes = name.endswith("_") or name in _CHANGING or node.kwargs.get("inplace") or "out" in node.kwargs
        if not changes:
            graph.erase_node(node)

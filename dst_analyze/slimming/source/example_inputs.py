"""`example_inputs()` of the written source: masks of ones, tokens in range, labels in range, noise for floats."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from dst_analyze.slimming.source.literals import literal, wrapped

_FEW = 16  # the most numbers of an integer input that are written out, such as sequence lengths
_PASSED_ON = frozenset({"view", "reshape", "to", "long", "int", "getitem", "contiguous", "clone", "flatten"})


def example_lines(slim: fx.GraphModule) -> str:
    """Return the function that gives inputs of the example's shapes; empty without an example."""
    tensors = slim.meta.get("inputs")
    if not tensors:
        return ""
    places = [node for node in slim.graph.nodes if node.op == "placeholder"]
    made = [_expression(tensor, node, slim) for tensor, node in zip(tensors, places, strict=True)]
    return "\n".join(
        [
            "def example_inputs() -> tuple[torch.Tensor, ...]:",
            wrapped(f"    return ({', '.join(made)}{',' * (len(made) == 1)})", "    "),
        ]
    )


def _expression(tensor: torch.Tensor, place: fx.Node, slim: fx.GraphModule) -> str:
    shape, dtype = literal(tuple(tensor.shape)), f", dtype={tensor.dtype}"
    if tensor.is_floating_point():
        if "mask" in str(place.target) and not tensor.is_meta and bool((tensor == 1).any()):
            return f"torch.ones({shape}{'' if tensor.dtype == torch.float32 else dtype})"
        return f"torch.randn({shape}{'' if tensor.dtype == torch.float32 else dtype})"
    if tensor.is_meta or tensor.is_complex() or not tensor.numel():
        return f"torch.zeros({shape}{dtype})"
    if (
        tensor.dtype == torch.bool
        or "mask" in str(place.target)
        or (tensor.numel() > _FEW and bool((tensor == 1).all()))
    ):
        # True may stand for what is looked at, or for what is not: the example shows which is common.
        return f"torch.{'ones' if int(tensor.sum()) * 2 > tensor.numel() else 'zeros'}({shape}{dtype})"
    rows = _table_rows(place, slim)
    if rows is None and tensor.numel() <= _FEW and bool(tensor.any()):
        return f"torch.tensor({literal(tensor.tolist())}{dtype})"
    low, high = min(0, int(tensor.min())), int(tensor.max()) + 1
    if low == -100:  # the label that cross entropy ignores
        low = 0
    if rows is None and high <= 1:
        return f"torch.zeros({shape}{dtype})"
    return (
        f"torch.randint({low}, {high if rows is None else rows}, {shape}{'' if tensor.dtype == torch.int64 else dtype})"
    )


def _table_rows(place: fx.Node, slim: fx.GraphModule) -> int | None:
    """Return how many rows the embedding has that an input is looked up in; None if there is none."""
    queue, seen = [place], set[fx.Node]()
    while queue:
        node = queue.pop()
        for user in node.users:
            if user in seen:
                continue
            seen.add(user)
            if (rows := _rows(user, node, slim)) is not None:
                return rows
            name = str(getattr(user.target, "__name__", user.target))
            if user.op != "call_module" and name in _PASSED_ON:
                queue.append(user)
    return None


def _rows(user: fx.Node, index: fx.Node, slim: fx.GraphModule) -> int | None:
    if user.op == "call_module":
        module: Any = slim.get_submodule(str(user.target))
        return int(module.num_embeddings) if isinstance(module, nn.Embedding | nn.EmbeddingBag) else None
    if user.target is nn.functional.embedding and user.args and user.args[0] is index:
        table = user.args[1] if len(user.args) > 1 else user.kwargs.get("weight")
        if isinstance(table, fx.Node) and table.op == "get_attr":
            return int(slim.get_parameter(str(table.target)).shape[0])
    return None

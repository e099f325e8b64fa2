"""`compare_graphs`: where two graphs of one model differ, in nodes and in arguments of nodes that both have."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.model.graph.torch_calls import is_inplace, name_of

BASE = "value_in_base"
"""Key of a node's meta: what the base has where an earlier merge made a value depend on something."""
_MISSING = object()


class UnmergeableError(Exception):
    """Raised if two graphs differ in more than a merged graph can express; the message says in what."""


@dataclass(frozen=True)
class Difference:
    """An argument of a node of the base, by its path, and its value in the other graph."""

    node: str
    path: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class Comparison:
    """How another graph differs from the base.

    Attributes:
        differences: The arguments that differ.
        extra: Names of nodes that only the base has.
        known: For nodes of the other graph that the base has too, the base's names.
        owner: The module that holds what other nodes read.
    """

    differences: tuple[Difference, ...]
    extra: frozenset[str]
    known: Mapping[fx.Node, str]
    owner: nn.Module = field(repr=False)


def compare_graphs(base: fx.GraphModule, other: fx.GraphModule, *, drops: bool = False) -> Comparison:
    """Return the differences but for the output; ``drops``: what only the base does is left out, whatever it is.

    Raises:
        UnmergeableError: A node that only one of them has reads a parameter, or writes in place.
    """
    known = _same_sources(base, other)
    ours, theirs = (_operations(module) for module in (base, other))
    differences: list[Difference] = []
    known |= {
        theirs[there]: ours[here].name for here, there in _aligned(*([_key(n) for n in s] for s in (ours, theirs)))
    }
    matched = set(known.values())
    by_name = {node.name: node for node in base.graph.nodes}
    extra = frozenset(node.name for node in ours if node.name not in matched)
    for name in () if drops else extra:
        _check_extra(by_name[name], base)
    for node in theirs:
        if node not in known:
            _check_extra(node, other)
            if read := next((arg for arg in node.all_input_nodes if arg.op == "get_attr" and arg not in known), None):
                raise UnmergeableError(f"it reads {read.target}")
    for node in theirs:
        if node in known:
            mine = by_name[known[node]]
            for path, a, b in _pairs((mine.args, mine.kwargs), (node.args, node.kwargs)):
                if not is_same(known, a, b):
                    differences.append(Difference(mine.name, path, b))
    return Comparison(tuple(differences), extra, known, other)


# --- comparing --------------------------------------------------------------------------------------------------


def _operations(module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node.op.startswith("call_")]


def _key(node: fx.Node) -> Any:
    return node.op, node.target if node.op != "call_function" else id(node.target)


def _aligned(ours: list[Any], theirs: list[Any]) -> Iterator[tuple[int, int]]:
    """Yield the places of operations that both graphs have, in order.

    Operations that each has once, such as calls of layers, hold the others in place: blocks of a network are alike.
    """
    once = {key for key, count in Counter(ours).items() if count == 1}
    once &= {key for key, count in Counter(theirs).items() if count == 1}
    there = {key: place for place, key in enumerate(theirs) if key in once}
    here, last = 0, 0
    anchors = _longest_rising([(place, there[key]) for place, key in enumerate(ours) if key in once])
    for end, other_end in (*anchors, (len(ours), len(theirs))):
        for block in SequenceMatcher(
            None, ours[here:end], theirs[last:other_end], autojunk=False
        ).get_matching_blocks():
            yield from ((here + block.a + at, last + block.b + at) for at in range(block.size))
        if end < len(ours):
            yield end, other_end
        here, last = end + 1, other_end + 1


def _longest_rising(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the most pairs whose second numbers rise; the first ones do."""
    ends: list[int] = []  # of the rising pairs of each length: the smallest second number to end with
    tips: list[int] = []  # the places of the pairs that end there
    before: list[int | None] = []
    for place, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(tips[length - 1] if length else None)
        ends[length : length + 1], tips[length : length + 1] = [second], [place]
    found: list[tuple[int, int]] = []
    at = tips[-1] if tips else None
    while at is not None:
        found.append(pairs[at])
        at = before[at]
    return found[::-1]


def _same_sources(base: fx.GraphModule, other: fx.GraphModule) -> dict[fx.Node, str]:
    """Return the inputs, parameters and equal constants that both have."""
    mine = {(node.op, str(node.target)): node for node in base.graph.nodes if node.op in ("placeholder", "get_attr")}
    constants = [node for node in mine.values() if node.op == "get_attr"]
    known: dict[fx.Node, str] = {}
    for node in other.graph.nodes:
        if node.op == "placeholder" and ("placeholder", str(node.target)) in mine:
            known[node] = mine["placeholder", str(node.target)].name
        elif node.op == "get_attr":
            value = _value(other, node)
            same = mine.get(("get_attr", str(node.target)))
            found = next((n for n in (same, *constants) if n is not None and _equal(_value(base, n), value)), None)
            if found is not None:
                known[node] = found.name
    return known


def _value(module: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _equal(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    return a.shape == b.shape and a.dtype == b.dtype and (a is b or (not a.is_meta and torch.equal(a, b)))


def _check_extra(node: fx.Node, module: fx.GraphModule) -> None:
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        if any(True for _ in (*called.parameters(), *called.buffers())):
            raise UnmergeableError(f"it runs {node.target}, a {type(called).__name__} with parameters")
    writes = node.target is setattr or name_of(node.target) == "setitem"
    if writes or (not node.users and is_inplace(node.target, name_of(node.target), node.kwargs)):
        raise UnmergeableError(f"it writes in place ({node.name})")


def _pairs(mine: Any, theirs: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield the leaves of two nested arguments with their paths."""
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for key in dict.fromkeys((*mine, *theirs)):
            yield from _pairs(mine.get(key, _MISSING), theirs.get(key, _MISSING), (*path, key))
    elif isinstance(mine, tuple | list) and isinstance(theirs, tuple | list) and len(mine) == len(theirs):
        for key, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            yield from _pairs(a, b, (*path, key))
    elif isinstance(mine, slice) and isinstance(theirs, slice):
        for key in ("start", "stop", "step"):
            yield from _pairs(getattr(mine, key), getattr(theirs, key), (*path, key))
    elif mine is _MISSING or theirs is _MISSING:
        raise UnmergeableError("a call has other arguments")
    else:
        yield path, mine, theirs


def is_same(known: Mapping[fx.Node, str], mine: Any, theirs: Any) -> bool:
    """Return True if a value of the base and one of the other graph are the same."""
    if isinstance(mine, fx.Node):
        mine = mine.meta.get(BASE, mine)  # of a value that an earlier merge made depend on something
    if isinstance(mine, fx.Node) and isinstance(theirs, fx.Node):
        return known.get(theirs) == mine.name
    if isinstance(mine, fx.Node) or isinstance(theirs, fx.Node):
        return False
    return type(mine) is type(theirs) and bool(mine == theirs)

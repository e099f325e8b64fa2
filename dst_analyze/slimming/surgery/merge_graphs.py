"""`compare_graphs` and `merge_graph`: two graphs of one model as one, where they differ in constants and small parts.

The base is the graph that a slim model is built from. The other is of the same model in the other mode, or called
without an optional input. Nodes that only one of them has run under a condition; they may read no parameters.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.model.graph.torch_calls import is_inplace, name_of
from dst_analyze.slimming.conditions import Branch, Condition, choose
from dst_analyze.slimming.surgery.outputs import Made, expressed

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_MISSING = object()
_BASE = "value_in_base"
_MOVED = "moved"  # the name of the node of the base whose value a branch now computes


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
                if not _same(known, a, b):
                    differences.append(Difference(mine.name, path, b))
    return Comparison(tuple(differences), extra, known, other)


def other_output(built: fx.GraphModule, comparison: Comparison, output: Any) -> Any:
    """Return the output of the other graph, with nodes of a graph that has the nodes of the base by their names.

    Raises:
        UnmergeableError: The other graph computes what the base does not.
    """
    nodes = {node.name: node for node in built.graph.nodes}

    def found(leaf: Any, _: Any) -> Any:
        if not isinstance(leaf, fx.Node):
            return leaf
        if leaf not in comparison.known:
            raise UnmergeableError(f"it computes {leaf.name} otherwise")
        return nodes[comparison.known[leaf]]

    if comparison.differences:
        raise UnmergeableError(f"it computes {comparison.differences[0].node} otherwise")
    return _mapped(output, found, None)


def merge_graph(
    built: fx.GraphModule,
    comparison: Comparison,
    condition: Condition,
    test: fx.Node,
    name: Callable[[Any, Condition], str],
    outputs: tuple[Any, Any, Any],
) -> Any:
    """Let a graph do what the other does where the condition holds; return the output, with nodes of the graph.

    Args:
        built: A graph module with the nodes of the base, by their names; it is changed.
        comparison: The differences of the base and the other graph.
        condition: The condition under which the other graph's way is taken.
        test: The node whose value the condition is about.
        name: Called with the key of an output, or None, and a part's condition; returns a name for the part.
        outputs: The output as it is by now and that of the base, with nodes of the built graph, and that of the other.
    """
    merge = _Merge(built, comparison, condition, test, name)
    nodes = {node.name: node for node in built.graph.nodes}
    for difference in comparison.differences:
        if (user := nodes.get(difference.node)) is not None:
            merge.replace_argument(user, difference)
    now, base, other = outputs
    return now if _alike(comparison.known, base, other) else merge.joined_output(now, other)


class _Merge:
    def __init__(
        self,
        built: fx.GraphModule,
        comparison: Comparison,
        condition: Condition,
        test: fx.Node,
        name: Callable[[Any, Condition], str],
    ) -> None:
        self._built, self._comparison, self._condition, self._test = built, comparison, condition, test
        self._name = name
        self._nodes = {node.name: node for node in built.graph.nodes}
        self._nodes |= {node.meta[_MOVED]: node for node in built.graph.nodes if _MOVED in node.meta}
        self._done: dict[tuple[Any, Any], Any] = {}
        self._only_here: dict[fx.Node, bool] = {}

    def replace_argument(self, user: fx.Node, difference: Difference) -> None:
        """Make one argument of a node depend on the condition."""
        holder = [list(user.args), dict(user.kwargs)]
        try:
            mine = _at(holder, difference.path)
        except (KeyError, IndexError, TypeError) as error:
            raise UnmergeableError(f"{user.name} has other arguments") from error
        value = self._joined(mine, difference.value, user, None)
        args, kwargs = _with(tuple(holder), difference.path, value)
        user.args, user.kwargs = tuple(args), kwargs

    def joined_output(self, mine: Any, theirs: Any) -> Any:
        """Return the output of both."""
        end = next(iter(reversed(self._built.graph.nodes)))
        return self._joined_tree(mine, theirs, end, None)

    def _joined_tree(self, mine: Any, theirs: Any, before: fx.Node, key: Any) -> Any:
        if isinstance(mine, Made) and isinstance(theirs, Made) and mine.make is theirs.make:
            longer, shorter = sorted((mine.items, theirs.items), key=len, reverse=True)
            keys = dict.fromkeys((*longer, *shorter))
            both = {k: self._joined_tree(mine.items.get(k), theirs.items.get(k), before, k) for k in keys}
            return Made(mine.make, mine.by_keyword, both)
        same = type(mine) is type(theirs)
        if same and isinstance(mine, dict) and mine.keys() == theirs.keys():
            return {k: self._joined_tree(mine[k], theirs[k], before, k) for k in mine}
        if same and isinstance(mine, list | tuple) and len(mine) == len(theirs):
            return type(mine)(
                self._joined_tree(a, b, before, k) for k, (a, b) in enumerate(zip(mine, theirs, strict=True))
            )
        if isinstance(mine, dict | list | tuple | Made) or isinstance(theirs, dict | list | tuple | Made):
            return self._either(mine, theirs, before)
        return self._joined(mine, theirs, before, key)

    def _either(self, mine: Any, theirs: Any, before: fx.Node) -> fx.Node:
        """Return a choice between two outputs of other forms; what only one of them has is computed for it alone."""

        def here(leaf: Any, key: Any) -> Any:
            only = isinstance(leaf, fx.Node) and self._is_only_here(leaf)
            return self._joined(leaf, None, before, key) if only else leaf

        def there(leaf: Any, key: Any) -> Any:
            if not isinstance(leaf, fx.Node):
                return leaf
            name = self._comparison.known.get(leaf)
            return self._joined(None, leaf, before, key) if name is None else self._nodes[name]

        graph = self._built.graph
        otherwise, then = (_mapped(tree, leaf, None) for tree, leaf in ((mine, here), (theirs, there)))
        with graph.inserting_before(before):
            args = self._condition.name, self._test, expressed(graph, then), expressed(graph, otherwise)
            return graph.create_node("call_function", choose, args)

    def _joined(self, mine: Any, theirs: Any, before: fx.Node, key: Any) -> Any:
        """Return the value that is ``theirs`` where the condition holds."""
        if _same(self._comparison.known, mine, theirs):
            return mine
        if self._condition is Condition.TRAINING and theirs is True:
            if mine is False:
                return self._test
            if isinstance(mine, fx.Node) and mine.op == "get_attr" and mine.target == "training":
                return mine
        memo = (mine, theirs) if isinstance(mine, fx.Node) or isinstance(theirs, fx.Node) else None
        if memo in self._done:
            return self._done[memo]
        base = mine.meta.get(_BASE, mine) if isinstance(mine, fx.Node) else mine
        if not isinstance(mine, (fx.Node, *_PLAIN)) or not isinstance(theirs, (fx.Node, *_PLAIN)):
            raise UnmergeableError(f"{before.name} has arguments of another form")
        with self._built.graph.inserting_before(before):
            if memo is None:
                args = self._condition.name, self._test, theirs, mine
                result = self._built.graph.create_node("call_function", choose, args)
                kept = ("nn_module_stack", "calls", "line")
                result.meta |= {key: before.meta[key] for key in kept if key in before.meta}
            else:
                result = self._done[memo] = self._with_parts(mine, theirs, key)
        result.meta[_BASE] = base
        return result

    def _with_parts(self, mine: Any, theirs: Any, key: Any) -> fx.Node:
        """Return the node of a value that is computed by other nodes where the condition holds."""
        known = self._comparison.known
        here = _closure(mine, self._is_only_here) if isinstance(mine, fx.Node) else []
        there = _closure(theirs, lambda node: node not in known) if isinstance(theirs, fx.Node) else []
        given = None if there else self._nodes[known[theirs]] if isinstance(theirs, fx.Node) else theirs
        if not here and not there:
            args = self._condition.name, self._test, given, mine
            return self._built.graph.call_function(choose, args)
        result: Any = mine
        if here:
            result = self._part(mine, here, self._condition.opposite, given, lambda node: node, key)
            result.meta[_MOVED] = mine.name
        if there:
            result = self._part(theirs, there, self._condition, result, lambda node: self._nodes[known[node]], key)
        assert isinstance(result, fx.Node)
        return result

    def _is_only_here(self, node: fx.Node) -> bool:
        """True for a node of the base that the other lacks, and for an earlier branch on such ones."""
        if node not in self._only_here:
            branch = node.target is choose or _is_branch(node, self._built)
            self._only_here[node] = node.name in self._comparison.extra or (
                branch and any(self._is_only_here(arg) for arg in node.all_input_nodes)
            )
        return self._only_here[node]

    def _part(
        self,
        value: fx.Node,
        nodes: list[fx.Node],
        condition: Condition,
        otherwise: Any,
        outside: Callable[[fx.Node], fx.Node],
        key: Any,
    ) -> fx.Node:
        """Return a call of a new branch that computes a value with these nodes."""
        graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
        inside, arguments = set(nodes), list[fx.Node]()
        sources = dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes if arg not in inside)
        for source in sources:
            if source.op == "get_attr" and source.target == "training":
                made[source] = graph.get_attr("training")
                continue
            arguments.append(outside(source))
            made[source] = graph.placeholder(arguments[-1].name)
            made[source].meta["is_tensor"] = arguments[-1].meta.get("is_tensor", False)
        owner = self._built if value.graph is self._built.graph else self._comparison.owner
        for node in nodes:
            made[node] = graph.node_copy(node, lambda arg: made[arg])
            made[node].meta["is_tensor"] = node.meta.get("is_tensor", True)
            if node.op == "call_module":
                self._keep_module(str(node.target), owner)
        graph.output(made[value])
        module = Branch(condition, fx.GraphModule(self._built, graph, class_name="Part"))
        name = _free_name(self._built, self._name(key, condition))
        self._built.add_module(name, module)
        call = self._built.graph.call_module(name, (self._test, otherwise, *arguments))
        call.meta["is_tensor"] = otherwise is not None and value.meta.get("is_tensor", True)
        return call

    def _keep_module(self, path: str, owner: nn.Module) -> None:
        try:
            self._built.get_submodule(path)
        except AttributeError:
            self._built.add_submodule(path, copy.deepcopy(owner.get_submodule(path)))


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
    anchors = [(place, there[key]) for place, key in enumerate(ours) if key in once]
    for end, other_end in (*anchors, (len(ours), len(theirs))):
        if other_end < last:
            continue
        for block in SequenceMatcher(
            None, ours[here:end], theirs[last:other_end], autojunk=False
        ).get_matching_blocks():
            yield from ((here + block.a + at, last + block.b + at) for at in range(block.size))
        if end < len(ours):
            yield end, other_end
        here, last = end + 1, other_end + 1


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


def _same(known: Mapping[fx.Node, str], mine: Any, theirs: Any) -> bool:
    if isinstance(mine, fx.Node):
        mine = mine.meta.get(_BASE, mine)  # of a value that an earlier merge made depend on something
    if isinstance(mine, fx.Node) and isinstance(theirs, fx.Node):
        return known.get(theirs) == mine.name
    if isinstance(mine, fx.Node) or isinstance(theirs, fx.Node):
        return False
    return type(mine) is type(theirs) and bool(mine == theirs)


def _alike(known: Mapping[fx.Node, str], mine: Any, theirs: Any) -> bool:
    """Return True if two outputs have the same form and values."""
    if isinstance(mine, Made) and isinstance(theirs, Made):
        return mine.make is theirs.make and _alike(known, mine.items, theirs.items)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_alike(known, mine[key], theirs[key]) for key in mine)
    if isinstance(mine, list | tuple) and type(mine) is type(theirs):
        return len(mine) == len(theirs) and all(_alike(known, a, b) for a, b in zip(mine, theirs, strict=True))
    return _same(known, mine, theirs)


def _mapped(tree: Any, leaf: Callable[[Any, Any], Any], key: Any) -> Any:
    """Return an output with its leaves changed, which are given with their keys."""
    if isinstance(tree, Made):
        return Made(tree.make, tree.by_keyword, {k: _mapped(item, leaf, k) for k, item in tree.items.items()})
    if isinstance(tree, dict):
        return {k: _mapped(item, leaf, k) for k, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(item, leaf, k) for k, item in enumerate(tree))
    return leaf(tree, key)


# --- parts of graphs --------------------------------------------------------------------------------------------


def _closure(value: fx.Node, belongs: Callable[[fx.Node], bool]) -> list[fx.Node]:
    """Return the nodes that compute a value and belong, in the order of the graph."""
    found: set[fx.Node] = set()
    queue = [value]
    while queue:
        node = queue.pop()
        if node not in found and node.op.startswith("call_") and belongs(node):
            found.add(node)
            queue += node.all_input_nodes
    return [node for node in value.graph.nodes if node in found]


def _is_branch(node: fx.Node, module: fx.GraphModule) -> bool:
    return node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), Branch)


def _free_name(module: nn.Module, wish: str) -> str:
    numbered = (wish, *(f"{wish}_{number}" for number in range(2, 1000)))
    return next(name for name in numbered if not hasattr(module, name))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = getattr(value, key) if isinstance(value, slice) else value[key]
    return value


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return nested arguments with the value at a path replaced."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(value, slice):
        bounds = {name: getattr(value, name) for name in ("start", "stop", "step")}
        bounds[key] = _with(bounds[key], rest, new)
        return slice(bounds["start"], bounds["stop"], bounds["step"])
    if isinstance(value, Mapping):
        return {**value, key: _with(value[key], rest, new)}
    return type(value)([_with(item, rest, new) if at == key else item for at, item in enumerate(value)])

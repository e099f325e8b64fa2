"""`merge_graph`: two graphs of one model as one, where they differ in constants and small parts.

The base is the graph that a slim model is built from. The other is of the same model in the other mode, or called
without an optional input. Nodes that only one of them has run under a condition; they may read no parameters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.slimming.conditions import Branch, Condition, choose
from dst_analyze.slimming.surgery.compare_graphs import BASE, Comparison, Difference, UnmergeableError, is_same
from dst_analyze.slimming.surgery.outputs import Made, expressed

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)
_MOVED = "moved"  # the name of the node of the base whose value a branch now computes


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
        if is_same(self._comparison.known, mine, theirs):
            return mine
        if self._condition is Condition.TRAINING and theirs is True:
            if mine is False:
                return self._test
            if isinstance(mine, fx.Node) and mine.op == "get_attr" and mine.target == "training":
                return mine
        memo = (mine, theirs) if isinstance(mine, fx.Node) or isinstance(theirs, fx.Node) else None
        if memo in self._done:
            return self._done[memo]
        base = mine.meta.get(BASE, mine) if isinstance(mine, fx.Node) else mine
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
        result.meta[BASE] = base
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


# --- outputs -------------------------------------------------------------------------------------------------------


def _alike(known: Mapping[fx.Node, str], mine: Any, theirs: Any) -> bool:
    """Return True if two outputs have the same form and values."""
    if isinstance(mine, Made) and isinstance(theirs, Made):
        return mine.make is theirs.make and _alike(known, mine.items, theirs.items)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_alike(known, mine[key], theirs[key]) for key in mine)
    if isinstance(mine, list | tuple) and type(mine) is type(theirs):
        return len(mine) == len(theirs) and all(_alike(known, a, b) for a, b in zip(mine, theirs, strict=True))
    return is_same(known, mine, theirs)


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

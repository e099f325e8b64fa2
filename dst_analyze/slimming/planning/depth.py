"""Depth: proposals to remove residual branches that a sweep left near empty. They are never removed automatically.

Where two values with a common ancestor are added, the two paths from the ancestor are branches: if one is left out,
the other remains. A branch is near empty if every path through it passes a layer that kept next to nothing in every
trial. It still adds its last bias, or a norm's output for zeros, so a model without it needs training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_any

from dst_analyze.channels.coupling import example_tensors
from dst_analyze.channels.rule_call import op_name, place_of
from dst_analyze.model.isolation import preserved, quiet_inspection
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.planning.plan_types import EmptyBranch

NEAR_EMPTY = 0.02
"""The largest share of its weights that an empty layer keeps in any trial. Thresholds are reset when a layer is down to
1 % (the paper's 99 %), so measurements of empty layers are a little above that."""


# These operations read a tensor's size or type only, not its values.
_MADE_LIKE = ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "zeros_like", "ones_like", "empty_like")


def empty_branches(traced: TracedModel, ratios: Sequence[Mapping[str, float]]) -> tuple[EmptyBranch, ...]:
    """Return the residual branches near empty in every trial; ``ratios`` are remaining ratios by layer, per trial."""
    if traced.graph_module is None or not ratios:
        return ()
    most = {layer.name: max(trial.get(layer.name, 1.0) for trial in ratios) for layer in traced.layers}
    empty = {name: share for name, share in most.items() if share <= NEAR_EMPTY}
    return tuple(_Paths(traced, traced.graph_module).proposals(empty)) if empty else ()


class _Paths:
    """The data flow of a graph: which nodes each value is computed from, and the layers on the way."""

    def __init__(self, traced: TracedModel, module: fx.GraphModule) -> None:
        self._traced, self._module = traced, module
        shapes = _Shapes(module)
        with preserved(module), quiet_inspection(), torch.no_grad():
            module.eval()
            shapes.run(*example_tensors(traced))
        self._shapes, self._carriers = shapes.found, shapes.carriers
        self._order = {node: index for index, node in enumerate(module.graph.nodes)}
        self._names = {alias: layer.name for layer in traced.layers for alias in layer.aliases}
        # For every node: the nodes it is computed from, of those that depend on the model's inputs.
        self._above: dict[fx.Node, frozenset[fx.Node]] = {}
        self._weights: dict[fx.Node, frozenset[str]] = {}  # layers that a value made of parameters alone holds
        for node in module.graph.nodes:
            self._trace(node)

    def proposals(self, empty: Mapping[str, float]) -> Iterator[EmptyBranch]:
        """Yield the branches that pass an empty layer on every path."""
        for node in self._module.graph.nodes:
            for branch in self._branches(node):
                if not self._has_open_path(node, branch, empty):
                    yield self._describe(node, branch, empty)
                    break  # without the one branch the other one has to stay

    def _trace(self, node: fx.Node) -> None:
        inputs = [above for above in node.all_input_nodes if above in self._above]
        if node.op == "placeholder" or inputs:
            self._above[node] = frozenset({node}).union(*(self._above[above] for above in inputs))
        else:
            own = {self._names[str(node.target)]} if str(node.target) in self._names else set()
            self._weights[node] = frozenset(own).union(*(self._weights[above] for above in node.all_input_nodes))

    def _branches(self, node: fx.Node) -> list[frozenset[fx.Node]]:
        """Return the branches between an addition and the last common ancestor of its operands, the longer first."""
        if node.op not in ("call_function", "call_method") or op_name(node, None) != "add" or len(node.args) < 2:
            return []
        a, b = node.args[:2]
        if not (isinstance(a, fx.Node) and isinstance(b, fx.Node) and a in self._above and b in self._above):
            return []
        common = [above for above in self._above[a] & self._above[b] if above in self._shapes]
        if a is b or not common or not self._shapes.get(a) == self._shapes.get(b) == self._shapes.get(node):
            return []
        ancestor = max(common, key=self._order.__getitem__)
        branches = [
            frozenset(n for n in self._above[end] if ancestor in self._above[n] and n is not ancestor) for end in (a, b)
        ]
        return sorted((branch for branch in branches if branch), key=len, reverse=True)

    def _has_open_path(self, node: fx.Node, branch: frozenset[fx.Node], empty: Mapping[str, float]) -> bool:
        """Return True if some path through a branch passes no empty layer, or if it writes by index."""
        if any(self._writes(user) for step in branch for user in step.users):
            return True
        reached: set[fx.Node] = set()
        for step in sorted(branch & self._carriers, key=self._order.__getitem__):
            sources = [above for above in step.all_input_nodes if above in self._above and above in self._carriers]
            entered = any(above in reached or above not in branch for above in sources)
            if entered and not self._is_blocked(step, empty):
                reached.add(step)
        return any(above in reached for above in node.all_input_nodes)

    def _writes(self, node: fx.Node) -> bool:
        value = node.args[2] if op_name(node, None) == "setitem" and node.op == "call_function" else None
        return isinstance(value, fx.Node) and value in self._above and value in self._carriers

    def _is_blocked(self, node: fx.Node, empty: Mapping[str, float]) -> bool:
        """Return True if a node passes next to nothing on: all of its layers are empty (for attention, one)."""
        layers = self._layers(node)
        if node.op == "call_module" and isinstance(self._submodule(node), nn.MultiheadAttention):
            return any(layer in empty for layer in layers)
        return bool(layers) and all(layer in empty for layer in layers)

    def _layers(self, node: fx.Node) -> list[str]:
        """Return the layers whose weights a node multiplies by."""
        if node.op == "call_module":
            names = (f"{node.target}.{name}" for name, _ in self._submodule(node).named_parameters())
            return [self._names[name] for name in names if name in self._names]
        above = (self._weights.get(source, frozenset()) for source in node.all_input_nodes)
        return sorted(frozenset[str]().union(*above))

    def _submodule(self, node: fx.Node) -> nn.Module:
        return self._module.get_submodule(str(node.target))

    def _describe(self, node: fx.Node, branch: frozenset[fx.Node], empty: Mapping[str, float]) -> EmptyBranch:
        exclusive = self._exclusive_nodes(node, branch)
        layers = list(dict.fromkeys(layer for step in exclusive for layer in self._layers(step)))
        elsewhere = {layer for other in self._order if other not in exclusive for layer in self._layers(other)}
        gone = [layer for layer in layers if layer not in elsewhere]
        return EmptyBranch(
            add=node.name,
            place=place_of(node, type(self._traced.model)),
            layers=tuple(gone),
            empty={layer: round(empty[layer], 4) for layer in layers if layer in empty},
            params=sum(tensor.numel() for tensor in self._exclusive_parameters(exclusive)),
            macs=sum(layer.macs for layer in self._traced.layers if layer.name in gone),
        )

    def _exclusive_nodes(self, node: fx.Node, branch: frozenset[fx.Node]) -> list[fx.Node]:
        """Return the nodes of a branch that only the branch and its addition read, in order."""
        exclusive: set[fx.Node] = {node}
        for step in sorted(branch, key=self._order.__getitem__, reverse=True):
            if exclusive.issuperset(step.users):
                exclusive.add(step)
        return sorted(exclusive - {node}, key=self._order.__getitem__)

    def _exclusive_parameters(self, exclusive: Iterable[fx.Node]) -> list[nn.Parameter]:
        """Return the parameters that only these nodes use."""
        mine = set(exclusive)
        used = {id(p): p for step in mine for p in self._parameters(step)}
        for other in self._order:
            if other not in mine and not (other.op == "get_attr" and mine.issuperset(other.users)):
                for parameter in self._parameters(other):
                    used.pop(id(parameter), None)
        return list(used.values())

    def _parameters(self, node: fx.Node) -> list[nn.Parameter]:
        if node.op == "call_module":
            return list(self._submodule(node).parameters())
        direct = [source for source in (node, *node.all_input_nodes) if source.op == "get_attr"]
        values = [attrgetter(str(source.target))(self._module) for source in direct]
        return [value for value in values if isinstance(value, nn.Parameter)]


class _Shapes(fx.Interpreter):
    """A run that records tensor shapes; ``carriers`` are nodes whose tensors depend on values, not on shapes only."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.found: dict[fx.Node, tuple[int, ...]] = {}
        self.carriers: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            self.found[n] = tuple(result.shape)
        made = op_name(n, None) if n.op in ("call_function", "call_method") else ""
        if tree_any(lambda leaf: isinstance(leaf, torch.Tensor), result) and made not in _MADE_LIKE:
            self.carriers.add(n)
        return result

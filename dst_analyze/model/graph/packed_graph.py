"""A traced graph as plain data: it can be pickled, and bound to any model of the same structure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import map_aggregate


@dataclass(frozen=True)
class NodeRef:
    """A node as an argument of another, by its index in the graph."""

    index: int


@dataclass(frozen=True)
class PackedNode:
    """A node's fields as in fx, with other nodes as `NodeRef`."""

    name: str
    op: str
    target: Any
    args: Any
    kwargs: Any
    module: str  # qualified name of the module it was recorded in


@dataclass(frozen=True)
class PackedGraph:
    """A model's graph in one mode.

    Attributes:
        nodes: In the order of execution; placeholders are the tensors of the example.
        constants: Tensors that the tracer recorded and that belong to no module.
        rung: The rung of the tracing ladder that it comes from (`trace_graph.py`).
        fixed_sizes: True if the example's sizes are built in.
    """

    nodes: tuple[PackedNode, ...]
    constants: Mapping[str, torch.Tensor]
    rung: int
    fixed_sizes: bool

    def unpack(self) -> fx.Graph:
        """Return the graph as torch.fx has it, with the same node names."""
        graph, made = fx.Graph(), list[fx.Node]()

        def argument(value: Any) -> Any:
            return made[value.index] if isinstance(value, NodeRef) else value

        for packed in self.nodes:
            args, kwargs = map_aggregate(packed.args, argument), map_aggregate(packed.kwargs, argument)
            node = graph.create_node(packed.op, packed.target, args, kwargs, name=packed.name)
            node.meta["original_name"], node.meta["module"] = packed.name, packed.module
            made.append(node)
        return graph

    def same_as(self, other: PackedGraph) -> bool:
        """True if both graphs have the same nodes and constants of the same names."""
        return self.nodes == other.nodes and self.constants.keys() == other.constants.keys()


def pack_graph(traced: fx.GraphModule, model: nn.Module, *, rung: int, fixed_sizes: bool) -> PackedGraph:
    """Return a traced graph as plain data; tensors that the model does not have become constants."""
    places = {node: index for index, node in enumerate(traced.graph.nodes)}

    def argument(value: Any) -> Any:
        return NodeRef(places[value]) if isinstance(value, fx.Node) else value

    nodes, constants = [], dict[str, torch.Tensor]()
    for node in traced.graph.nodes:
        if node.op == "get_attr" and not _has(model, str(node.target)):
            constants[str(node.target)] = attrgetter(str(node.target))(traced)
        stack = node.meta.get("nn_module_stack") or {}
        module = next(reversed(stack.values()))[0] if stack else ""
        args, kwargs = map_aggregate(node.args, argument), map_aggregate(node.kwargs, argument)
        nodes.append(PackedNode(node.name, node.op, node.target, args, kwargs, str(module)))
    return PackedGraph(tuple(nodes), constants, rung, fixed_sizes)


def _has(model: nn.Module, name: str) -> bool:
    try:
        attrgetter(name)(model)
    except AttributeError:
        return False
    return True

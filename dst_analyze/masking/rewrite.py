"""The torch.fx pass: the traced graph, rewritten so that every weight passes through its mask.

Where the graph reads a raw parameter, its mask follows as a node of its own; where it calls a module that owns weights,
`WithWeights` hands the module its masked weights, whatever kind of module it is. The result computes what the
`MaskedModel` computes in eval mode and shares its parameters: a form for other fx passes, for drawing and for export.
Training runs the `MaskedModel` itself, because a graph bakes in the mode and the example it was traced with.
"""

from __future__ import annotations

from operator import attrgetter, mul
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.errors import ModelError
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.masking.operator import masked_weight
from dst_analyze.masking.substitution import Substitution
from dst_analyze.model.dead_code import sweep
from dst_analyze.model.tracing import TracedModel


class WithWeights(nn.Module):
    """A module called with weights of the caller's in place of its own, which are named by their place inside it."""

    def __init__(self, module: nn.Module, names: tuple[tuple[str, ...], ...]) -> None:
        super().__init__()
        self.module = module
        self._substitution = Substitution(module, names)

    def forward(self, weights: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        with self._substitution.of(weights):
            return self.module(*args, **kwargs)


def masked_part(
    weight: torch.Tensor,
    thresholds: torch.Tensor,
    start: int,
    stop: int,
    view: list[int],
    shape: list[int],
    estimator: str,
) -> torch.Tensor:
    """P of one weight, its thresholds a part of the flat ones: the node the pass puts behind each weight."""
    part = thresholds[start:stop].view(shape)
    return masked_weight(weight.reshape(view), part, estimator).view(weight.shape)


def masked_graph(masked: MaskedModel, traced: TracedModel) -> fx.GraphModule:
    """The graph of a traced model, with the masks of its masked form in it."""
    if traced.graph_module is None:
        raise ModelError(
            "the model has no graph to rewrite",
            place=next((opaque.place for opaque in traced.graph.opaque), ""),
            hint="its masked form runs without one: use the MaskedModel itself",
        )
    graph = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(traced.graph_module.graph, nodes))
    attributes = _attributes(graph, masked.model, traced.graph_module)
    masks = _masks(graph, masked)
    attributes |= {"thresholds": masked.thresholds, "units": masked.units}
    attributes |= {layer.aliases[0]: masked.model.get_parameter(layer.aliases[0]) for layer in masked.layers}
    for node in list(graph.nodes):
        if node.op == "get_attr" and node.target in masks and masks[node.target].args[0] is not node:
            node.replace_all_uses_with(masks[node.target])
            graph.erase_node(node)
        elif node.op == "call_module":
            module = masked.model.get_submodule(node.target)
            names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
            inside = _by_mask({name: masks[key] for name in names if (key := f"{node.target}.{name}") in masks})
            if inside:
                node.target = f"with_weights.{node.target}"
                node.args = (list(inside), *node.args)
                attributes[node.target] = WithWeights(module, tuple(inside.values()))
    rewritten = fx.GraphModule(attributes, graph, class_name=f"Masked{type(masked.model).__name__}")
    sweep(rewritten.graph)
    rewritten.graph.lint()
    rewritten.recompile()
    return rewritten.eval()


def _attributes(graph: fx.Graph, model: nn.Module, traced: fx.GraphModule) -> dict[str, Any]:
    """What the graph refers to, from the masked model where it is the model's, else the tracer's own constants."""
    result: dict[str, Any] = {}
    for target in {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}:
        try:
            result[target] = attrgetter(target)(model)
        except AttributeError:
            result[target] = attrgetter(target)(traced)
    return result


def _masks(graph: fx.Graph, masked: MaskedModel) -> dict[str, fx.Node]:
    """A mask node for every layer, ahead of all that the graph computes, under each name the weight goes by."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    result: dict[str, fx.Node] = {}
    with graph.inserting_before(first):
        thresholds = graph.get_attr("thresholds")
        if masked.units is not None:
            thresholds = graph.call_function(mul, (thresholds, graph.get_attr("units")))
        for layer in masked.layers:
            weight = graph.get_attr(layer.aliases[0])
            view, shape = list(layer.layout.view), list(layer.threshold_shape)
            arguments = (weight, thresholds, layer.start, layer.stop, view, shape, masked.estimator)
            mask = graph.call_function(masked_part, arguments)
            result |= dict.fromkeys(layer.aliases, mask)
    return result


def _by_mask(names: dict[str, fx.Node]) -> dict[fx.Node, tuple[str, ...]]:
    """The names inside a module that share a mask, mask by mask."""
    return {mask: tuple(name for name, other in names.items() if other is mask) for mask in names.values()}

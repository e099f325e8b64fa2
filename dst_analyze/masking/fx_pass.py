"""The torch.fx pass: it rewrites a traced graph so that all masked weights come from one node.

    thresholds, weights ──> masks ──> getitem 0, 1, 2, ...      one call for the whole model
    call_module fc1(x)  ──> linear(x, getitem_0, fc1.bias)      Linear and convolutions of torch's own type
    call_module lstm(x) ──> with_weights.lstm([getitem_1], x)   every other module that owns masked weights
    get_attr w          ──> getitem_2                           a raw parameter

The result shares parameters, buffers and modules with the masked model: it reads them by name from the model itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from dst_analyze.masking.layer import MaskedLayer
from dst_analyze.masking.parameter_swap import Substitution
from dst_analyze.model.graph.dead_code import remove_dead_nodes
from dst_analyze.model.graph.packed_graph import PackedGraph

CONVOLUTIONS: dict[type[nn.Module], Callable[..., torch.Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


class WithWeights(nn.Module):
    """A module called with given weights in place of the parameters called ``names``."""

    def __init__(self, module: nn.Module, names: Sequence[tuple[str, ...]]) -> None:
        super().__init__()
        self.module = module
        self._substitution = Substitution(module, names)

    def forward(self, weights: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        with self._substitution.of(weights):
            return self.module(*args, **kwargs)


def rewrite_graph(
    packed: PackedGraph,
    model: nn.Module,
    layers: Sequence[MaskedLayer],
    thresholds: nn.Parameter,
    masks: nn.Module,
    constants: nn.Module,
) -> fx.GraphModule:
    """Return the graph with masks in it, bound to a model and the thresholds of its layers.

    Args:
        packed: The model's graph in one mode.
        model: A model of the structure that was traced; the result reads its parameters, buffers and modules.
        layers: The masked weights.
        thresholds: The flat thresholds of all layers.
        masks: Called with the thresholds and the weights of all layers; returns their masked weights.
        constants: A module that holds the graph's constants as its buffers.
    """
    graph = packed.unpack()
    root = nn.Module()
    root.model, root.masks, root.constants, root.with_weights = model, masks, constants, nn.Module()
    root.thresholds = thresholds
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            home = "constants" if node.target in packed.constants else "model"
            node.target = f"{home}.{node.target}"
    masked = _masked_nodes(graph, layers)
    for node in list(graph.nodes):
        if node.op == "get_attr" and node.target in masked and "masked_weight" not in node.meta:
            node.replace_all_uses_with(masked[node.target])
            graph.erase_node(node)
        elif node.op == "call_module" and str(node.target).startswith("model."):
            _use_masked_weights(graph, node, root, masked)
    result = fx.GraphModule(root, graph, class_name=f"Masked{type(model).__name__}")
    for name, child in root.named_children():  # fx has copied the tensors; buffers may be replaced later
        setattr(result, name, child)
        vars(result)[name] = child  # avoids nn.Module.__getattr__, which costs more than a small layer
    vars(result)["thresholds"] = thresholds
    remove_dead_nodes(result.graph)
    result.graph.lint()
    result.recompile()
    result.training = model.training
    return result


def inlined_modules(packed: PackedGraph, model: nn.Module) -> list[nn.Module]:
    """Return the modules whose code the rewritten graph replaces, so that their hooks do not run."""
    called = {str(node.target) for node in packed.nodes if node.op == "call_module"}
    functional = {name for name in called if as_function(model.get_submodule(name)) is not None}
    whole = called - functional

    def inside(name: str) -> bool:
        parts = name.split(".")
        return any(".".join(parts[:end]) in whole for end in range(1, len(parts) + 1))

    return [module for name, module in model.named_modules() if not inside(name)]


def has_hooks(module: nn.Module) -> bool:
    """True if a call of the module runs hooks."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def as_function(module: nn.Module) -> Callable[..., torch.Tensor] | None:
    """Return the function that torch's own Linear or convolution calls; None for other modules."""
    if has_hooks(module) or "forward" in vars(module):
        return None
    if type(module) is nn.Linear:
        return F.linear
    if type(module) in CONVOLUTIONS and module.padding_mode == "zeros":
        return CONVOLUTIONS[type(module)]
    return None


def _masked_nodes(graph: fx.Graph, layers: Sequence[MaskedLayer]) -> dict[str, fx.Node]:
    """Insert the call of the masks; return the node of each masked weight, by all names of the weight."""
    first = next(node for node in graph.nodes if node.op != "placeholder")
    result: dict[str, fx.Node] = {}
    with graph.inserting_before(first):
        thresholds = graph.get_attr("thresholds")
        weights = [graph.get_attr(f"model.{layer.aliases[0]}") for layer in layers]
        masks = graph.call_module("masks", (thresholds, weights))
        for index, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
            weight.meta["masked_weight"] = layer.name
            name = f"{layer.aliases[0].replace('.', '_')}_masked"
            masked = graph.create_node("call_function", operator.getitem, (masks, index), name=name)
            masked.meta["masked_weight"] = layer.name
            result |= {f"model.{alias}": masked for alias in layer.aliases}
    return result


def _use_masked_weights(graph: fx.Graph, node: fx.Node, root: nn.Module, masked: dict[str, fx.Node]) -> None:
    """Rewrite the call of a module so that it computes with its masked weights, if it has any."""
    target = str(node.target)
    module = root.get_submodule(target)
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    own = {name: masked[key] for name in names if (key := f"{target}.{name}") in masked}
    if not own:
        return
    function = as_function(module)
    if function is not None and list(own) == ["weight"]:
        with graph.inserting_before(node):
            bias = None if module.bias is None else graph.get_attr(f"{target}.bias")
        x = node.args[0] if node.args else node.kwargs["input"]
        settings = () if function is F.linear else tuple(_settings(module))
        node.op, node.target, node.kwargs = "call_function", function, {}
        node.args = (x, own["weight"], bias, *settings)
    else:
        by_mask = {mask: tuple(name for name, other in own.items() if other is mask) for mask in own.values()}
        place = target.removeprefix("model.").replace(".", "_") or "root"
        if not hasattr(root.with_weights, place):
            setattr(root.with_weights, place, WithWeights(module, tuple(by_mask.values())))
        node.target = f"with_weights.{place}"
        node.args = (list(by_mask), *node.args)
    node.meta["original_target"] = target.removeprefix("model.")


def _settings(convolution: Any) -> Iterator[Any]:
    yield from (convolution.stride, convolution.padding, convolution.dilation, convolution.groups)

"""Layers fitted to the widths that are left: their tensors are cut already, the numbers on their labels follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.channels.rule_call import fit_of
from dst_analyze.channels.rules.linear import groups_leave_whole
from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.surgery.cut_shapes import Slimming


def fit_module(module: Any, node: fx.Node, inputs: Sequence[Any], slimming: Slimming) -> nn.Module:
    """A copy of a layer, its tensors already cut, with the numbers on its label made true."""
    tensor = next((value for value in inputs if isinstance(value, torch.Tensor)), None)
    if (fit := fit_of(module)) is not None:
        fit(module)
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Bilinear):
        module.out_features, module.in1_features, module.in2_features = module.weight.shape
    elif isinstance(module, nn.modules.conv._ConvNd):
        _fit_convolution(module, tensor)
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        sizes = [t.shape[0] for t in (module.weight, module.running_mean) if t is not None]
        module.num_features = next(iter(sizes), module.num_features)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and tensor is not None:
        module.normalized_shape = tuple(tensor.shape[-len(module.normalized_shape) :])
    elif isinstance(module, nn.GroupNorm) and tensor is not None:
        layout = slimming.layout(node.all_input_nodes[0])
        if module.num_channels != tensor.shape[1]:
            module.num_groups = slimming.groups_left(layout, 1, module.num_groups)
            module.num_channels = tensor.shape[1]
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()
    elif isinstance(module, nn.Unflatten):
        dim, expected = module.dim, slimming.expected(slimming.layout(node))
        if isinstance(dim, int) and tensor is not None:
            start, count = dim % tensor.ndim, len(module.unflattened_size)
            module.unflattened_size = expected[start : start + count]
    elif isinstance(module, nn.RNNBase | nn.modules.rnn.RNNCellBase):
        _fit_recurrent(module)
    elif isinstance(module, nn.MultiheadAttention):
        return _head_attention(module)
    return module  # type: ignore[no-any-return]


def _fit_convolution(module: Any, x: torch.Tensor | None) -> None:
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    first, second = module.weight.shape[:2]
    if module.groups > 1 and x is not None:
        if not transposed:
            module.groups = x.shape[x.ndim - module.weight.ndim + 1] // second
        elif groups_leave_whole(module.groups, module.in_channels, module.out_channels):
            module.groups = first * module.groups // module.in_channels
    module.out_channels = second * module.groups if transposed else first
    module.in_channels = first if transposed else second * module.groups


def _fit_recurrent(module: Any) -> None:
    if hasattr(module, "num_layers"):
        module.input_size = module.weight_ih_l0.shape[1]
        module.hidden_size = module.weight_hh_l0.shape[1]
        if module.proj_size:
            module.proj_size, module.hidden_size = module.weight_hr_l0.shape
        module.flatten_parameters()
    else:
        module.hidden_size, module.input_size = module.weight_hh.shape[1], module.weight_ih.shape[1]


def _head_attention(module: nn.MultiheadAttention) -> nn.Module:
    """Attention that lost heads or channels, in a form that can have lost them; untouched attention as it was."""
    packed = module.in_proj_weight is not None
    inner = module.out_proj.weight.shape[1]
    embed = module.in_proj_weight.shape[1] if packed else module.q_proj_weight.shape[1]
    out = module.out_proj.weight.shape[0]
    if inner == embed == out == module.embed_dim:
        return module
    slim = HeadAttention(
        embed,
        inner // module.head_dim,
        module.head_dim,
        out,
        kdim=None if packed else module.k_proj_weight.shape[1],
        vdim=None if packed else module.v_proj_weight.shape[1],
        dropout=module.dropout,
        bias=module.in_proj_bias is not None,
        batch_first=module.batch_first,
    )
    slim.train(module.training)
    for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"):
        if (parameter := getattr(module, name)) is not None:
            setattr(slim, name, parameter)
    slim.out_proj.weight, slim.out_proj.bias = module.out_proj.weight, module.out_proj.bias
    return slim

"""Fit layers to their cut tensors: set sizes such as `in_features` to the remaining ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from dst_analyze.channels.rule_call import fit_of
from dst_analyze.channels.rules.convolution import groups_leave_whole
from dst_analyze.model.families import family_of_layer
from dst_analyze.slimming.attention import HeadAttention
from dst_analyze.slimming.surgery.cut_shapes import Slimming


@dataclass(frozen=True)
class ModuleSite:
    """A call of a layer whose tensors are cut already, with the layer's next input."""

    module: Any
    node: fx.Node
    input: torch.Tensor | None
    slimming: Slimming


def fit_module(module: nn.Module, node: fx.Node, inputs: Sequence[Any], slimming: Slimming) -> nn.Module:
    """Return the layer with sizes that fit its cut tensors; attention may become another layer."""
    if (registered := fit_of(module)) is not None:
        registered(module)
        return module
    family = family_of_layer(type(module))
    fit = family.surgery.find(layer=True) if family is not None else None
    if fit is None:
        return module
    tensor = next((value for value in inputs if isinstance(value, torch.Tensor)), None)
    replaced: nn.Module | None = fit(ModuleSite(module, node, tensor, slimming))
    return module if replaced is None else replaced


# --- one function per family, named in the table of families ------------------------------------------------------


def fit_linear(site: ModuleSite) -> None:
    site.module.out_features, site.module.in_features = site.module.weight.shape


def fit_bilinear(site: ModuleSite) -> None:
    site.module.out_features, site.module.in1_features, site.module.in2_features = site.module.weight.shape


def fit_embedding(site: ModuleSite) -> None:
    site.module.num_embeddings, site.module.embedding_dim = site.module.weight.shape


def fit_batch_norm(site: ModuleSite) -> None:
    module = site.module
    sizes = [tensor.shape[0] for tensor in (module.weight, module.running_mean) if tensor is not None]
    module.num_features = next(iter(sizes), module.num_features)


def fit_layer_norm(site: ModuleSite) -> None:
    if site.input is not None:
        site.module.normalized_shape = tuple(site.input.shape[-len(site.module.normalized_shape) :])


def fit_group_norm(site: ModuleSite) -> None:
    module = site.module
    if site.input is not None and module.num_channels != site.input.shape[1]:
        layout = site.slimming.layout(site.node.all_input_nodes[0])
        module.num_groups = site.slimming.groups_left(layout, 1, module.num_groups)
        module.num_channels = site.input.shape[1]


def fit_prelu(site: ModuleSite) -> None:
    site.module.num_parameters = site.module.weight.numel()


def fit_unflatten(site: ModuleSite) -> None:
    dim, expected = site.module.dim, site.slimming.expected(site.slimming.layout(site.node))
    if isinstance(dim, int) and site.input is not None:
        start, count = dim % site.input.ndim, len(site.module.unflattened_size)
        site.module.unflattened_size = expected[start : start + count]


def fit_convolution(site: ModuleSite) -> None:
    module, x = site.module, site.input
    transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    first, second = module.weight.shape[:2]
    if module.groups > 1 and x is not None:
        if not transposed:
            module.groups = x.shape[x.ndim - module.weight.ndim + 1] // second
        elif groups_leave_whole(module.groups, module.in_channels, module.out_channels):
            module.groups = first * module.groups // module.in_channels
    module.out_channels = second * module.groups if transposed else first
    module.in_channels = first if transposed else second * module.groups


def fit_recurrent(site: ModuleSite) -> None:
    module = site.module
    module.input_size = module.weight_ih_l0.shape[1]
    module.hidden_size = module.weight_hh_l0.shape[1]
    if module.proj_size:
        module.proj_size, module.hidden_size = module.weight_hr_l0.shape
    module.flatten_parameters()


def fit_recurrent_cell(site: ModuleSite) -> None:
    module = site.module
    module.hidden_size, module.input_size = module.weight_hh.shape[1], module.weight_ih.shape[1]


def fit_attention(site: ModuleSite) -> nn.Module:
    """Return a `HeadAttention` if heads or channels were removed, else the layer as it is."""
    module: nn.MultiheadAttention = site.module
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

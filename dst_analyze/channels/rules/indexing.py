"""Rules for operations that read or write where other values say, or look at neighbours: unpooling, sampling, sorting.

Channels keep apart in them, so that they may leave; that one can leave without a trace is not judged here (their
`Effect` stays unknown).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dst_analyze.channels.contraction import join_elementwise
from dst_analyze.channels.rule_call import Call, LabelledTensor, rules
from dst_analyze.channels.rules.elementwise import reduced
from dst_analyze.channels.rules.shapes import rebuilt, spatial, spatial_by_name


def unpooling(call: Call) -> Any:
    """Each value goes back to where its own channel had it from."""
    join_elementwise(call, call.acts[:2], call.x.shape)
    return spatial_by_name(call)


@rules("grid_sample")
def _sampled(call: Call) -> Any:
    """All channels are read at the same places."""
    call.freeze(call.acts[1].families, "says where to sample")
    return spatial(call, call.x.ndim - 2)


def fold(call: Call) -> Any:
    """Columns [N, C·k, L] become images: the k places of a channel's patch leave together."""
    times = call.x.shape[1] // call.shape[1]
    families = []
    for family in call.without(call.x, [2], "folded along the axis"):
        patches = family[:, :, 0].unflatten(1, (-1, times))
        call.space.join_along(patches, [2], call.reason("one channel's patch"))
        families.append(patches[:, :, 0, None, None].expand(call.shape))
    return call.out(families)


@rules("index_add", "index_copy")
def _written(call: Call) -> Any:
    """Along the axis that is indexed places are fixed; along every other the two meet."""
    x, index, source = call.acts[:3]
    dim = call.get(1, "dim") % x.ndim
    call.freeze(index.families, "used as an index")
    return call.out(_across(call, [x, source], dim, like=x))


@rules("scatter", "scatter_add", "scatter_reduce")
def _scattered(call: Call) -> Any:
    """The same, with an index for every place: it is as wide as what is written."""
    return call.out(_across(call, call.acts, call.get(1, "dim") % call.x.ndim, like=call.x))


@rules("gather")
def _gathered(call: Call) -> Any:
    dim = call.get(1, "dim") % call.x.ndim
    return call.out(_across(call, call.acts, dim, like=call.acts[1]), constant=False)


def _across(call: Call, acts: Sequence[LabelledTensor], dim: int, *, like: LabelledTensor) -> list[torch.Tensor]:
    """The families of the result where tensors meet along every axis but one; the result has the shape of ``like``."""

    def narrow(act: LabelledTensor) -> LabelledTensor:
        kept = call.without(act, [dim], "indexed by a tensor")
        shape = (*act.shape[:dim], 1, *act.shape[dim + 1 :])
        return LabelledTensor(shape, tuple(family.narrow(dim, 0, 1) for family in kept), act.constant)

    met = join_elementwise(call, [narrow(act) for act in acts], (*like.shape[:dim], 1, *like.shape[dim + 1 :]))
    return [family.expand(call.shape) for family in met.families]


@rules("topk", "sort", "argsort")
def _sorted(call: Call) -> Any:
    dim = call.get(2, "dim", -1) if call.op == "topk" else call.get(1, "dim", -1)
    dim %= call.x.ndim
    kept = [family.narrow(dim, 0, 1) for family in call.without(call.x, [dim], "put in order along the axis")]
    results = call.result if isinstance(call.result, tuple | list) else [call.result]
    return rebuilt(call, [[family.expand(tuple(result.shape)) for result in results] for family in kept])


# --- neighbours -------------------------------------------------------------------------------------------------


def local_response_norm(call: Call) -> LabelledTensor:
    call.inexact(call.x, [1], "a norm over neighbours")
    return call.out(call.x.families)


# --- two tensors compared ---------------------------------------------------------------------------------------


def similarity(call: Call) -> Any:
    one, two = call.acts[:2]
    met = join_elementwise(call, [one, two], torch.broadcast_shapes(one.shape, two.shape))
    last = call.op in ("pairwise_distance", "PairwiseDistance")
    dim = -1 if last else getattr(call.module, "dim", call.get(2, "dim", 1))
    return reduced(call, met, [dim % met.ndim])

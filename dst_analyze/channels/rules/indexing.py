"""Rules for operations at computed positions, or on neighbours: unpooling, sampling, sorting.

They keep channels apart, so channels may be removed. Whether outputs stay equal is not decided here: their `Effect` is
unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dst_analyze.channels.contraction import join_elementwise
from dst_analyze.channels.rule_call import Call, Effect, LabelledTensor, rules
from dst_analyze.channels.rules.elementwise import reduced
from dst_analyze.channels.rules.shapes import rebuilt, spatial, spatial_by_name, stretched


def unpooling(call: Call) -> Any:
    """Move each value back to its position before pooling, within its channel."""
    join_elementwise(call, call.acts[:2], call.x.shape)
    return spatial_by_name(call)


@rules("grid_sample")
def _sampled(call: Call) -> Any:
    """Read all channels at the same positions."""
    call.freeze(call.acts[1].families, "positions to sample at")
    return spatial(call, call.x.ndim - 2)


def fold(call: Call) -> Any:
    """Turn columns [N, C·k, L] into images; the k places of a channel's patch are removed together."""
    times = call.x.shape[1] // call.shape[1]
    families = []
    for family in call.without(call.x, [2], "folded along the axis"):
        patches = family[:, :, 0].unflatten(1, (-1, times))
        call.space.join_along(patches, [2], call.reason("one channel's patch"))
        families.append(patches[:, :, 0, None, None].expand(call.shape))
    return call.out(families)


@rules("index_add", "index_copy")
def _written(call: Call) -> Any:
    """Freeze channels along the indexed axis; join both tensors along every other."""
    x, index, source = call.acts[:3]
    dim = call.get(1, "dim") % x.ndim
    call.freeze(index.families, "used as an index")
    return call.out(_across(call, [x, source], dim, like=x))


@rules("scatter", "scatter_add", "scatter_reduce")
def _scattered(call: Call) -> Any:
    """Do the same with an index that has the shape of what is written."""
    return call.out(_across(call, call.acts, call.get(1, "dim") % call.x.ndim, like=call.x))


@rules("gather")
def _gathered(call: Call) -> Any:
    dim = call.get(1, "dim") % call.x.ndim
    return call.out(_across(call, call.acts, dim, like=call.acts[1]), constant=False)


def _across(call: Call, acts: Sequence[LabelledTensor], dim: int, *, like: LabelledTensor) -> list[torch.Tensor]:
    """Return the families of a result of ``like``'s shape, with tensors joined along every axis but one."""

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
    kept = [family.narrow(dim, 0, 1) for family in call.without(call.x, [dim], "sorted along the axis")]
    results = call.result if isinstance(call.result, tuple | list) else [call.result]
    return rebuilt(call, [[family.expand(tuple(result.shape)) for result in results] for family in kept])


# --- neighbours -------------------------------------------------------------------------------------------------


def local_response_norm(call: Call) -> LabelledTensor:
    call.inexact(call.x, [1], "a norm over neighbours")
    return call.out(call.x.families)


# --- frequencies ------------------------------------------------------------------------------------------------

_ALONG_ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
_ALONG_MORE = ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
_SHIFTS = ("fftshift", "ifftshift")


@rules(*(f"fft_{name}" for name in (*_ALONG_ONE, *_ALONG_MORE, *_SHIFTS)), effect=Effect.NO_HIDDEN_SUM)
def _transformed(call: Call) -> Any:
    """Freeze channels along the transformed axes; keep the labels along all others."""
    name = call.op.removeprefix("fft_")
    dim = call.get(1 if name in _SHIFTS else 2, "dim", -1 if name in _ALONG_ONE else None)
    if dim is None and name.endswith("2"):
        dim = (-2, -1)
    if dim is None:
        lengths = None if name in _SHIFTS else call.get(1, "s")
        dim = range(-len(lengths), 0) if lengths is not None else range(call.x.ndim)
    dims = [dim] if isinstance(dim, int) else list(dim)
    return stretched(call, call.x, dims, "transformed along the axis")


@rules("view_as_real", effect=Effect.NO_HIDDEN_SUM)
def _as_real(call: Call) -> Any:
    return call.out(family.unsqueeze(-1).expand(call.shape) for family in call.x.families)


@rules("view_as_complex", effect=Effect.NO_HIDDEN_SUM)
def _as_complex(call: Call) -> Any:
    return call.out(family[..., 0] for family in call.without(call.x, [-1], "pairs of a complex number"))


# --- two tensors compared ---------------------------------------------------------------------------------------


def similarity(call: Call) -> Any:
    one, two = call.acts[:2]
    met = join_elementwise(call, [one, two], torch.broadcast_shapes(one.shape, two.shape))
    last = call.op in ("pairwise_distance", "PairwiseDistance")
    dim = -1 if last else getattr(call.module, "dim", call.get(2, "dim", 1))
    return reduced(call, met, [dim % met.ndim])

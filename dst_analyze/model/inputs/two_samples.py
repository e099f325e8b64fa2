"""`two_samples`: a batch cut to two samples, if its tensors do start with a batch axis."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dst_analyze.model.graph.symbolic import plain_output
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.isolation import preserved, preserved_buffers, quiet_inspection
from dst_analyze.model.user_errors import is_out_of_memory

_FEW = 2
_MORE = 4
_TOLERANCE = 1e-3


def two_samples(model: nn.Module, inputs: Inputs, *, listed: bool = False) -> Inputs:
    """Return the batch's first two samples; the whole batch where a cut would not leave samples.

    The first axis may number something else than samples: the nodes of a graph, the steps of a sequence. So the model
    must run on the first two and on the first four, and give the same for the first two. ``listed``: the batch is one
    of a detector, a list of images and one of their annotations.
    """
    if listed:
        return inputs.first_samples(_FEW, listed=True)
    if inputs.batch_size <= _FEW or (inputs.args and isinstance(inputs.args[0], list)):
        return inputs
    few, more = inputs.first_samples(_FEW), inputs.first_samples(min(_MORE, inputs.batch_size))
    with preserved(model), preserved_buffers(model), quiet_inspection(model), torch.no_grad():
        model.eval()
        try:
            small, large = _outputs(model, few, 0), _outputs(model, more, 0)
            if _alike(small, large):
                return few
            if _alike(small, large, values=False) and not _alike(large, _outputs(model, more, 1)):
                return few  # a model that draws random numbers gives others in another batch
        except Exception as error:  # the caller runs the model again, and reports what is wrong
            return few if is_out_of_memory(error) else inputs
    return inputs


def _outputs(model: nn.Module, inputs: Inputs, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    output = plain_output(inputs.map(torch.clone).call(model), lambda _: None)
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def _alike(small: list[torch.Tensor], large: list[torch.Tensor], *, values: bool = True) -> bool:
    """True if outputs differ in their number of samples only; those without an axis of samples are not compared."""
    if len(small) != len(large):
        return False
    for few, more in zip(small, large, strict=True):
        if few.ndim != more.ndim:
            return False
        sizes = list(zip(few.shape, more.shape, strict=True))
        if not all(a == b or (a == _FEW and b >= a) for a, b in sizes):
            return False
        cut = any(a != b for a, b in sizes)
        same: Any = more[tuple(slice(a) for a, _ in sizes)]
        if values and (cut or len(small) == 1) and few.ndim and not _close(few, same):
            return False
    return True


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta:
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return bool(torch.equal(one, other))
    scale = float(other.abs().nan_to_num().max()) if other.numel() else 0.0
    return bool(torch.allclose(one, other, rtol=0, atol=_TOLERANCE * scale, equal_nan=True))

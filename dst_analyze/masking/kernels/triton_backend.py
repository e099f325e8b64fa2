"""The operator as Triton kernels for GPUs; each is one launch over all layers of a group, however many.

A group's layers are cut into tiles, one program each. A tile names its layer, and a table gives that layer's address.
P and dW equal those of the eager loops to the bit (compiled without contraction), dt to rounding: its sums are made
in an order that depends on shapes alone, without atomic additions, so a step gives the same bits every time.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from dst_analyze.masking.kernels.axes import Axes, axes_of
from dst_analyze.masking.kernels.grouped_backend import GROUPED
from dst_analyze.masking.masked_weight import Masking, Tensors

DTYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}
BLOCK = 2048
"""Weights per program of the forward kernel."""
SUMMED_BLOCK = 256
"""Thresholds per program that adds up partial sums."""
CHUNK, MOST_CHUNKS = 8192, 256
"""The fewest weights of a row that are worth a program of their own, and the most programs for a row."""


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    weights, results, thresholds, counts, tiles, layers,
    DTYPE: tl.constexpr, REAL: tl.constexpr, INDEX: tl.constexpr, SIZE: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Count what remains in one tile and, if STORE, write its masked weights."""
    tile = tiles + 2 * tl.program_id(0).to(tl.int64)
    layer = tl.load(tile)
    own = layers + 6 * layer
    start, size = tl.load(own), tl.load(own + 1)
    outer, rows, columns = tl.load(own + 3).to(INDEX), tl.load(own + 4).to(INDEX), tl.load(own + 5).to(INDEX)
    at = tl.load(tile + 1).to(INDEX) + tl.arange(0, SIZE).to(INDEX)
    inside = at < size
    weight = tl.load(tl.load(weights + layer).to(tl.pointer_type(DTYPE)) + at, mask=inside, other=0.0).to(REAL)
    row = (at // (outer * rows * columns)) * rows + (at // columns) % rows
    threshold = tl.load(thresholds + start + row, mask=inside, other=0.0)
    keep = (tl.abs(weight) > tl.where(threshold <= 0, -1.0, threshold)) & inside
    if STORE:
        result = tl.load(results + layer).to(tl.pointer_type(DTYPE))
        tl.store(result + at, (weight * keep.to(REAL)).to(DTYPE), mask=inside)
    tl.atomic_add(counts + layer, tl.sum(keep.to(tl.int64), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grads, weights, results, thresholds, sums, tiles, layers,
    DTYPE: tl.constexpr, REAL: tl.constexpr, INDEX: tl.constexpr, LONG_TAIL: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write dW of one tile, and the sums of −dP · W · H(Q) over its part of each row."""
    tile = tiles + 6 * tl.program_id(0).to(tl.int64)
    layer, place = tl.load(tile), tl.load(tile + 5)
    group, first = tl.load(tile + 1).to(INDEX), tl.load(tile + 2).to(INDEX)
    begin, end = tl.load(tile + 3).to(INDEX), tl.load(tile + 4).to(INDEX)
    own = layers + 6 * layer
    outer, rows, columns = tl.load(own + 3).to(INDEX), tl.load(own + 4).to(INDEX), tl.load(own + 5).to(INDEX)
    row = first + tl.arange(0, ROWS).to(INDEX)
    known = row < rows
    threshold = tl.load(thresholds + tl.load(own) + group * rows + row, mask=known, other=0.0)
    least = tl.where(threshold <= 0, -1.0, threshold)
    grad_of = tl.load(grads + layer).to(tl.pointer_type(DTYPE))
    weight_of = tl.load(weights + layer).to(tl.pointer_type(DTYPE))
    result_of = tl.load(results + layer).to(tl.pointer_type(DTYPE))
    total = tl.zeros((ROWS,), REAL)
    for done in range(begin, end, COLUMNS):
        column = done + tl.arange(0, COLUMNS).to(INDEX)
        inside = known[:, None] & (column < end)[None, :]
        before = ((group * outer + column // columns) * rows)[None, :] + row[:, None]
        at = before * columns + (column % columns)[None, :]
        weight = tl.load(weight_of + at, mask=inside, other=0.0).to(REAL)
        grad = tl.load(grad_of + at, mask=inside, other=0.0).to(REAL)
        magnitude = tl.abs(weight)
        distance = tl.abs(magnitude - threshold[:, None])
        near = (distance <= 1.0).to(REAL)
        if LONG_TAIL:
            # NaN stays NaN, as in torch's clamp
            slope = distance * -4.0 + 2.0
            near = tl.where(slope < 0.4, 0.4, slope).to(REAL) * near
        slope = near * grad
        keep = (magnitude > least[:, None]).to(REAL)
        tl.store(result_of + at, (slope * magnitude + keep * grad).to(DTYPE), mask=inside)
        total += tl.sum(tl.where(inside, slope * weight, 0.0), 1)
    tl.store(sums + place + tl.arange(0, ROWS), -total, mask=known)


@triton.jit  # type: ignore[untyped-decorator]
def _add_up(sums, results, firsts, steps, chunks, count, most, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the partial sums of each threshold."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    first, step = tl.load(firsts + at, mask=inside, other=0), tl.load(steps + at, mask=inside, other=0)
    parts = tl.load(chunks + at, mask=inside, other=0)
    total = tl.load(sums + first, mask=inside, other=0.0)
    for part in range(1, most):
        total += tl.load(sums + first + part * step, mask=inside & (part < parts), other=0.0)
    tl.store(results + at, total, mask=inside)


@dataclass(frozen=True)
class _Tables:
    """What the kernels need to know of a group's shapes, on one device."""

    layers: torch.Tensor  # start of its thresholds, size, groups, outer, rows, columns of each layer
    wide: bool  # some layer has more weights than 32 bits can number
    forward: torch.Tensor  # layer and first weight of each tile
    backward: tuple[tuple[tuple[int, int], torch.Tensor], ...]  # the shape of tiles, and the tiles
    sums: int
    firsts: torch.Tensor  # each threshold's first partial sum, the distance to the next, and their number
    steps: torch.Tensor
    chunks: torch.Tensor
    most: int


_TABLES: weakref.WeakKeyDictionary[Masking, dict[torch.device, _Tables | None]] = weakref.WeakKeyDictionary()
_CAPTURED: list[torch.Tensor] = []  # addresses that a CUDA graph copies again in every replay


class Triton:
    """The operator in Triton; groups of weights that the kernels do not support go through `Grouped`."""

    def forward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        tables = _supported(masking, thresholds, weights)
        if tables is None:
            return GROUPED.forward(masking, thresholds, weights, counts)
        results = [torch.empty_like(weight) for weight in weights]
        kept = _run_forward(tables, thresholds, weights, results)
        if counts is not None:
            counts.extend(kept.tolist())
        return results

    def count(self, masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> torch.Tensor:
        tables = _supported(masking, thresholds, weights)
        if tables is None:
            return GROUPED.count(masking, thresholds, weights)
        return _run_forward(tables, thresholds, weights, None)

    def backward(
        self, masking: Masking, thresholds: torch.Tensor, weights: Tensors, grads: Sequence[torch.Tensor | None]
    ) -> tuple[list[torch.Tensor | None], torch.Tensor]:
        tables = _supported(masking, thresholds, weights)
        if tables is None or any(grad is not None and grad.dtype != weights[0].dtype for grad in grads):
            return GROUPED.backward(masking, thresholds, weights, grads)
        given = [
            torch.zeros_like(weight) if grad is None else grad.contiguous()
            for grad, weight in zip(grads, weights, strict=True)
        ]
        results = [torch.empty_like(weight) for weight in weights]
        addresses = [_addresses(tensors, thresholds.device) for tensors in (given, weights, results)]
        sums = thresholds.new_empty(tables.sums)
        with _on(thresholds.device):
            for (rows, columns), tiles in tables.backward:
                _backward[(len(tiles),)](
                    *addresses, thresholds, sums, tiles, tables.layers,
                    **_kinds(tables, thresholds, weights), LONG_TAIL=masking.estimator == "long-tail",
                    ROWS=rows, COLUMNS=columns, enable_fp_fusion=False,
                )  # fmt: skip
            grad_thresholds = sums
            if tables.most > 1:
                grad_thresholds = torch.empty_like(thresholds)
                _add_up[(triton.cdiv(len(thresholds), SUMMED_BLOCK),)](
                    sums, grad_thresholds, tables.firsts, tables.steps, tables.chunks, len(thresholds), tables.most,
                    SIZE=SUMMED_BLOCK,
                )  # fmt: skip
        return [None if grad is None else r for grad, r in zip(grads, results, strict=True)], grad_thresholds


TRITON = Triton()


def _run_forward(tables: _Tables, thresholds: torch.Tensor, weights: Tensors, results: Tensors | None) -> torch.Tensor:
    """Count what remains of each layer and, if there are ``results``, write the masked weights into them."""
    read = _addresses(weights, thresholds.device)
    written = read if results is None else _addresses(results, thresholds.device)
    counts = torch.zeros(len(weights), dtype=torch.int64, device=thresholds.device)
    with _on(thresholds.device):
        _forward[(len(tables.forward),)](
            read, written, thresholds, counts, tables.forward, tables.layers,
            **_kinds(tables, thresholds, weights), SIZE=BLOCK, STORE=results is not None, enable_fp_fusion=False,
        )  # fmt: skip
    return counts


def _kinds(tables: _Tables, thresholds: torch.Tensor, weights: Tensors) -> dict[str, Any]:
    """Return the types that a kernel is compiled for."""
    index = tl.int64 if tables.wide else tl.int32
    return {"DTYPE": DTYPES[weights[0].dtype], "REAL": DTYPES[thresholds.dtype], "INDEX": index}


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, which Triton launches on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _addresses(tensors: Tensors, device: torch.device) -> torch.Tensor:
    """Return the tensors' addresses on their device, without waiting for it."""
    addresses = torch.tensor([tensor.data_ptr() for tensor in tensors])
    if device.type != "cuda":
        return addresses
    addresses = addresses.pin_memory()
    if torch.cuda.is_current_stream_capturing():
        _CAPTURED.append(addresses)
    return addresses.to(device, non_blocking=True)


def _supported(masking: Masking, thresholds: torch.Tensor, weights: Tensors) -> _Tables | None:
    """Return the tables of a group; None if the kernels do not support it."""
    dtype, device = weights[0].dtype, thresholds.device
    if dtype not in DTYPES or thresholds.dtype != torch.float32:
        return None
    if not all(w.dtype == dtype and w.device == device and w.is_contiguous() for w in weights):
        return None
    known = _TABLES.setdefault(masking, {})
    if device not in known:
        known[device] = _find_tables(masking, device)
    return known[device] if thresholds.is_contiguous() else None


def _tile_shape(axes: Axes) -> tuple[int, int]:
    """Return rows and columns of a tile, so that neighbouring threads read neighbouring weights."""
    summed = axes.outer * axes.columns
    if summed == 1:
        return 1024, 1
    if axes.columns < 16 and axes.outer > 1:
        return 64, 16
    return (16, 64) if summed < 512 else (1, 1024)


def _find_tables(masking: Masking, device: torch.device) -> _Tables | None:
    found = [axes_of(view, shape) for view, shape in zip(masking.views, masking.shapes, strict=True)]
    all_axes = [axes for axes in found if axes is not None]
    if len(all_axes) < len(found):
        return None
    starts = list(itertools.accumulate(masking.sizes[:-1], initial=0))
    layers = torch.tensor([[start, math.prod(axes), *axes] for start, axes in zip(starts, all_axes, strict=True)])
    ahead, firsts, steps, chunks = 0, list[torch.Tensor](), list[int](), list[int]()
    backward: dict[tuple[int, int], list[torch.Tensor]] = {}
    for number, axes in enumerate(all_axes):
        shape, summed = _tile_shape(axes), axes.outer * axes.columns
        chunk = max(CHUNK, -(-summed // MOST_CHUNKS))
        thresholds, parts = axes.groups * axes.rows, -(-summed // chunk)
        tiles = torch.cartesian_prod(
            torch.arange(axes.groups), torch.arange(0, axes.rows, shape[0]), torch.arange(0, summed, chunk)
        )
        group, row, begin = tiles.unbind(1)
        place = ahead + begin // chunk * thresholds + group * axes.rows + row
        columns = [torch.full_like(group, number), group, row, begin, (begin + chunk).clamp(max=summed), place]
        backward.setdefault(shape, []).append(torch.stack(columns, 1))
        firsts.append(ahead + torch.arange(thresholds))
        steps.append(thresholds)
        chunks.append(parts)
        ahead += thresholds * parts
    forward = [torch.arange(0, math.prod(axes), BLOCK) for axes in all_axes]
    numbered = [torch.stack([torch.full_like(first, i), first], 1) for i, first in enumerate(forward)]
    sizes = torch.tensor(masking.sizes)
    return _Tables(
        layers.to(device),
        int(layers[:, 1].max()) > (1 << 31) - 1 - BLOCK,
        torch.cat(numbered).to(device),
        tuple((shape, torch.cat(tiles).to(device)) for shape, tiles in backward.items()),
        ahead,
        torch.cat(firsts).to(device),
        torch.tensor(steps).repeat_interleave(sizes).to(device),
        torch.tensor(chunks).repeat_interleave(sizes).to(device),
        max(chunks),
    )

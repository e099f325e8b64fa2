"""Rules for operations that only move elements: the operation itself is run on the labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dst_analyze.channels.contraction import join_elementwise
from dst_analyze.channels.labels import collapsed, slim_view, spread, varying
from dst_analyze.channels.rule_call import Call, Effect, LabelledTensor, family_rule, rules


@rules("view", "reshape", "squeeze", "unsqueeze", "ravel", effect=Effect.REARRANGES)
def reshaped(call: Call) -> Any:
    """Reshape the labels; `reshape` and not `view`, since labels have other strides than the tensor."""
    if any(isinstance(arg, torch.dtype) for arg in call.args):
        call.freeze(call.x.families, "its bytes viewed as another dtype")
        return call.out([])
    return call.out((family.reshape(call.shape) for family in call.x.families), call.x.constant)


@rules("view_as", "reshape_as", effect=Effect.REARRANGES)
def _reshaped_as(call: Call) -> Any:
    """Reshape the labels and join them with those of the tensor that gives the shape."""
    met = join_elementwise(call, [reshaped(call), call.acts[1]], call.shape)
    return call.out(met.families, call.x.constant)


@rules("expand", "broadcast_to", effect=Effect.REARRANGES)
def _expanded(call: Call) -> Any:
    """Expand the labels; a tensor without any, such as a mask, gets new ones."""
    if call.x.families:
        return as_it_is(call)
    before = (*[1] * (len(call.shape) - call.x.ndim), *call.x.shape)
    return _labelled(call, [dim for dim, size in enumerate(call.shape) if size > before[dim]])


@rules("expand_as", effect=Effect.REARRANGES)
def _expanded_as(call: Call) -> Any:
    """Expand the labels and join them with those of the tensor that gives the shape."""
    met = join_elementwise(call, call.acts, call.shape)
    return call.out(met.families, call.x.constant)


# fmt: off
_MOVES = (
    "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint", "flip", "chunk", "split",
    "split_with_sizes", "tensor_split", "narrow",
)
# fmt: on


@rules(*_MOVES, effect=Effect.REARRANGES)
def as_it_is(call: Call) -> Any:
    """Run the operation on the labels of its first tensor."""
    per_family = [_flat(call.on_labels(family)) for family in call.x.families]
    return rebuilt(call, per_family)


def _flat(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple | list) else [result]


def rebuilt(call: Call, per_family: list[list[torch.Tensor]]) -> Any:
    """Return labelled tensors in the shapes of the call's results, from the labels of each family."""
    several = isinstance(call.result, tuple | list)
    results = call.result if several else [call.result]
    acts = tuple(
        LabelledTensor(tuple(result.shape), tuple(collapsed(pieces[i]) for pieces in per_family), call.x.constant)
        for i, result in enumerate(results)
    )
    return acts if several else acts[0]


@rules("repeat", "tile", "repeat_interleave", effect=Effect.REARRANGES)
def _repeated(call: Call) -> Any:
    """Repeat the labels; an axis without any, such as the batch of a mask, gets one per repetition."""
    repeated = as_it_is(call)
    if call.op == "repeat_interleave" and not isinstance(call.get(1, "repeats"), int):
        return repeated
    before = (*[1] * (len(call.shape) - call.x.ndim), *call.x.shape)
    families = list(repeated.families)
    for dim, size in enumerate(call.shape):
        taken = any(dim in varying(family) for family in repeated.families)
        if taken or size == before[dim] or not before[dim] or len(call.shape) < call.x.ndim:
            continue
        labels = call.space.fresh(size // before[dim])
        inside = call.op == "repeat_interleave"
        labels = labels.repeat(before[dim]) if inside else labels.repeat_interleave(before[dim])
        families.append(spread(labels, dim, call.shape))
    return call.out(families, constant=call.x.constant and len(families) == len(repeated.families))


@family_rule(Effect.REARRANGES)
def channel_shuffle(call: Call) -> Any:
    """Move channels like a view, a transposition and a view back, which need groups of equal size."""
    groups = int(getattr(call.module, "groups", 0) or call.get(1, "groups"))
    for family in call.x.along(1):
        channels = call.only_along(family, 1).view(groups, -1)
        call.space.join_along(channels, [0], call.reason("groups of equal size"))
    return call.out(family.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2) for family in call.x.families)


@rules("unbind", effect=Effect.REARRANGES)
def _unbind(call: Call) -> Any:
    """Join the channels along the axis, since the model's code counts on every result."""
    dim = call.get(1, "dim", 0)
    for family in call.x.along(dim):
        call.space.join_along(family, [dim % family.ndim], call.reason("unbound along the axis"))
    return as_it_is(call)


@rules("roll", effect=Effect.REARRANGES)
def _roll(call: Call) -> Any:
    dims = call.get(2, "dims")
    dims = range(call.x.ndim) if dims is None or dims == () else [dims] if isinstance(dims, int) else dims
    return call.out(call.without(call.x, dims, "rolled along the axis"))


@family_rule(Effect.REARRANGES)
def padding_function(call: Call) -> Any:
    """Freeze channels along padded axes; keep the labels along all others."""
    amounts = call.get(1, "pad")
    dims = [call.x.ndim - 1 - i // 2 for i in range(0, len(amounts), 2) if amounts[i] or amounts[i + 1]]
    return stretched(call, call.x, dims, "padded along the axis")


def stretched(call: Call, x: LabelledTensor, dims: Iterable[int], why: str) -> LabelledTensor:
    """Return a result with other lengths along some axes; freeze channels along these."""
    dims = [dim % x.ndim for dim in dims]
    narrow = []
    for family in call.without(x, dims, why):
        for dim in dims:
            family = family.narrow(dim, 0, 1)
        narrow.append(family.expand(call.shape))
    return call.out(narrow, x.constant)


# --- spatial ----------------------------------------------------------------------------------------------------


def spatial(call: Call, count: int) -> Any:
    """Return a result pooled or resized along the last ``count`` axes; freeze channels along these."""
    results = call.result if isinstance(call.result, tuple | list) else [call.result]
    if any(result.ndim != call.x.ndim for result in results):
        call.freeze(call.x.families, "an unusual number of axes")
        return rebuilt(call, [])
    families = call.without(call.x, range(-count, 0), "pooled along the axis")
    first: Any = (..., *[slice(0, 1)] * count)
    small = [family[first] for family in families]
    return rebuilt(call, [[family.expand(tuple(result.shape)) for result in results] for family in small])


def spatial_by_name(call: Call) -> Any:
    """Do the same for as many of the last axes as the operation's name says."""
    return spatial(call, next(int(digit) for digit in call.op if digit in "123"))


@family_rule(Effect.PER_CHANNEL)
def pooling(call: Call) -> Any:
    return spatial_by_name(call)


@family_rule(Effect.PER_CHANNEL)
def resizing(call: Call) -> Any:
    return spatial(call, call.x.ndim - 2)


@family_rule(Effect.REARRANGES)
def padding_layer(call: Call) -> Any:
    return spatial_by_name(call)


@family_rule(Effect.REARRANGES)
def unfold(call: Call) -> Any:
    """Repeat channels for patches as columns ([N, C·k, L]), or add an axis (the tensor method)."""
    x = call.x
    if call.node.op == "call_method":
        dim = call.get(1, "dimension") % x.ndim
        kept = call.without(x, [dim], "unfolded along the axis")
        return call.out(family.narrow(dim, 0, 1).unsqueeze(-1).expand(call.shape) for family in kept)
    times = call.shape[1] // x.shape[1]
    kept = call.without(x, [2, 3], "unfolded along the axis")
    return call.out(f[:, :, 0, 0].repeat_interleave(times, 1).unsqueeze(-1).expand(call.shape) for f in kept)


# --- putting together -------------------------------------------------------------------------------------------


JOINING = ("cat", "concat", "concatenate")


@rules(*JOINING, effect=Effect.REARRANGES)
def _cat(call: Call) -> Any:
    """Concatenate labels along the axis; join the tensors along every other.

    An empty tensor of one axis, as code begins a list with, is left out, as torch does.
    """
    acts = [act for act in call.acts if act.shape != (0,)]
    dim = call.get(1, "dim", call.kwargs.get("axis", 0)) % acts[0].ndim
    across, pieces = [], []
    for act in acts:
        families = [family for family in act.families if dim not in varying(family)]
        flat = list(act.shape)
        flat[dim] = 1
        across.append(LabelledTensor(tuple(flat), tuple(family.narrow(dim, 0, 1) for family in families), act.constant))
        pieces.append([family for family in act.families if dim in varying(family)])
        if act.shape[dim] == 1:  # a family with one place along the axis varies along none; its label shows it
            single = [family for family in act.families if not varying(family) and int(family.flatten()[0])]
            pieces[-1].extend(single)
    shape = list(call.shape)
    shape[dim] = 1
    beside = join_elementwise(call, across, shape)
    families = [family.expand(call.shape) for family in beside.families if varying(family)]
    for k in range(max(len(piece) for piece in pieces)):
        kth = [piece[k] if k < len(piece) else None for piece in pieces]
        families.append(_side_by_side(acts, kth, dim, call.shape))
    return call.out(families)


def _side_by_side(
    acts: list[LabelledTensor], families: list[torch.Tensor | None], dim: int, shape: tuple[int, ...]
) -> torch.Tensor:
    parts = [
        slim_view(family) if family is not None else torch.zeros([1] * act.ndim, dtype=torch.int32)
        for act, family in zip(acts, families, strict=True)
    ]
    sizes = [max(part.shape[d] for part in parts) for d in range(len(shape))]
    wide = []
    for act, part in zip(acts, parts, strict=True):
        sizes[dim] = act.shape[dim]
        wide.append(part.expand(sizes))
    return torch.cat(wide, dim).expand(shape)


@rules("stack", effect=Effect.REARRANGES)
def _stack(call: Call) -> Any:
    dim = call.get(1, "dim", 0) % len(call.shape)
    acts = [
        LabelledTensor(
            (*act.shape[:dim], 1, *act.shape[dim:]),
            tuple(family.unsqueeze(dim) for family in act.families),
            act.constant,
        )
        for act in call.acts
    ]
    shape = list(call.shape)
    shape[dim] = 1
    met = join_elementwise(call, acts, shape)
    return call.out(family.expand(call.shape) for family in met.families)


# --- taking out -------------------------------------------------------------------------------------------------


@rules("getitem", effect=Effect.REARRANGES)
def _getitem(call: Call) -> Any:
    x, index = call.args[0], call.args[1]
    if not isinstance(x, LabelledTensor):  # one of several results, or an entry of a plain list
        return x[index]
    real = _on_cpu(call.indices()[1])
    items = _per_axis(x, real if isinstance(real, tuple) else (real,))
    if items is None:
        call.freeze(x.families, "indexed in an unsupported way")
        return call.out([])
    for act in call.acts[1:]:
        call.freeze(act.families, "used as an index")
    kept = _taken(call, x, items)
    return call.out((family[real] for family in kept), x.constant)


def _on_cpu(index: Any) -> Any:
    """Return an index on the CPU, where labels are, whatever the model's device."""
    if isinstance(index, tuple | list):
        return type(index)(_on_cpu(item) for item in index)
    return index.cpu() if isinstance(index, torch.Tensor) else index


def _taken(call: Call, x: LabelledTensor, items: list[Any], *, in_steps: bool = False) -> list[torch.Tensor]:
    """Return the families that can be indexed.

    Families along axes indexed by a tensor are frozen, along axes indexed by a number joined. Those of slices in steps
    are frozen unless ``in_steps``.
    """
    for dim, item in enumerate(items):
        if isinstance(item, int):
            for family in x.along(dim):
                call.space.join_along(family, [dim], call.reason("one channel selected"))
    plain = [
        isinstance(item, int) or (isinstance(item, slice) and (in_steps or item.step in (None, 1))) for item in items
    ]
    odd = [dim for dim in range(len(items)) if not plain[dim]]
    return call.without(x, odd, "indexed by a tensor or in steps")


def _per_axis(x: LabelledTensor, index: tuple[Any, ...]) -> list[Any] | None:
    """Return the index of each axis; None if it is unsupported."""
    taking = [item for item in index if item is not None and item is not ...]
    if any(isinstance(item, bool) or (isinstance(item, torch.Tensor) and item.dtype == torch.bool) for item in taking):
        widths = [item.ndim if isinstance(item, torch.Tensor) and item.dtype == torch.bool else 1 for item in taking]
    else:
        widths = [1] * len(taking)
    missing = x.ndim - sum(widths)
    if missing < 0 or any(isinstance(item, bool) for item in taking):
        return None
    items: list[Any] = []
    widths_left = iter(widths)
    for item in index:
        if item is None:
            continue
        if item is ...:
            items.extend([slice(None)] * missing)
            missing = 0
        else:
            items.extend([item] * next(widths_left))
    return [*items, *[slice(None)] * missing]


@rules("select", effect=Effect.REARRANGES)
def _select(call: Call) -> Any:
    dim = call.get(1, "dim") % call.x.ndim
    for family in call.x.along(dim):
        call.space.join_along(family, [dim], call.reason("one channel selected"))
    return as_it_is(call)


@rules("index_select", effect=Effect.NO_HIDDEN_SUM)
def _index_select(call: Call) -> Any:
    call.freeze(call.acts[1].families, "used as an index")
    dim = call.get(1, "dim") % call.x.ndim
    kept = call.without(call.x, [dim], "indexed by a tensor")
    return call.out((family.narrow(dim, 0, 1).expand(call.shape) for family in kept), call.x.constant)


@rules("setitem", effect=Effect.NO_HIDDEN_SUM)
def _setitem(call: Call) -> Any:
    """Join the written tensor with the part that it replaces."""
    x, value = call.args[0], call.args[2]
    if not isinstance(x, LabelledTensor):
        return None
    real = _on_cpu(call.indices()[1])
    items = _per_axis(x, real if isinstance(real, tuple) else (real,))
    if items is None or any(not isinstance(item, int | slice) for item in items):
        call.freeze((family for act in call.acts for family in act.families), "written through an index")
        return None
    kept = _taken(call, x, items, in_steps=True)
    if isinstance(value, LabelledTensor):
        families = tuple(collapsed(family[real]) for family in kept)
        shape = tuple(torch.empty(x.shape, device="meta")[real].shape)
        join_elementwise(call, [LabelledTensor(shape, families), value], shape)
    return None


@rules("getattr", effect=Effect.NO_HIDDEN_SUM)
def _attribute(call: Call) -> Any:
    name = call.args[1]
    if not isinstance(call.args[0], LabelledTensor):  # one of several results by its name
        return call.args[0][("values", "indices").index(name)]
    if name in ("T", "mT", "H", "mH"):
        return rebuilt(call, [[getattr(family, name)] for family in call.x.families])
    if name in ("data", "real", "imag"):
        return call.out(call.x.families)
    call.freeze(call.x.families, f"its attribute {name}")
    return call.out([])


FUNCTIONS_THAT_MAKE = ("zeros", "ones", "full", "empty", "rand", "randn")
METHODS_THAT_MAKE = ("new_zeros", "new_ones", "new_full", "new_empty")
NUMBERING = ("arange", "linspace")
REPEATING = ("expand", "broadcast_to", "repeat", "tile", "repeat_interleave")
MAKING = (*FUNCTIONS_THAT_MAKE, *METHODS_THAT_MAKE, *NUMBERING, *REPEATING)


@rules(*FUNCTIONS_THAT_MAKE, *METHODS_THAT_MAKE, effect=Effect.REARRANGES)
def _made(call: Call) -> Any:
    """Return new labels for a uniform tensor, such as an initial state of zeros.

    A tensor that it is made from gives the dtype only.
    """
    return _labelled(call, [dim for dim, size in enumerate(call.shape) if size > 1])


@rules(*NUMBERING, effect=Effect.NO_HIDDEN_SUM)
def _numbered(call: Call) -> Any:
    """Return new labels for numbers in a row, such as the frequencies of positions: each can be left out."""
    return call.out([spread(call.space.fresh(call.shape[0]), 0, call.shape)] if call.shape[0] > 1 else [], True)


def _labelled(call: Call, dims: Iterable[int]) -> LabelledTensor:
    """Return new labels along some axes."""
    return call.out((spread(call.space.fresh(call.shape[dim]), dim, call.shape) for dim in dims), constant=False)


@rules("new_tensor", effect=Effect.REARRANGES)
def _given(call: Call) -> Any:
    return call.out([])

"""Fit calls to the remaining widths: sizes, slice bounds and counts in the graph's arguments."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dst_analyze.channels.groups import Layout
from dst_analyze.channels.rule_call import Effect, effect_of, op_name, rule_for
from dst_analyze.channels.rules.shapes import FUNCTIONS_THAT_MAKE, METHODS_THAT_MAKE, NUMBERING
from dst_analyze.model.families import family_of_call
from dst_analyze.slimming.surgery.cut_shapes import Slimming


@dataclass(frozen=True)
class CallSite:
    """A node of the slim graph before it runs, with the values of its arguments."""

    node: fx.Node
    slimming: Slimming
    values: Callable[[Any], Any]  # from an argument to its value, with nodes replaced by their results
    compute: Callable[..., fx.Node]  # a node before this one, of a function and its arguments

    @property
    def expected(self) -> Any:
        """The shapes that the node's result must have."""
        return self.slimming.expected(self.slimming.layout(self.node))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument given by position or by name."""
        return self.node.args[position] if len(self.node.args) > position else self.node.kwargs.get(name, default)

    def set(self, position: int, name: str, value: Any) -> None:
        """Replace an argument given by position or by name."""
        if len(self.node.args) > position:
            self.node.update_arg(position, value)
        else:
            self.node.update_kwarg(name, value)

    def old(self, value: Any) -> Any:
        """Return the value that an argument had before the removal."""
        if not isinstance(value, fx.Node):
            return value
        if value.name in self.slimming.coupling.numbers:
            return self.slimming.coupling.numbers[value.name]
        result = self.values(value)  # a removal changes no integer in a tensor
        whole = isinstance(result, torch.Tensor) and result.numel() == 1 and not result.is_floating_point()
        return int(result) if whole else None

    def input_layout(self) -> Layout | None:
        """Return the layout of the first argument before the removal, if it is a tensor."""
        first = self.node.args[0] if self.node.args else next(iter(self.node.kwargs.values()), None)
        layout = self.slimming.layout(first) if isinstance(first, fx.Node) else None
        return layout if isinstance(layout, Layout) else None


Fit = Callable[[CallSite], None]
_FITS: dict[str, Fit] = {}


def _fits(*names: str) -> Callable[[Fit], Fit]:
    def enter(fit: Fit) -> Fit:
        _FITS.update(dict.fromkeys(names, fit))
        return fit

    return enter


def fit_call(site: CallSite) -> None:
    """Fit the numbers in a call's arguments to the remaining widths."""
    effect = effect_of(rule_for(site.node, None))
    if site.node.name in site.slimming.coupling.numbers:
        return  # arithmetic on sizes; its results are fitted where they are used
    if effect is Effect.ELEMENTWISE:
        _keep_numbers(site)
    elif (fit := _fit_for(op_name(site.node, None))) is not None:
        fit(site)


def _fit_for(op: str) -> Fit | None:
    family = family_of_call(None, op)
    return family.surgery.find(layer=False) if family is not None else _FITS.get(op)


def _keep_numbers(site: CallSite) -> None:
    """Keep the old value of a size used as a number (attention's 1/sqrt(d)), as the weights were trained with it."""
    numbers = site.slimming.coupling.numbers

    def old(node: fx.Node) -> Any:
        value = site.values(node)
        was = numbers.get(node.name, value)
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return was if plain and was != value else node

    site.node.args = fx.map_arg(site.node.args, old)
    site.node.kwargs = fx.map_arg(site.node.kwargs, old)


def _fitted_sizes(
    site: CallSite, items: Sequence[Any], expected: Sequence[int], *, infer: bool, first: int = 0
) -> list[Any]:
    """Return the sizes of the axes from ``first`` on with wrong ones replaced; right ones stay symbolic.

    With ``infer`` one of the wrong sizes that were computed becomes -1, preferably of an axis without channels, which
    is the batch. Others that were computed from the batch are scaled (``batch * heads``).
    """
    values = [site.values(item) for item in items]
    wrong = [i for i, (value, size) in enumerate(zip(values, expected, strict=True)) if value not in (-1, size)]
    result = [expected[i] if i in wrong else item for i, item in enumerate(items)]
    computed = [i for i in wrong if isinstance(items[i], fx.Node)]
    if infer and computed and -1 not in values:
        layout = site.slimming.layout(site.node)
        result[min(computed, key=lambda i: bool(layout.axes[first + i]))] = -1
    for i in computed:
        if result[i] != -1 and _is_free(site, items[i]):
            result[i] = _scaled(site, items[i], expected[i], values[i])
    return result


def _is_free(site: CallSite, number: fx.Node) -> bool:
    """True if a number is computed from the size of an axis without channels, such as the batch."""
    tensor: Any = number.args[0] if number.args else None
    dim: Any = None
    if op_name(number, None) == "size" and len(number.args) == 2:
        dim = number.args[1]
    elif op_name(number, None) == "getitem" and isinstance(tensor, fx.Node) and op_name(tensor, None) in _SHAPES:
        tensor, dim = tensor.args[0], number.args[1]
    layout = site.slimming.layout(tensor) if isinstance(tensor, fx.Node) else None
    if isinstance(dim, int):
        return isinstance(layout, Layout) and not layout.axes[dim]
    return any(_is_free(site, node) for node in number.all_input_nodes if node.name in site.slimming.coupling.numbers)


_SHAPES = ("size", "shape", "getattr")


def _scaled(site: CallSite, number: fx.Node, size: int, value: int) -> fx.Node:
    """Return a number that is ``size`` where the given one is ``value``, in proportion."""
    common = math.gcd(size, value)
    if size != common:
        number = site.compute(operator.mul, number, size // common)
    return site.compute(operator.floordiv, number, value // common) if value != common else number


def _sizes(site: CallSite, *, infer: bool, start: int = 1) -> None:
    """Fit the sizes of view(2, 3), view((2, 3)) or view(size=(2, 3)), which begin at the argument ``start``."""
    node, expected = site.node, site.expected
    name = next((key for key in ("shape", "size", "sizes") if key in node.kwargs), None)
    if name is not None:
        items = _size_list(site, node.kwargs[name])
        if items is not None:
            node.update_kwarg(name, _fitted_sizes(site, items, expected, infer=infer))
    elif len(node.args) > start and not isinstance(site.values(node.args[start]), int):
        items = _size_list(site, node.args[start])
        if items is not None:
            node.update_arg(start, _fitted_sizes(site, items, expected, infer=infer))
    else:
        node.args = (*node.args[:start], *_fitted_sizes(site, node.args[start:], expected, infer=infer))


def _size_list(site: CallSite, sizes: Any) -> list[Any] | None:
    """Return the sizes as a list; None for another tensor's whole shape if it is right already."""
    if isinstance(sizes, fx.Node):
        whole = site.values(sizes)
        if not isinstance(whole, tuple | list) or tuple(whole) == tuple(site.expected):
            return None
        return list(whole)
    return list(sizes)


@_fits("view", "reshape")
def _view(site: CallSite) -> None:
    if not any(isinstance(arg, torch.dtype) for arg in site.node.args):
        _sizes(site, infer=True)


@_fits("expand", "broadcast_to", *METHODS_THAT_MAKE)
def _expand(site: CallSite) -> None:
    _sizes(site, infer=False)


@_fits("repeat", "tile")
def _repeat(site: CallSite) -> None:
    """Set how often an axis is repeated, where that is how many channels it has."""
    expected, tensor = site.expected, site.values(site.node.args[0])
    name = next((key for key in ("repeats", "dims") if key in site.node.kwargs), None)
    listed = name is None and not isinstance(site.values(site.node.args[1]), int)
    given: Any = site.node.kwargs[name] if name else site.node.args[1] if listed else site.node.args[1:]
    items = list(given)
    items = [1] * (len(expected) - len(items)) + items  # tile may name fewer
    before = [1] * (len(expected) - tensor.ndim) + list(tensor.shape)
    wanted = [
        size // old if old and size % old == 0 and site.values(item) * old != size else item
        for item, old, size in zip(items, before, expected, strict=True)
    ]
    if wanted == items:
        return
    if name:
        site.node.update_kwarg(name, tuple(wanted))
    else:
        site.node.args = (site.node.args[0], tuple(wanted))


@_fits("repeat_interleave")
def _repeat_interleave(site: CallSite) -> None:
    repeats, dim = site.argument(1, "repeats"), site.values(site.argument(2, "dim"))
    tensor = site.values(site.node.args[0])
    if isinstance(site.values(repeats), int) and isinstance(dim, int):
        size = site.expected[dim]
        if tensor.shape[dim] and site.values(repeats) * tensor.shape[dim] != size:
            site.set(1, "repeats", size // tensor.shape[dim])


@_fits(*FUNCTIONS_THAT_MAKE)
def _factory(site: CallSite) -> None:
    _sizes(site, infer=False, start=0)


def fit_unflatten(site: CallSite) -> None:
    """Set the sizes."""
    layout = site.input_layout()
    if layout is None:
        return
    dim = site.values(site.argument(1, "dim")) % len(layout.shape)
    items = list(site.argument(2, "sizes"))
    site.set(2, "sizes", _fitted_sizes(site, items, site.expected[dim : dim + len(items)], infer=True, first=dim))


@_fits("chunk", "split", "split_with_sizes", "tensor_split")
def _split(site: CallSite) -> None:
    """Replace the call by a split with explicit sizes, unless it gives the remaining sizes as it is."""
    node = site.node
    position = 2 if len(node.args) > 2 or "dim" not in node.kwargs else None
    dim = site.values(node.kwargs["dim"] if position is None else node.args[2] if len(node.args) > 2 else 0)
    sizes = [shape[dim] for shape in site.expected]
    tensor = site.values(node.args[0])
    if op_name(node, None) != "split_with_sizes" or list(site.values(node.args[1])) != sizes:
        natural = [] if tensor.shape[dim] != sum(sizes) else _result_as_written(site, tensor)
        if [piece.shape[dim] for piece in natural] != sizes:
            node.op, node.target = "call_function", torch.split
            node.args, node.kwargs = (node.args[0], sizes, dim), {}


def _result_as_written(site: CallSite, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return the result of the call as it is written; empty if it raises."""
    args, kwargs = site.values(site.node.args[1:]), site.values(dict(site.node.kwargs))
    try:
        if site.node.op == "call_method":
            return getattr(tensor, str(site.node.target))(*args, **kwargs)  # type: ignore[no-any-return]
        return site.node.target(tensor, *args, **kwargs)  # type: ignore[operator, no-any-return]
    except RuntimeError:
        return []


@_fits("getitem", "setitem")
def _getitem(site: CallSite) -> None:
    layout = site.input_layout()
    if layout is None:
        return
    index = site.node.args[1]
    items = list(index) if isinstance(index, tuple) else [index]
    dims = _dims_of(site, items, len(layout.shape))
    changed = [
        _moved_slice(site, layout, dim, item) if dim is not None else item
        for dim, item in zip(dims, items, strict=True)
    ]
    if changed != items:
        site.node.update_arg(1, tuple(changed) if isinstance(index, tuple) else changed[0])


def _dims_of(site: CallSite, items: Sequence[Any], ndim: int) -> list[int | None]:
    """Return the axis that each item of an index refers to."""
    values = [site.values(item) for item in items]
    widths = [
        0 if v is None or v is ... else v.ndim if isinstance(v, torch.Tensor) and v.dtype == torch.bool else 1
        for v in values
    ]
    dims: list[int | None] = []
    dim = 0
    for value, width in zip(values, widths, strict=True):
        dims.append(dim if width else None)
        dim += ndim - sum(widths) if value is ... else width
    return dims


def _moved_slice(site: CallSite, layout: Layout, dim: int, item: Any) -> Any:
    """Return a slice with its bounds moved by the channels removed before them; other items are unchanged.

    One in steps that no slice expresses any more becomes a list of places.
    """
    if not isinstance(item, slice) or not layout.axes[dim]:
        return item
    places = range(*slice(site.old(item.start), site.old(item.stop), item.step).indices(layout.shape[dim]))
    kept = layout.kept_places(site.slimming.keep, dim)
    left = [site.slimming.kept_before(layout, dim, place) for place in places if kept[place]]
    if list(range(*site.values(item).indices(int(kept.sum())))) == left:
        return item
    if places.step != 1:
        return left
    borders = [site.slimming.kept_before(layout, dim, place) for place in (places.start, places.stop)]
    return slice(None if item.start is None else borders[0], None if item.stop is None else borders[1], item.step)


@_fits("narrow")
def _narrow(site: CallSite) -> None:
    layout = site.input_layout()
    if layout is None:
        return
    dim = site.values(site.argument(1, "dim")) % len(layout.shape)
    start, length = (site.old(site.argument(i, name)) for i, name in ((2, "start"), (3, "length")))
    if layout.axes[dim]:
        first = site.slimming.kept_before(layout, dim, start)
        site.set(2, "start", first)
        site.set(3, "length", site.slimming.kept_before(layout, dim, start + length) - first)


def fit_layer_norm(site: CallSite) -> None:
    """Set the normalised shape."""
    items = site.argument(1, "normalized_shape")
    if isinstance(items, fx.Node):
        items = site.values(items)
    expected = site.expected[len(site.expected) - len(items) :]
    site.set(1, "normalized_shape", tuple(_fitted_sizes(site, list(items), expected, infer=False)))


def fit_group_norm(site: CallSite) -> None:
    """Set the number of groups."""
    layout = site.input_layout()
    if layout is not None:
        groups = site.old(site.argument(1, "num_groups"))
        site.set(1, "num_groups", site.slimming.groups_left(layout, 1, groups))


def fit_convolution(site: CallSite) -> None:
    """Set the number of groups, unless it is right already; transposed convolutions are not changed."""
    if "transpose" in op_name(site.node, None):
        return
    groups = site.values(site.argument(6, "groups", 1))
    x, weight = site.values(site.argument(0, "input")), site.values(site.argument(1, "weight"))
    fitting = x.shape[x.ndim - weight.ndim + 1] // weight.shape[1]
    if groups not in (1, fitting):
        site.set(6, "groups", fitting)


def fit_attention(site: CallSite) -> None:
    """Set the scale that the weights were trained with, if channels of a head were removed."""
    layout = site.input_layout()
    if layout is not None and site.values(site.node.args[0]).shape[-1] != layout.shape[-1]:
        scale = site.old(site.argument(6, "scale"))
        site.node.update_kwarg("scale", 1 / math.sqrt(layout.shape[-1]) if scale is None else scale)


@_fits("eye", "tensor", "as_tensor", "scalar_tensor")
def _keep_size(site: CallSite) -> None:
    """Keep the old size of a table that is made from sizes alone, and of a size that became a number."""
    _keep_numbers(site)


@_fits(*NUMBERING)
def _numbered(site: CallSite) -> None:
    """Numbers in a row stay those of the places that are left: where some are not, they are listed one by one."""
    _keep_numbers(site)
    layout = site.slimming.layout(site.node)
    if not isinstance(layout, Layout) or site.expected == layout.shape:
        return
    args, kwargs = site.values(site.node.args), site.values(dict(site.node.kwargs))
    numbers: torch.Tensor = site.node.target(*args, **kwargs)  # type: ignore[operator]
    kept = numbers.cpu()[torch.from_numpy(layout.kept_places(site.slimming.keep, 0))]
    device = {"device": site.node.kwargs["device"]} if "device" in site.node.kwargs else {}
    site.node.target, site.node.args = torch.tensor, (kept.tolist(),)
    site.node.kwargs = {"dtype": numbers.dtype, **device}

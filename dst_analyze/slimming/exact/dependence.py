"""Find the units that can be removed because nothing of them reaches the units that stay.

Wherever values are summed along an axis of channels (linear layers, convolutions, products, sums, states), a unit
**leaks** if one of its positions may be nonzero and a nonzero weight carries it to a position that stays. All other
operations that the coupling supports are elementwise along channels, or their rule marks them as inexact. So a set of
units none of which leaks can be removed without changing the rest. The largest such set is found by starting with all
removable units and keeping those that leak until none does, which also removes units that only read each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from dst_analyze.channels.contraction import parse_einsum
from dst_analyze.channels.groups import Coupling, Layout, Mask
from dst_analyze.channels.labels import LabelArray
from dst_analyze.channels.rule_call import ChannelRule, Effect, effect_of, op_name, rule_for
from dst_analyze.channels.rules import elementwise
from dst_analyze.channels.tensors import canonical_names
from dst_analyze.model.families import family_of_call
from dst_analyze.slimming.exact.constancy import ConstancyRun, argument, convolution_of, is_random_op

Constants = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_UNIFORM = 1e-6
"""The largest relative difference of a constant between positions, for rounding in pooling."""


@dataclass(frozen=True)
class Sum:
    """A sum of products in einsum notation: for each factor its possible nonzeros and the letters of its axes.

    ``summed`` are the letters summed over, ``units`` the units along each letter. ``folds``: positions along the
    summed letter of a plain layer that hold a constant, which the layer's bias can absorb.
    """

    factors: list[tuple[Bools, str]]
    summed: str
    units: dict[str, list[LabelArray]] = field(default_factory=dict)
    layer: str = ""
    folds: Bools | None = None
    constants: Constants | None = None

    @property
    def shared(self) -> list[str]:
        """The letters that are summed over or belong to several factors."""
        counts = Counter("".join(own for _, own in self.factors))
        return [letter for letter, count in counts.items() if count > 1 or letter in self.summed]

    def shortened(self) -> Sum:
        """Return the sum without axes that no unit or other factor has; a position is possible if it is along them."""
        needed = {*self.shared, *self.units}
        factors = []
        for possible, own in self.factors:
            lost = tuple(i for i, letter in enumerate(own) if letter not in needed)
            factors.append((np.asarray(possible.any(axis=lost)), "".join(letter for letter in own if letter in needed)))
        return replace(self, factors=factors)

    def leaving(self, leaves: Mask, letter: str) -> Bools | None:
        """Return the positions along a letter that are removed; None if no unit runs along it."""
        found = [leaves[units] & (units >= 0) for units in self.units.get(letter, [])]
        return np.logical_or.reduce(found) if found else None

    def leaks(self, leaves: Mask) -> set[int]:
        """Return the units to be removed that reach a position that stays."""
        blamed: set[int] = set()
        for letter in self.summed:
            gone = self.leaving(leaves, letter)
            if gone is None or not gone.any():
                continue
            places = self._reached(leaves, letter) & gone
            if self.folds is not None:
                places &= ~self.folds
            for units in self.units[letter]:
                mine = units[places]
                blamed |= set(mine[(mine >= 0) & leaves[mine]].tolist())
        return blamed

    def _reached(self, leaves: Mask, letter: str) -> Bools:
        """Return the positions along a summed letter that reach an output that stays."""
        shared = self.shared
        total: Any = np.ones([1] * len(shared), np.bool_)
        for possible, own in self.factors:
            for k in own:
                gone = self.leaving(leaves, k) if k not in self.summed else None
                if gone is not None and possible.shape[own.index(k)] == len(gone):
                    possible = possible & ~gone.reshape([-1 if o == k else 1 for o in own])
            private = tuple(i for i, k in enumerate(own) if k not in shared)
            possible, left = np.asarray(possible.any(axis=private)), [k for k in own if k in shared]
            order = [left.index(k) for k in shared if k in left]
            possible = possible.transpose(order)
            total = total & possible.reshape(
                [possible.shape[sum(j in left for j in shared[:i])] if k in left else 1 for i, k in enumerate(shared)]
            )
        others = tuple(i for i, k in enumerate(shared) if k != letter)
        return np.asarray(total.any(axis=others))


class DependenceCollector:
    """A visitor that collects the sums of every node; ``blocked`` units were read by unsupported operations."""

    def __init__(self, module: fx.GraphModule, coupling: Coupling, movable: Mask) -> None:
        self.sums: list[Sum] = []
        self.blocked = np.zeros(coupling.unit_count, np.bool_)
        self._module, self._coupling, self._movable = module, coupling, movable
        self._names = canonical_names(module)
        self._calls: dict[str, int] = {}
        for node in module.graph.nodes:
            if node.op == "call_module":
                self._calls[str(node.target)] = self._calls.get(str(node.target), 0) + 1

    def __call__(self, n: fx.Node, run: ConstancyRun) -> None:
        if n.op not in ("call_function", "call_method", "call_module"):
            return
        module: Any = run.fetch_attr(str(n.target)) if n.op == "call_module" else None
        parameters = [self._coupling.parameters.get(name) for name in self._tensor_names(n, module).values()]
        met = [self._layout(node) for node in n.all_input_nodes]
        if not any(self._has_removable(layout) for layout in (*met, *parameters)):
            return
        try:
            self._collect(n, module, run)
        except _UnclearError:
            self._block([*met, *parameters, self._layout(n)])

    def _collect(self, n: fx.Node, module: Any, run: ConstancyRun) -> None:
        op = op_name(n, module)
        family = family_of_call(module, op)
        note = family.sums.find(layer=module is not None) if family is not None else None
        if note is not None:
            note(self, n, module, run)
        elif op in elementwise.EXACT_SUMS:
            self._sum(n, run)
        elif is_random_op(op, n, module) or not _place_by_place(rule_for(n, module)):
            raise _UnclearError

    # Kinds of sums, referenced in the table of families.

    def note_linear(self, n: fx.Node, module: Any, run: ConstancyRun) -> None:
        x = _tensor(n, 0, "input")
        weight = _bools(module.weight != 0) if module is not None else self._possible(_tensor(n, 1, "weight"), run)
        lead, read = _letters(x, run)[:-1], "oi" if weight.ndim == 2 else "i"
        found = Sum([(self._possible(x, run), f"{lead}i"), (weight, read)], "i")
        self._add_units(found, f"{lead}i", self._layout(x))
        if module is None:
            self._add_units(found, read, self._layout(_tensor(n, 1, "weight")))
        if weight.ndim == 2:
            self._add_units(found, f"{lead}o", self._layout(n))
        self._add_sum(found if module is None else self._folded(found, n, module, run))

    def note_convolution(self, n: fx.Node, module: Any, run: ConstancyRun) -> None:
        kernel = convolution_of(n, module, run.env.__getitem__)
        if kernel is None:
            raise _UnclearError
        x, channel = kernel.source, kernel.channel(run.env[kernel.source])
        lead, reading = _letters(x, run), _bools(kernel.reading)
        if module is None and bool(run.moving(argument(n, 1, "weight")).any()):  # a weight made from the input
            reading = np.ones_like(reading)
        ins = f"{lead[:channel]}i{lead[channel + 1 :]}"
        found = Sum([(self._possible(x, run), ins), (reading, "oi")], "i")
        self._add_units(found, ins, self._layout(x))
        # Only the channels of the result: along its other axes positions differ from those of the input.
        self._add_units(found, "o", _only(self._layout(n), channel))
        foldable = module is not None and kernel.unpadded and kernel.groups == 1
        self._add_sum(self._folded(found, n, module, run, channel) if foldable else found)

    def note_product(self, n: fx.Node, module: None, run: ConstancyRun) -> None:
        self._product(n, 0, run)

    def note_added_product(self, n: fx.Node, module: None, run: ConstancyRun) -> None:
        self._product(n, 1, run)

    def _product(self, n: fx.Node, first_place: int, run: ConstancyRun) -> None:
        a, b = _tensor(n, first_place, ""), _tensor(n, first_place + 1, "")
        one, two = run.env[a].ndim, run.env[b].ndim
        batch = "ABCDEFGH"[: max(one, two, 2) - 2]
        first = "i" if one == 1 else f"{batch[len(batch) - one + 2 :]}li"
        second = "i" if two == 1 else f"{batch[len(batch) - two + 2 :]}ir"
        self._add_lettered([a, b], [first, second], "i", run)

    def note_einsum(self, n: fx.Node, module: None, run: ConstancyRun) -> None:
        tensors = [arg for arg in tree_leaves(list(n.args[1:])) if isinstance(arg, fx.Node)]
        spelt = parse_einsum(n.args[0], [run.env[tensor].ndim for tensor in tensors])
        if spelt is None:
            raise _UnclearError
        inputs, output = spelt
        summed = "".join(dict.fromkeys(k for own in inputs for k in own if k not in output))
        self._add_lettered(tensors, inputs, summed, run)

    def note_bilinear(self, n: fx.Node, module: Any, run: ConstancyRun) -> None:
        one, two = _tensor(n, 0, "input1"), _tensor(n, 1, "input2")
        lead = _letters(one, run)[:-1]
        factors = [(self._possible(one, run), f"{lead}i"), (self._possible(two, run), f"{lead}j")]
        found = Sum([*factors, (_bools(module.weight != 0), "oij")], "ij")
        for node, letter in ((one, "i"), (two, "j"), (n, "o")):
            self._add_units(found, f"{lead}{letter}", self._layout(node))
        self._add_sum(found)

    def note_dot_product_attention(self, n: fx.Node, module: None, run: ConstancyRun) -> None:
        if argument(n, 7, "enable_gqa", False):
            raise _UnclearError
        query, key, value = (_tensor(n, i, name) for i, name in enumerate(("query", "key", "value")))
        batch = "ABCDEFGH"[: run.env[query].ndim - 2]
        self._add_lettered([query, key], [f"{batch}ld", f"{batch}sd"], "d", run)
        # The softmax runs over the keys: removing one changes the weights of the others.
        self._block([_only(self._layout(node), -2) for node in (key, value)])

    def _sum(self, n: fx.Node, run: ConstancyRun) -> None:
        x, dim = _tensor(n, 0, "input"), argument(n, 1, "dim")
        letters = _letters(x, run)
        dims = [dim] if isinstance(dim, int) else dim if isinstance(dim, tuple | list) else range(len(letters))
        self._add_lettered([x], [letters], "".join(letters[d] for d in dims), run)

    def note_recurrent(self, n: fx.Node, module: Any, run: ConstancyRun) -> None:
        """Add the sums of a recurrent layer; states count as nonzero, so only unread hidden units are removed."""
        x = _tensor(n, 0, "input")
        if not isinstance(run.env[x], torch.Tensor):  # packed
            raise _UnclearError
        lead = _letters(x, run)[:-1]
        for name, full in self._tensor_names(n, module).items():
            if not name.startswith("weight"):
                continue
            found = Sum([(_bools(getattr(module, name) != 0), "oi")], "i")
            self._add_units(found, "oi", self._coupling.parameters.get(full))
            if name in ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse"):
                found.factors.append((self._possible(x, run), f"{lead}i"))
                self._add_units(found, f"{lead}i", self._layout(x))
            self._add_sum(found)

    def note_attention(self, n: fx.Node, module: Any, run: ConstancyRun) -> None:
        """Add the sums of the input projections, and that of the output projection, which reads the heads."""
        sources = [_tensor(n, i, name) for i, name in enumerate(("query", "key", "value"))]
        packed = module.in_proj_weight is not None
        names = ["in_proj_weight"] * 3 if packed else ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
        own = self._tensor_names(n, module)
        for x, name in zip(sources, names, strict=True):
            lead = _letters(x, run)[:-1]
            found = Sum([(self._possible(x, run), f"{lead}i"), (_bools(getattr(module, name) != 0), "oi")], "i")
            self._add_units(found, f"{lead}i", self._layout(x))
            self._add_units(found, "oi", self._coupling.parameters.get(own[name]))
            self._add_sum(found)
        found = Sum([(_bools(module.out_proj.weight != 0), "oi")], "i")
        self._add_units(found, "oi", self._coupling.parameters.get(f"{n.target}.out_proj.weight"))
        self._add_sum(found)

    # Notes.

    def _add_lettered(self, nodes: Sequence[fx.Node], letters: Sequence[str], summed: str, run: ConstancyRun) -> None:
        factors = [(self._possible(node, run), own) for node, own in zip(nodes, letters, strict=True)]
        found = Sum(factors, summed)
        for node, own in zip(nodes, letters, strict=True):
            self._add_units(found, own, self._layout(node))
        self._add_sum(found)

    def _add_sum(self, found: Sum) -> None:
        if any(letter in found.units for letter in found.summed):
            self.sums.append(found.shortened())

    def _add_units(self, found: Sum, letters: str, layout: Any) -> None:
        """Add the units along each letter, for axes along which units may be removed."""
        if not isinstance(layout, Layout):
            return
        for letter, units in zip(letters, layout.axes, strict=True):
            for vector in units:
                if self._movable[vector[vector >= 0]].any():
                    found.units.setdefault(letter, []).append(vector)

    def _folded(self, found: Sum, n: fx.Node, module: nn.Module, run: ConstancyRun, dim: int = -1) -> Sum:
        """Return the sum with the constants that a plain layer reads and that its bias can absorb."""
        if not self._plain(n, module):
            return found
        x = argument(n, 0, "input")
        moving, value = (t.movedim(dim, 0).flatten(1) for t in (run.moving(x), run.env[x].double()))
        low, high = value.min(1).values, value.max(1).values
        same = (high - low) <= _UNIFORM * torch.maximum(low.abs(), high.abs())
        folds = _bools(~moving.any(1) & same & value.isfinite().all(1))
        return replace(found, layer=str(n.target), folds=folds, constants=value.mean(1).cpu().numpy())

    def _plain(self, n: fx.Node, module: nn.Module) -> bool:
        """Return True for a layer with torch's own forward, no hooks and an unshared bias that is called once."""
        own = self._tensor_names(n, module)
        shared = [name for name, first in self._names.items() if first == own.get("bias")]
        torchs = type(module).forward.__module__.startswith("torch.")
        return torchs and self._calls[str(n.target)] == 1 and len(shared) < 2 and not _hooked(module)

    # Helpers.

    def _possible(self, node: Any, run: ConstancyRun) -> Bools:
        return _bools(run.possible(node))

    def _layout(self, node: Any) -> Any:
        return self._coupling.activations.get(node.name) if isinstance(node, fx.Node) else None

    def _tensor_names(self, n: fx.Node, module: nn.Module | None) -> dict[str, str]:
        """Return the full names of a layer's tensors by their names in the layer."""
        if module is None:
            return {}
        named = [*module.named_parameters(), *module.named_buffers()]
        return {name: self._names.get(f"{n.target}.{name}", f"{n.target}.{name}") for name, _ in named}

    def _has_removable(self, layout: Any) -> bool:
        return any(bool(self._movable[units[units >= 0]].any()) for units in _units(layout))

    def _block(self, layouts: Iterable[Any]) -> None:
        for layout in layouts:
            for units in _units(layout):
                self.blocked[units[units >= 0]] = True


def largest(sums: Sequence[Sum], leaves: Mask) -> Mask:
    """Return the largest set of removable units none of which leaks."""
    leaves = leaves.copy()
    while blamed := set().union(*(found.leaks(leaves) for found in sums)):
        leaves[list(blamed)] = False
    return leaves


class _UnclearError(Exception):
    """A node is not supported, so the units that it reads stay."""


def _tensor(n: fx.Node, position: int, name: str) -> fx.Node:
    found = argument(n, position, name)
    if not isinstance(found, fx.Node):
        raise _UnclearError
    return found


def _place_by_place(rule: ChannelRule | None) -> bool:
    """Return True if a rule's operation does not sum over channels; False for rules that a user registered."""
    return rule is None or effect_of(rule) is not Effect.UNKNOWN


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _units(layout: Any) -> list[LabelArray]:
    if isinstance(layout, Layout):
        return [units for axis in layout.axes for units in axis]
    if isinstance(layout, Mapping):
        layout = tuple(layout.values())
    return [units for item in layout for units in _units(item)] if isinstance(layout, tuple) else []


def _only(layout: Any, dim: int) -> Any:
    if not isinstance(layout, Layout):
        return None
    return Layout(layout.shape[dim : dim + 1 or None], (layout.axes[dim],))


def _letters(node: fx.Node, run: ConstancyRun) -> str:
    return "ABCDEFGH"[: run.env[node].ndim]


def _bools(tensor: torch.Tensor) -> Bools:
    return np.asarray(tensor.detach().cpu().numpy(), np.bool_)

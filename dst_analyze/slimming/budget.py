"""Widths under a budget: a rule says how wide a group is at some generosity, the budget says how generous to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from dst_analyze.errors import OptionError
from dst_analyze.slimming.density import Evidence, GroupEvidence
from dst_analyze.slimming.groups import Coupling, Group

Widths = dict[str, int]
Cost = Callable[[Mapping[str, int]], float]
Rule = Callable[[GroupEvidence, float], float]
"""Evidence and generosity to the share of a group's units that stay; rises with generosity, from none to all."""

TOLERANCE = 0.02
"""How far a reached budget may lie from the one asked for, as a share of it."""
_STRAYED = 0.1  # of its width, that a group may be off to give the others' rounding back
_HALVINGS = 60
_MOST_GENEROUS = 1e4


def _by_density(evidence: GroupEvidence, generosity: float) -> float:
    return generosity * evidence.density


def _by_root(evidence: GroupEvidence, generosity: float) -> float:
    return generosity * float(np.sqrt(evidence.density))


def _by_units(evidence: GroupEvidence, generosity: float) -> float:
    """Every unit by its own density: a group of a few dense units and many empty ones keeps the few."""
    return float(np.minimum(generosity * evidence.sorted_units, 1.0).mean())


RULES: dict[str, Rule] = {"density": _by_density, "sqrt": _by_root, "units": _by_units}
DEFAULT_RULE = "density"


def check_asked(options: Mapping[str, Any]) -> None:
    """Refuse options of a suggestion (those of `suggest_widths`) that make no budget."""
    rule = options.get("rule", DEFAULT_RULE)
    if rule not in RULES:
        raise OptionError(f"there is no rule {rule!r}", place="--rule", hint=f"choose one of {', '.join(RULES)}")
    for name, share in options.items():
        if name.startswith("target_") and share is not None and not 0 < share < 1:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{share} is not a share between 0 and 1", place=option, hint="such as 0.5")


@dataclass(frozen=True)
class Limits:
    """What a width may be: at least ``min_width``, a multiple of ``round_to``; as it is where ``keep`` matches.

    ``unclear`` are layers about which too little is known to narrow them.
    """

    round_to: int = 8
    min_width: int = 1
    keep: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()

    def kept(self, group: Group) -> str:
        """Why a group stays as it is; empty if it need not."""
        layers = group.layers("produces")
        if any(fnmatchcase(name, pattern) for name in (group.name, *layers) for pattern in self.keep):
            return "kept, as asked"
        unclear = [layer for layer in layers if layer in self.unclear]
        return f"unclear in the ranking ({', '.join(unclear[:3])})" if unclear and len(unclear) == len(layers) else ""

    def steps(self, group: Group) -> list[int]:
        """The widths a group may have, in units, narrowest first; whole heads are not rounded to eights."""
        per_unit = group.per_unit
        step = max(1, -(-self.round_to // per_unit)) if per_unit < self.round_to else 1
        least = min(group.width, max(group.floor, -(-self.min_width // per_unit)))
        widths = [width for width in range(step, group.width, step) if width >= least] or [least]
        return sorted({*widths, group.width})


def widths_for(
    groups: Iterable[Group], evidence: Evidence, rule: Rule, limits: Limits, cost: Cost, most: float
) -> Widths:
    """The most generous widths that cost at most ``most``, then rounded, the rounding's error given back."""
    groups = [group for group in groups if not limits.kept(group)]
    allowed = {group.name: limits.steps(group) for group in groups}

    def ideal(generosity: float) -> dict[str, float]:
        return {
            group.name: min(
                max(group.width * rule(evidence[group.name], generosity), allowed[group.name][0]), group.width
            )
            for group in groups
        }

    low, high = 0.0, _MOST_GENEROUS
    if cost(_nearest(ideal(high), allowed)) <= most:
        return _nearest(ideal(high), allowed)
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5 if low else high / 2**20
        low, high = (middle, high) if cost(_floored(ideal(middle))) <= most else (low, middle)
    wanted = ideal(low or 1e-9)
    return _balanced(_nearest(wanted, allowed), wanted, allowed, cost, most)


def _floored(widths: Mapping[str, float]) -> Widths:
    return {name: max(1, round(width)) for name, width in widths.items()}


def _nearest(widths: Mapping[str, float], allowed: Mapping[str, list[int]]) -> Widths:
    return {name: min(allowed[name], key=lambda step: (abs(step - width), -step)) for name, width in widths.items()}


def _balanced(
    widths: Widths, wanted: Mapping[str, float], allowed: Mapping[str, list[int]], cost: Cost, most: float
) -> Widths:
    """Step by step towards the budget, by the group whose rounding strayed furthest the other way."""
    seen = {tuple(widths.values())}
    while abs(cost(widths) - most) > TOLERANCE / 4 * most:
        up = cost(widths) < most
        moves = []
        for name, width in widths.items():
            at = allowed[name].index(width) + (1 if up else -1)
            if 0 <= at < len(allowed[name]) and _near(allowed[name], at, wanted[name]):
                new = {**widths, name: allowed[name][at]}
                strayed = (width - wanted[name]) / max(wanted[name], 1)
                moves.append((abs(cost(new) - most), strayed if up else -strayed, new))
        better = [move for move in moves if move[0] < abs(cost(widths) - most)]
        if not better:
            break
        widths = min(better, key=lambda move: move[1])[2]
        if tuple(widths.values()) in seen:
            break
        seen.add(tuple(widths.values()))
    return widths


def _near(steps: list[int], at: int, wanted: float) -> bool:
    """Whether a width is one of the two around the wanted one, or nearly: no cheap group is to pay for all others."""
    low = max((step for step in steps if step <= wanted), default=steps[0])
    high = min((step for step in steps if step >= wanted), default=steps[-1])
    return low <= steps[at] <= high or abs(steps[at] - wanted) <= _STRAYED * wanted


class Costs:
    """Parameters and MACs at given widths, counted from the layouts without building anything."""

    def __init__(self, coupling: Coupling, numel: Mapping[str, int], macs: Mapping[str, int]) -> None:
        """``numel`` of every parameter of the model, ``macs`` per sample of those parameters that multiply."""
        self._fixed = sum(size for name, size in numel.items() if name not in coupling.parameters)
        self._macs = macs
        group_of = {unit: group for group in coupling.removable for unit in group.units}
        self._widths = {group.name: group.width for group in coupling.removable}
        self._axes: dict[str, list[list[dict[str, float]]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name in numel:
            if name in coupling.parameters:
                layout = coupling.parameters[name]
                self._shapes[name] = layout.shape
                self._axes[name] = [[_shares(units.tolist(), group_of) for units in axis] for axis in layout.axes]

    def sizes(self, widths: Mapping[str, int]) -> dict[str, float]:
        """How many weights each parameter has left."""
        part = {name: widths.get(name, whole) / whole for name, whole in self._widths.items()}

        def left(families: list[dict[str, float]]) -> float:
            share = 1.0
            for family in families:
                share *= sum(weight * part.get(name, 1.0) for name, weight in family.items())
            return share

        return {
            name: float(np.prod(self._shapes[name])) * float(np.prod([left(axis) for axis in axes]))
            for name, axes in self._axes.items()
        }

    def params(self, widths: Mapping[str, int]) -> float:
        return self._fixed + sum(self.sizes(widths).values())

    def macs(self, widths: Mapping[str, int]) -> float:
        sizes = self.sizes(widths)
        return sum(
            macs * (sizes[name] / np.prod(self._shapes[name]) if name in sizes else 1.0)
            for name, macs in self._macs.items()
        )


def _shares(units: list[int], group_of: Mapping[int, Group]) -> dict[str, float]:
    """What share of an axis belongs to which group; "" is what belongs to none."""
    shares: dict[str, float] = {}
    for unit in units:
        name = group_of[unit].name if unit in group_of else ""
        shares[name] = shares.get(name, 0.0) + 1 / len(units)
    return shares

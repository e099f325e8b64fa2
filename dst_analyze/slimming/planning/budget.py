"""Widths within a budget: a rule gives each group's width at some generosity, and the budget sets the generosity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import numpy as np

from dst_analyze.channels.groups import Coupling, Group
from dst_analyze.errors import OptionError
from dst_analyze.slimming.planning.density import Evidence, GroupEvidence
from dst_analyze.slimming.planning.plan_types import Limits

Widths = dict[str, int]

TOLERANCE = 0.02
"""The largest deviation of a reached budget from the requested one, as a share of it."""
_ROUNDING_SLACK = 0.05  # of its width: how far a group may deviate to compensate the others' rounding
_HALVINGS = 60
_MOST_GENEROUS = 1e4
_ALIKE_HALVINGS = 20
_MIXINGS = 8  # of the prices of two budgets
_PRICINGS = 12  # prices converge to within a percent in half as many


@dataclass(frozen=True)
class WidthRule:
    """A rule for widths: from a group, its evidence, its price and a generosity to the share of its units that stay.

    The share rises with generosity, from none to all. The price of a group is the share of the model's cost that
    depends on it at its full width, with the other groups at their final widths; only ``priced`` rules use it.
    ``factors`` are the named factors of a share besides its density to the ``power``.
    """

    share: Callable[[Group, GroupEvidence, float, float], float]
    priced: bool = False
    factors: Callable[[Group, float], Mapping[str, float]] = lambda group, price: {}
    power: float = 1.0


def _balance_factors(group: Group, price: float) -> dict[str, float]:
    """Return the factors of a balanced share for the layers that use a group, its price and its width."""
    width = group.width * group.per_unit
    return {"uses": math.sqrt(group.uses), "price": 1 / math.sqrt(price), "width": width ** (-1 / 3)}


def _balance(group: Group, evidence: GroupEvidence, price: float, generosity: float) -> float:
    """Return the share that balances the loss of quality against the cost saved.

    A group of w channels of density d, narrowed from W, is taken to lose d² ∛W / w in each of the u layers that make
    or read it. The least total loss at a given cost has w = g · d · √(u ∛W / c), with c the cost of one channel, as in
    Neyman's allocation of samples to strata. As a share of W that is g · d · √(u / (c W · ∛W²)), and c W is the price.

    ∛W is how much the width that a layer had counts as evidence of its need. The factor u keeps channels that run
    past many residual blocks from being cut for a price that is the blocks'. Measured in docs/experiments/slim-nets.md.
    """
    return generosity * evidence.density * math.prod(_balance_factors(group, price).values())


RULES: dict[str, WidthRule] = {
    "balance": WidthRule(_balance, priced=True, factors=_balance_factors),
    "density": WidthRule(lambda group, evidence, price, generosity: generosity * evidence.density),
    "sqrt": WidthRule(lambda group, evidence, price, generosity: generosity * math.sqrt(evidence.density), power=0.5),
    # By each unit's density, so that a group of a few dense units and many empty ones keeps the few.
    "units": WidthRule(
        lambda group, evidence, price, generosity: float(np.minimum(generosity * evidence.sorted_units, 1.0).mean())
    ),
}
DEFAULT_RULE = "balance"


def check_asked(options: Mapping[str, Any]) -> None:
    """Raise on options of `suggest_widths` that are no valid rule or budget."""
    if options.get("target") not in (None, "auto"):
        raise OptionError(f"there is no target {options['target']!r}", place="--target", hint="give auto or no target")
    rule = options.get("rule", DEFAULT_RULE)
    if rule not in RULES:
        raise OptionError(f"there is no rule {rule!r}", place="--rule", hint=f"choose one of {', '.join(RULES)}")
    targets = [name for name, share in options.items() if name.startswith("target_") and share is not None]
    if options.get("target") is not None and targets:
        raise OptionError(
            f"a size is asked for (--{targets[0].replace('_', '-')}) and left to the sweep (--target auto)",
            place="--target",
            hint="give one of them",
        )
    for name, share in options.items():
        if name.startswith("target_") and share is not None and not 0 < share < 1:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{share} is not a share between 0 and 1", place=option, hint="give one such as 0.5")


def why_kept(limits: Limits, group: Group) -> str:
    """Return why a group keeps its width; empty if it may be narrowed."""
    layers = group.layers("produces")
    if any(fnmatchcase(name, pattern) for name in (group.name, *layers) for pattern in limits.keep):
        return "kept, as asked"
    unclear = [layer for layer in layers if layer in limits.unclear]
    return f"unclear in the ranking ({', '.join(unclear[:3])})" if unclear and len(unclear) == len(layers) else ""


def allowed_widths(limits: Limits, group: Group) -> list[int]:
    """Return the allowed widths of a group in units, narrowest first; whole heads are not rounded."""
    per_unit = group.per_unit
    step = max(1, -(-limits.step(group.width * per_unit) // per_unit))
    channels = limits.least(group.layers("produces"), group.width * per_unit)
    least = min(group.width, max(group.floor, -(-channels // per_unit)))
    widths = [width for width in range(step, group.width, step) if width >= least] or [least]
    return sorted({*widths, group.width})


def widths_for(
    groups: Iterable[Group], evidence: Evidence, rule: WidthRule, limits: Limits, budgets: Sequence[Budget]
) -> Widths:
    """Return the most generous widths within all budgets, rounded, with the rounding's error compensated."""
    groups = [group for group in groups if not why_kept(limits, group)]
    allowed = {group.name: allowed_widths(limits, group) for group in groups}

    def priced(parts: Mapping[int, float]) -> dict[str, float]:
        """Return ideal widths; prices are those of some budgets, by index, each with its part."""
        prices = dict.fromkeys(allowed, 1.0)

        def ideal(generosity: float) -> dict[str, float]:
            shares = {g.name: rule.share(g, evidence[g.name], prices[g.name], generosity) for g in groups}
            return {g.name: min(max(g.width * shares[g.name], allowed[g.name][0]), g.width) for g in groups}

        def fits(generosity: float) -> bool:
            return max(budget.used(_floored(ideal(generosity))) for budget in budgets) <= 1

        if max(budget.used(_nearest(ideal(_MOST_GENEROUS), allowed)) for budget in budgets) <= 1:
            return ideal(_MOST_GENEROUS)
        for _ in range(_PRICINGS if rule.priced else 1):
            wanted = ideal(largest_fitting(fits))
            each = {at: prices_at(budgets[at].cost, groups, wanted) for at in parts}
            whole = {name: sum(part * each[at][name] for at, part in parts.items()) for name in allowed}
            # Damped, as the prices of two groups that depend on each other would otherwise oscillate.
            prices = {name: math.sqrt(price * whole[name]) for name, price in prices.items()}
        return wanted

    wanted = _within_all(priced, budgets) if rule.priced else priced({0: 1.0})
    return _balanced(_nearest(wanted, allowed), wanted, allowed, budgets)


def _within_all(
    priced: Callable[[Mapping[int, float]], dict[str, float]], budgets: Sequence[Budget]
) -> dict[str, float]:
    """Return ideal widths within all budgets: priced by the one that binds, or by two that bind together.

    Where the widths priced by one budget would break the other and the other way round, the least loss is where both
    are used up: a mixture of their prices, found by bisection.
    """
    if len(budgets) == 1:
        return priced({0: 1.0})
    for at in range(len(budgets)):
        wanted = priced({at: 1.0})
        if max(range(len(budgets)), key=lambda other: budgets[other].used(wanted)) == at:
            return wanted
    low, high = 0.0, 1.0  # the part of the first budget's price
    for _ in range(_MIXINGS):
        middle = (low + high) / 2
        wanted = priced({0: middle, 1: 1 - middle})
        low, high = (middle, high) if budgets[0].used(wanted) > budgets[1].used(wanted) else (low, middle)
    return wanted


def prices_at(cost: Cost, groups: Iterable[Group], widths: Mapping[str, float]) -> dict[str, float]:
    """Return the price of each group at given widths: the cost that depends on it if it alone had its full width."""
    now = cost.dependent_shares(widths)
    return {g.name: now[g.name] * g.width / widths.get(g.name, g.width) for g in groups}


def share_alike(groups: Sequence[Group], used: Callable[[Mapping[str, float]], float]) -> float:
    """Return the share that each group would keep if all were thinned alike to use up the budget."""
    if used({}) <= 1:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(_ALIKE_HALVINGS):
        middle = (low + high) / 2
        fits = used({group.name: middle * group.width for group in groups}) <= 1
        low, high = (middle, high) if fits else (low, middle)
    return low


def largest_fitting(fits: Callable[[float], bool]) -> float:
    """Return the largest generosity that fits, by bisection."""
    low, high = 0.0, _MOST_GENEROUS
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5 if low else high / 2**20
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low or 1e-9


def _floored(widths: Mapping[str, float]) -> Widths:
    return {name: max(1, round(width)) for name, width in widths.items()}


def _nearest(widths: Mapping[str, float], allowed: Mapping[str, list[int]]) -> Widths:
    return {name: min(allowed[name], key=lambda step: (abs(step - width), -step)) for name, width in widths.items()}


def _balanced(
    widths: Widths,
    wanted: Mapping[str, float],
    allowed: Mapping[str, list[int]],
    budgets: Sequence[Budget],
) -> Widths:
    """Return widths closer to the budget, changing in each step the group that was rounded furthest the other way."""
    seen = {tuple(widths.values())}
    while True:
        now = [budget.used(widths) for budget in budgets]
        error, up = abs(max(now) - 1), max(now) < 1
        if error <= TOLERANCE / 4:
            break
        better = []
        for name, width in widths.items():
            at = allowed[name].index(width) + (1 if up else -1)
            if 0 <= at < len(allowed[name]) and _near(allowed[name], at, wanted[name]):
                new = allowed[name][at]
                used = max(old + budget.change(widths, name, new) for old, budget in zip(now, budgets, strict=True))
                strayed = (width - wanted[name]) / max(wanted[name], 1)
                if abs(used - 1) < error:
                    better.append((strayed if up else -strayed, name, new))
        if not better:
            break
        _, name, new = min(better, key=lambda move: move[0])
        widths = {**widths, name: new}
        if tuple(widths.values()) in seen:
            break
        seen.add(tuple(widths.values()))
    return widths


def _near(steps: list[int], at: int, wanted: float) -> bool:
    """Return True if a width is close to the wanted one, so that no cheap group compensates for all others."""
    low = max((step for step in steps if step <= wanted), default=steps[0])
    high = min((step for step in steps if step >= wanted), default=steps[-1])
    return low <= steps[at] <= high or abs(steps[at] - wanted) <= _ROUNDING_SLACK * wanted


class Cost:
    """The parameters or MACs of a model at given widths, computed from layouts without building it."""

    def __init__(self, coupling: Coupling, weights: Mapping[str, float], outside: float = 0) -> None:
        """Prepare to count.

        Args:
            coupling: Which channels belong together.
            weights: What each parameter of the model's graph costs as it is.
            outside: What the user's model costs besides; the slim model is without it.
        """
        self._outside = outside
        group_of = {unit: group for group in coupling.removable for unit in group.units}
        self._widths = {group.name: group.width for group in coupling.removable}
        self._fixed = sum(cost for name, cost in weights.items() if name not in coupling.parameters)
        self._costs = {name: cost for name, cost in weights.items() if name in coupling.parameters}
        self._axes = {
            name: [_shares(units.tolist(), group_of) for axis in coupling.parameters[name].axes for units in axis]
            for name in self._costs
        }
        self._using: dict[str, list[str]] = {name: [] for name in self._widths}
        for name, axes in self._axes.items():
            for group in {group for family in axes for group in family} & self._using.keys():
                self._using[group].append(name)
        # The same as arrays, as widths are found by counting thousands of times. One entry for each group of each axis;
        # the last column stands for what is in no group.
        column = {name: at for at, name in enumerate(self._widths)}
        families = [[family or {"": 1.0} for family in axes or [{}]] for axes in self._axes.values()]
        flat = [family for axes in families for family in axes]
        entries = [(column.get(name, len(column)), weight) for family in flat for name, weight in family.items()]
        self._column, self._weight = np.array([at for at, _ in entries], dtype=int), np.array([w for _, w in entries])
        self._family = _starts(map(len, flat))
        self._parameter = _starts(map(len, families))
        self._cost = np.array(list(self._costs.values()), dtype=float)
        self._inside = self.of({})

    def of(self, widths: Mapping[str, float]) -> float:
        """Return the cost at given widths; groups that are not named have their full width."""
        return self._fixed + float(self._left(self._parts(widths))[1].sum())

    def _left(self, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the share that is left of each axis, and the cost of each parameter."""
        if not len(self._cost):
            return np.ones(0), np.zeros(0)
        axes = np.add.reduceat(self._weight * parts[self._column], self._family)
        return axes, self._cost * np.multiply.reduceat(axes, self._parameter)

    @property
    def whole(self) -> float:
        """The cost of the user's model as it is."""
        return self._inside + self._outside

    def change(self, widths: Mapping[str, float], group: str, width: float) -> float:
        """Return how the cost changes if one group gets another width; only the parameters that use it are counted."""

        def share_of(name: str, own: float) -> float:
            if name == group:
                return own / self._widths[name]
            return widths.get(name, self._widths[name]) / self._widths[name] if name in self._widths else 1.0

        def left(name: str, own: float) -> float:
            families = self._axes[name]
            return math.prod(sum(part * share_of(other, own) for other, part in each.items()) for each in families)

        now = widths.get(group, self._widths[group])
        return sum(self._costs[name] * (left(name, width) - left(name, now)) for name in self._using[group])

    def dependent_shares(self, widths: Mapping[str, float]) -> dict[str, float]:
        """Return the share of the model's cost that depends on each group: its derivative by the group's width."""
        parts = self._parts(widths)
        axes, costs = self._left(parts)
        of_axis = np.repeat(costs, np.diff(self._parameter, append=len(axes))) / axes
        of_entry = np.repeat(of_axis, np.diff(self._family, append=len(self._weight)))
        found = np.bincount(self._column, of_entry * self._weight * parts[self._column], len(parts))
        return {name: max(float(cost) / self._inside, 1e-12) for name, cost in zip(self._widths, found, strict=False)}

    def _parts(self, widths: Mapping[str, float]) -> np.ndarray:
        return np.array([*(widths.get(name, whole) / whole for name, whole in self._widths.items()), 1.0])


@dataclass(frozen=True)
class Budget:
    """A share of a model's cost."""

    cost: Cost
    share: float

    def used(self, widths: Mapping[str, float]) -> float:
        """Return the share of the budget that widths use; 1 is all of it."""
        return self.cost.of(widths) / (self.share * self.cost.whole)

    def change(self, widths: Mapping[str, float], group: str, width: float) -> float:
        """Return how the used share changes if one group gets another width."""
        return self.cost.change(widths, group, width) / (self.share * self.cost.whole)


def _starts(lengths: Iterable[int]) -> np.ndarray:
    """Return where each part begins in a row of parts of these lengths."""
    return np.array([0, *accumulate(lengths)][:-1], dtype=int)


def _shares(units: list[int], group_of: Mapping[int, Group]) -> dict[str, float]:
    """Return the share of an axis that belongs to each group; "" stands for no group."""
    shares: dict[str, float] = {}
    for unit in units:
        name = group_of[unit].name if unit in group_of else ""
        shares[name] = shares.get(name, 0.0) + 1 / len(units)
    return shares

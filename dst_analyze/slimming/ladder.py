"""The ladder of a plan: the widths at several sizes, so that a designer sees where the knee is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from dst_analyze.slimming.budget import Cost, Widths
from dst_analyze.slimming.groups import Coupling
from dst_analyze.slimming.values import Rung, SlimPlan

SHARES = (0.75, 0.5, 0.25, 0.1)


def ladder_of(
    coupling: Coupling,
    widths_of: Callable[[Mapping[str, float]], Widths],
    costs: Mapping[str, Cost],
    axis: Literal["params", "macs"],
    plan: SlimPlan,
) -> tuple[Rung, ...]:
    """Return the widths for each of `SHARES` of the parameters or MACs; sizes are counted without building.

    ``plan`` is one that was built: what belongs to no layer (attention's own products) is known at its size.
    """
    per_unit = {group.name: group.per_unit for group in coupling.removable}
    whole: Widths = {group.name: group.width for group in coupling.removable}
    macs = _Macs.of(costs["macs"], plan)
    rungs = []
    for share in SHARES:
        widths = whole | widths_of({axis: share})
        rungs.append(
            Rung(
                axis=axis,
                share=share,
                widths={name: width * per_unit[name] for name, width in widths.items()},
                params=round(costs["params"].of(widths)),
                macs=None if macs is None else macs.at(widths),
            )
        )
    return tuple(rungs)


@dataclass(frozen=True)
class _Macs:
    """MACs at given widths: those of layers, and a rest that follows a power of them."""

    cost: Cost
    rest: float
    power: float

    @classmethod
    def of(cls, cost: Cost, plan: SlimPlan) -> _Macs | None:
        """Return the power that is right for a plan; None where MACs could not be counted."""
        if not plan.macs or plan.new_macs is None or not cost.of({}):
            return None
        left = {group.group: group.units - len(group.removed) for group in plan.groups}
        rest, after = plan.macs - cost.of({}), plan.new_macs - cost.of(left)
        shrunk = cost.of(left) / cost.of({})
        known = rest > 0 and 0 < after <= rest and shrunk < 1
        # A layer shrinks with two widths, a product of activations with one.
        return cls(cost, rest, math.log(after / rest) / math.log(shrunk) if known else 0.5)

    def at(self, widths: Mapping[str, float]) -> int:
        layers = self.cost.of(widths)
        return round(layers + self.rest * (layers / self.cost.of({})) ** self.power)

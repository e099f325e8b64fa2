"""Which channels are too many in proportion: the widths of a network beside those of a balanced one.

A balanced network has as many parameters and the widths that the evidence asks for, each as wide as the rule says, some
wider than they are. How far its proportions differ from the network's shows a layer that was drawn too wide, and shows
nothing in a network that was drawn well, where some layers are sparser than others all the same
(docs/experiments/flaws.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dst_analyze.channels.groups import Group
from dst_analyze.slimming.planning.budget import DEFAULT_RULE, RULES, Cost, largest_fitting, prices_at
from dst_analyze.slimming.planning.density import Evidence

_PRICINGS = 24


def width_excess(groups: Sequence[Group], evidence: Evidence, cost: Cost) -> dict[str, float]:
    """Return how many times as wide as in a balanced network each group is, relative to the typical group.

    The typical group is the geometric mean, so the excesses of all groups have the product 1.
    """
    widths = {group.name: float(group.width) for group in groups}
    rule, whole = RULES[DEFAULT_RULE], cost.of({})
    for _ in range(_PRICINGS):
        prices = prices_at(cost, groups, widths)
        shares = {group.name: rule.share(group, evidence[group.name], prices[group.name], 1.0) for group in groups}

        def wanted(generosity: float, shares: dict[str, float] = shares) -> dict[str, float]:
            return {group.name: max(1.0, generosity * group.width * shares[group.name]) for group in groups}

        found = wanted(largest_fitting(lambda generosity: cost.of(wanted(generosity)) <= whole))
        # Damped, as the prices of two groups that depend on each other would otherwise oscillate.
        widths = {name: math.sqrt(width * found[name]) for name, width in widths.items()}
    logs = {group.name: math.log(group.width / widths[group.name]) for group in groups}
    typical = sum(logs.values()) / max(len(logs), 1)
    return {name: math.exp(value - typical) for name, value in logs.items()}

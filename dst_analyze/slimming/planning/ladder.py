"""The ladder of a plan: its widths at several sizes, which show where narrowing starts to cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from dst_analyze.channels.groups import Coupling
from dst_analyze.model.tracing.trace import TracedModel
from dst_analyze.slimming.planning.budget import Cost, Widths
from dst_analyze.slimming.planning.plan_types import Rung

SHARES = (0.75, 0.5, 0.25, 0.1)


def ladder_of(
    traced: TracedModel,
    coupling: Coupling,
    widths_of: Callable[[Mapping[str, float]], Widths],
    costs: Mapping[str, Cost],
    axis: Literal["params", "macs"],
) -> tuple[Rung, ...]:
    """Return the widths for each of `SHARES` of the parameters or MACs; sizes are counted without building."""
    per_unit = {group.name: group.per_unit for group in coupling.removable}
    whole: Widths = {group.name: group.width for group in coupling.removable}
    rungs = []
    for share in SHARES:
        widths = whole | widths_of({axis: share})
        rungs.append(
            Rung(
                axis=axis,
                share=share,
                widths={name: width * per_unit[name] for name, width in widths.items()},
                params=round(costs["params"].of(widths)),
                macs=_macs(traced, coupling, costs["macs"], widths) if traced.macs else None,
            )
        )
    return tuple(rungs)


def _macs(traced: TracedModel, coupling: Coupling, cost: Cost, widths: Widths) -> int:
    """Return the MACs at given widths; what belongs to no layer (attention's own products) goes with the heads."""
    layers, left = cost.of({}), cost.of(widths)
    heads = [group for group in coupling.removable if group.per_unit > 1]
    channels = sum(group.width * group.per_unit for group in heads)
    if channels:
        kept = sum(widths[group.name] * group.per_unit for group in heads) / channels
    else:  # a layer shrinks with two widths, a product of activations with one
        kept = math.sqrt(left / layers) if layers else 1.0
    return round(left + (traced.macs - layers) * kept)

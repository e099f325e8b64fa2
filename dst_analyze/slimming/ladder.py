"""The ladder of a plan: the widths at several sizes, so that a designer sees where the knee is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from dst_analyze.model.tracing import TracedModel
from dst_analyze.slimming.budget import Cost, Widths
from dst_analyze.slimming.groups import Coupling
from dst_analyze.slimming.values import Rung

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
                # What no layer's weights account for (attention's own products) is counted as it is.
                macs=round(traced.macs - costs["macs"].of({}) + costs["macs"].of(widths)) if traced.macs else None,
            )
        )
    return tuple(rungs)

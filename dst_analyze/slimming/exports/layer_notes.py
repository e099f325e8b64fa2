"""What is known of each layer, for programs that show graphs: label, redundancy, spare share and widths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dst_analyze.slimming.exports.result import SlimResult


@dataclass(frozen=True)
class LayerNote:
    """One layer. Values that are not known are None or empty."""

    label: str = ""
    redundancy: float | None = None
    spare: float | None = None
    width: int | None = None  # of the channels that it makes
    new_width: int | None = None

    def properties(self) -> dict[str, str]:
        """Return what is known as text, by the names that the files have."""
        widths = ""
        if self.width is not None and self.new_width is not None:
            widths = f"{self.width} -> {self.new_width}" if self.width != self.new_width else f"{self.width}, kept"
        found = {
            "label": self.label,
            "redundancy": "" if self.redundancy is None else f"{self.redundancy:.3g}",
            "spare": "" if self.spare is None else f"{self.spare:.1%}",
            "width": widths,
        }
        return {f"dst_analyze.{name}": text for name, text in found.items() if text}


def layer_notes(result: SlimResult) -> dict[str, LayerNote]:
    """Return what is known of each layer of the model, by its name."""
    groups = result.plan.groups if result.plan is not None else ()
    widths = {layer: (group.width, group.new_width, group.label) for group in groups for layer in group.layers}
    ranked: dict[str, Any] = {}
    if result.ranking is not None:
        ranked = {row.layer: row for row in result.ranking.table.itertuples(index=False)}
    notes = {}
    for name in dict.fromkeys((*ranked, *widths)):
        row = ranked.get(name)
        width, new_width, label = widths.get(name, (None, None, ""))
        notes[name] = LayerNote(
            label=str(row.label) if row is not None else label,
            redundancy=_known(row.redundancy) if row is not None else None,
            spare=_known(row.spare) if row is not None else None,
            width=width,
            new_width=new_width,
        )
    return notes


def layer_of(parameter: str, notes: dict[str, LayerNote]) -> str:
    """Return the layer that a parameter belongs to; empty if it is no layer's."""
    while parameter:
        if parameter in notes:
            return parameter
        parameter = parameter.rpartition(".")[0]
    return ""


def summary_properties(result: SlimResult) -> dict[str, str]:
    """Return what is known of the whole model as text."""
    plan, found = result.plan, dict[str, str]()
    if plan is not None:
        found["dst_analyze.model"] = plan.model
        found["dst_analyze.parameters"] = f"{plan.params} -> {plan.new_params}"
        found["dst_analyze.plan"] = plan.sha256
    if plan is not None and plan.macs is not None and plan.new_macs is not None:
        found["dst_analyze.macs"] = f"{plan.macs} -> {plan.new_macs}"
    if result.ranking is not None:
        found["dst_analyze.ranking"] = f"{result.ranking.verdict}: {result.ranking.why}"
    return found


def _known(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None

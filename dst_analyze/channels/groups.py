"""What a coupling says: units of channels, the groups they make, and where in every tensor they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dst_analyze.channels.labels import LabelArray, Reason
from dst_analyze.html import html_table

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd

# For every axis of a tensor, the units along it: several where two families of channels were flattened into one.
Axes = tuple[tuple[LabelArray, ...], ...]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Layout:
    """A tensor's shape, and the units along its axes (-1 for a place that is no channel)."""

    shape: tuple[int, ...]
    axes: Axes

    def kept_places(self, keep: Mask, dim: int) -> Mask:
        """Which places along an axis are left, given which units are."""
        left = np.ones(self.shape[dim], np.bool_)
        for units in self.axes[dim]:
            left &= keep[units] | (units < 0)
        return left

    def shape_after(self, keep: Mask) -> tuple[int, ...]:
        """Return the shape that is left, given which units are."""
        return tuple(
            int(self.kept_places(keep, dim).sum()) if self.axes[dim] else size for dim, size in enumerate(self.shape)
        )


@dataclass(frozen=True)
class Member:
    """One axis of one parameter or buffer that a group runs along."""

    name: str
    dim: int
    layer: str
    role: str  # "produces", "reads", or "follows" (a norm's scale, a bias, a position embedding)


@dataclass(frozen=True)
class Group:
    """Units any of which may be removed, as long as the floor is left."""

    name: str  # of the first layer that produces it
    units: tuple[int, ...]
    members: tuple[Member, ...]
    channels: int  # numbers of the first producer's axis in it: units times channels per unit
    frozen: tuple[Reason, ...]
    inexact: tuple[Reason, ...]  # why outputs change even if a unit that carries nothing is removed
    floor: int = 1  # so many units have to stay
    per_unit: int = 1  # channels of a unit where it is narrowest: of a head its size, of a hidden unit with gates 1

    @property
    def width(self) -> int:
        """How many units it has."""
        return len(self.units)

    @property
    def removable(self) -> bool:
        """True if some of its units may be removed."""
        return not self.frozen and self.width > self.floor

    @property
    def uses(self) -> int:
        """How many layers make it or read it: two in a chain, many for the stream past which residual blocks run."""
        return max(1, len(self.layers("produces")) + len(self.layers("reads")))

    def layers(self, role: str) -> tuple[str, ...]:
        """Return the layers that play a role in it: "produces", "reads" or "follows"."""
        return tuple(dict.fromkeys(member.layer for member in self.members if member.role == role))


@dataclass(frozen=True)
class Frozen:
    """Channels that cannot be removed, and why."""

    group: str
    layers: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Coupling:
    """What belongs together in one traced model."""

    groups: tuple[Group, ...]
    parameters: Mapping[str, Layout] = field(repr=False)  # and buffers
    activations: Mapping[str, Any] = field(repr=False)  # by node: a `Layout`, nested as the node's result
    numbers: Mapping[str, Any] = field(repr=False)  # by node: sizes and other plain values of the example
    unit_count: int

    @cached_property
    def removable(self) -> tuple[Group, ...]:
        """The groups that may be narrowed."""
        return tuple(group for group in self.groups if group.removable)

    @cached_property
    def frozen(self) -> tuple[Frozen, ...]:
        """The groups that stay as they are, and why."""
        return tuple(
            Frozen(
                group.name,
                tuple(dict.fromkeys(member.layer for member in group.members)),
                group.frozen[0].describe() if group.frozen else "all of it leaves together",
            )
            for group in self.groups
            if not group.removable
        )

    def group(self, name: str) -> Group:
        """Return the group of this name."""
        return next(group for group in self.groups if group.name == name)

    def by_unit(self, group: Group, member: Member, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Values along one of a group's axes, summed up for each of its units."""
        first = {unit: place for place, unit in enumerate(group.units)}
        sums = np.zeros(group.width)
        for units in self.parameters[member.name].axes[member.dim]:
            places = np.array([first.get(unit, -1) for unit in units.tolist()])
            np.add.at(sums, places[places >= 0], values[places >= 0])
        return sums

    def graph(self) -> nx.Graph[str]:
        """Layers and groups: an edge for every axis a group runs along, with the axis and the role it plays there."""
        import networkx as nx

        graph: nx.Graph[str] = nx.Graph()
        for group in self.groups:
            node = f"group {group.name}"
            graph.add_node(node, kind="group", width=group.width, channels=group.channels, removable=group.removable)
            for member in group.members:
                graph.add_node(member.layer, kind="layer")
                graph.add_edge(node, member.layer, parameter=member.name, dim=member.dim, role=member.role)
        return graph

    def _repr_html_(self) -> str:
        table = self.table
        lead = f"{len(self.removable)} of {len(self.groups)} groups of channels may be narrowed"
        return html_table(lead, list(table.columns), table.to_numpy().tolist(), words=1)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per group: who makes its channels, who reads them, and why some have to stay."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "group": group.name,
                    "units": group.width,
                    "channels": group.channels,
                    "produced by": ", ".join(group.layers("produces")),
                    "read by": ", ".join(group.layers("reads")),
                    "removable": group.removable,
                    "exact": not group.inexact,
                    "reason": "; ".join(dict.fromkeys(reason.describe() for reason in (*group.frozen, *group.inexact))),
                }
                for group in self.groups
            ],
            columns=["group", "units", "channels", "produced by", "read by", "removable", "exact", "reason"],
        )

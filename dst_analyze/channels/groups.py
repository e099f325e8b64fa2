"""`Coupling`: units of channels, their groups, and where in each tensor they are."""

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

# For every axis of a tensor, the units along it: several if two families of channels were flattened into one axis.
Axes = tuple[tuple[LabelArray, ...], ...]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True)
class Layout:
    """A tensor's shape, and the units along its axes (-1 at places that are no channels)."""

    shape: tuple[int, ...]
    axes: Axes

    def kept_places(self, keep: Mask, dim: int) -> Mask:
        """Return which places along an axis are left, given which units are kept."""
        left = np.ones(self.shape[dim], np.bool_)
        for units in self.axes[dim]:
            left &= keep[units] | (units < 0)
        return left

    def shape_after(self, keep: Mask) -> tuple[int, ...]:
        """Return the shape that is left, given which units are kept."""
        return tuple(
            int(self.kept_places(keep, dim).sum()) if self.axes[dim] else size for dim, size in enumerate(self.shape)
        )


@dataclass(frozen=True)
class Member:
    """An axis of a parameter or buffer along which a group's channels are numbered."""

    name: str
    dim: int
    layer: str
    role: str  # "produces", "reads", or "follows" (a norm's scale, a bias, a position embedding)


@dataclass(frozen=True)
class Group:
    """Units that appear in the same tensors; unless frozen, all but ``floor`` of them may be removed."""

    name: str  # of the first layer that produces it
    units: tuple[int, ...]
    members: tuple[Member, ...]
    channels: int  # of the first producer: the number of units times channels per unit
    frozen: tuple[Reason, ...]  # why all units have to stay
    inexact: tuple[Reason, ...]  # why outputs change even if a unit of zeros is removed
    floor: int = 1  # the number of units that have to stay
    per_unit: int = 1  # a unit's channels in its narrowest member: a head's size, 1 for an LSTM's hidden unit

    @property
    def width(self) -> int:
        """The number of its units."""
        return len(self.units)

    @property
    def removable(self) -> bool:
        """True if some of its units may be removed."""
        return not self.frozen and self.width > self.floor

    @property
    def uses(self) -> int:
        """The number of layers that produce or read it: two in a chain, many for a residual stream."""
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
    """Which channels of a model must be removed together, and which must stay.

    Attributes:
        groups: The groups of units.
        parameters: For each parameter and buffer, its `Layout`: the units along its axes.
        activations: For each node of the graph, the `Layout` of its result, nested like the result.
        numbers: For each node that computes a plain value, such as a size, that value for the example.
        unit_count: The number of units.

    Example:
        >>> import dst_analyze, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> coupling = dst_analyze.couple_channels(dst_analyze.trace_model(model, torch.randn(2, 4)))
        >>> group = coupling.group("0")
        >>> group.width, group.layers("reads")
        (8, ('2',))
    """

    groups: tuple[Group, ...]
    parameters: Mapping[str, Layout] = field(repr=False)
    activations: Mapping[str, Any] = field(repr=False)
    numbers: Mapping[str, Any] = field(repr=False)
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
                group.frozen[0].describe() if group.frozen else "all its channels are one unit",
            )
            for group in self.groups
            if not group.removable
        )

    def group(self, name: str) -> Group:
        """Return the group of this name."""
        return next(group for group in self.groups if group.name == name)

    def by_unit(self, group: Group, member: Member, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return values along one of a group's axes, summed for each of its units."""
        first = {unit: place for place, unit in enumerate(group.units)}
        sums = np.zeros(group.width)
        for units in self.parameters[member.name].axes[member.dim]:
            places = np.array([first.get(unit, -1) for unit in units.tolist()])
            np.add.at(sums, places[places >= 0], values[places >= 0])
        return sums

    def graph(self) -> nx.Graph[str]:
        """Return a networkx graph of layers and groups, with an edge for every member of a group."""
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
        """One row per group: the layers that produce and read its channels, and why some have to stay."""
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

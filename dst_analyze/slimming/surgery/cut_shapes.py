"""A coupling and a choice: what every tensor of the graph will look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from dst_analyze.channels.groups import Coupling, Layout, Mask


@dataclass(frozen=True)
class Slimming:
    """A coupling, and which of its units are kept."""

    coupling: Coupling
    keep: Mask

    def layout(self, node: fx.Node) -> Any:
        return self.coupling.activations.get(node.name)

    def expected(self, layout: Any) -> Any:
        """The shapes a node's result must have."""
        if isinstance(layout, Layout):
            return layout.shape_after(self.keep)
        if isinstance(layout, tuple):
            return tuple(self.expected(item) for item in layout)
        if isinstance(layout, dict):
            return {key: self.expected(item) for key, item in layout.items()}
        return None

    def kept_before(self, layout: Layout, dim: int, place: int) -> int:
        """How many of the first ``place`` places along an axis are left."""
        return int(layout.kept_places(self.keep, dim)[:place].sum())

    def groups_left(self, layout: Layout, dim: int, groups: int) -> int:
        """How many of a number of equal groups along an axis have anything left."""
        return int(np.asarray(layout.kept_places(self.keep, dim)).reshape(groups, -1).any(axis=1).sum())

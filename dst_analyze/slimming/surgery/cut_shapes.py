"""The shapes of all tensors of the graph after a removal of channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import fx

from dst_analyze.channels.groups import Coupling, Layout, Mask


@dataclass(frozen=True)
class Slimming:
    """A coupling with a mask of the units to keep."""

    coupling: Coupling
    keep: Mask

    def layout(self, node: fx.Node) -> Any:
        """Return the layout of a node's result before the removal."""
        return self.coupling.activations.get(node.name)

    def expected(self, layout: Any) -> Any:
        """Return the shapes that a result with this layout must have."""
        if isinstance(layout, Layout):
            return layout.shape_after(self.keep)
        if isinstance(layout, tuple):
            return tuple(self.expected(item) for item in layout)
        if isinstance(layout, dict):
            return {key: self.expected(item) for key, item in layout.items()}
        return None

    def kept_before(self, layout: Layout, dim: int, place: int) -> int:
        """Return how many of the first ``place`` positions along an axis are left."""
        return int(layout.kept_places(self.keep, dim)[:place].sum())

    def groups_left(self, layout: Layout, dim: int, groups: int) -> int:
        """Return how many of ``groups`` equal groups along an axis keep at least one position."""
        return int(np.asarray(layout.kept_places(self.keep, dim)).reshape(groups, -1).any(axis=1).sum())

"""Which axes of a parameter number its rows (output neurons), traced through views to the operation.

A parameter rarely reaches its matmul unchanged: it is transposed, split into heads, sliced or standardised first.
`AxisMap` carries the parameter's axes through such steps, split as finely as the steps need, so that the axes that the
operation sums over are known on the parameter itself. All other axes number rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RowLayout:
    """A weight seen as ``weight.view(view)``; ``rows`` are the axes that number its output neurons.

    ``blocks`` are the axes that number separate matrices (the gates of an LSTM, q/k/v of a packed projection): each
    has its own threshold even when there is one scalar per matrix. ``inputs`` are the axes that number the input
    channels it reads; empty if they are unknown.
    """

    view: tuple[int, ...]
    rows: tuple[int, ...]
    blocks: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()

    def broadcast_shape(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Return a shape that broadcasts against the view and varies along ``axes`` only."""
        return tuple(size if axis in axes else 1 for axis, size in enumerate(self.view))

    @property
    def row_count(self) -> int:
        """The number of output neurons."""
        return math.prod(self.view[axis] for axis in self.rows)


@dataclass(frozen=True)
class AxisMap:
    """The axes of a tensor made from a parameter, each as the parameter's axes that it runs over.

    ``sizes`` are the parameter's fine axes in memory order; ``axes[i]`` lists the fine axes that axis ``i`` merges.
    An axis that does not come from the parameter (unsqueezed, broadcast) is the empty tuple.
    """

    sizes: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> AxisMap:
        """Return the map of the parameter itself."""
        return cls(tuple(shape), tuple((axis,) for axis in range(len(shape))))

    def permuted(self, order: Sequence[int]) -> AxisMap:
        """Return the map after a permutation of axes."""
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def dropped(self, axis: int) -> AxisMap:
        """Return the map after indexing with one number; the parameter's axis still counts as one of rows."""
        return replace(self, axes=self.axes[:axis] + self.axes[axis + 1 :])

    def inserted(self, axis: int) -> AxisMap:
        """Return the map after an unsqueeze."""
        return replace(self, axes=(*self.axes[:axis], (), *self.axes[axis:]))

    def split(self, axis: int, first: int) -> AxisMap | None:
        """Return the map with an axis split in two, the outer of length ``first``; None if impossible."""
        shape = [math.prod(self.sizes[fine] for fine in fines) for fines in self.axes]
        if first <= 0 or shape[axis] % first:
            return None
        return self.reshaped([*shape[:axis], first, shape[axis] // first, *shape[axis + 1 :]])

    def reshaped(self, shape: Sequence[int]) -> AxisMap | None:
        """Return the map after a reshape; None if the new axes do not line up with the old ones."""
        # A fine axis is keyed by a path; splitting (2,) gives (2, 0) and (2, 1), so sorted keys stay in memory order.
        sizes: dict[tuple[int, ...], int] = {(fine,): size for fine, size in enumerate(self.sizes)}
        pending = [(fine,) for fines in self.axes for fine in fines if self.sizes[fine] != 1]
        if math.prod(sizes[key] for key in pending) != math.prod(shape):
            return None
        queue: list[tuple[int, ...]] = list(reversed(pending))
        axes: list[list[tuple[int, ...]]] = []
        for wanted in shape:
            taken: list[tuple[int, ...]] = []
            while wanted != 1:
                key = queue.pop()
                size = sizes[key]
                if wanted % size == 0:
                    taken.append(key)
                    wanted //= size
                elif size % wanted == 0:
                    outer, inner = (*key, 0), (*key, 1)
                    del sizes[key]
                    sizes[outer], sizes[inner] = wanted, size // wanted
                    taken.append(outer)
                    queue.append(inner)
                    wanted = 1
                else:
                    return None
            axes.append(taken)
        rank = {key: number for number, key in enumerate(sorted(sizes))}
        return AxisMap(
            tuple(sizes[key] for key in sorted(sizes)), tuple(tuple(rank[key] for key in keys) for keys in axes)
        )

    def layout(self, columns: Sequence[int], blocks: Sequence[int] = (), inputs: Sequence[int] = ()) -> RowLayout:
        """Return the parameter's layout, given the axes of this tensor that the operation sums over."""

        def fine(axes: Sequence[int]) -> tuple[int, ...]:
            return tuple(fine for axis in axes for fine in self.axes[axis])

        contracted = fine(columns)
        rows = tuple(axis for axis in range(len(self.sizes)) if axis not in contracted)
        return RowLayout(self.sizes, rows, fine(blocks), fine(inputs))

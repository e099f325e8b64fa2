"""Which axes of a parameter number its rows (output neurons), followed through the views taken on the way to an op.

A parameter rarely reaches its matmul untouched: it is transposed, split into heads, sliced or standardised first.
`AxisMap` carries the parameter's axes through such steps, split as finely as the steps demand, so that the op's
contracted axes can be told on the parameter itself. What is not contracted is a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class RowLayout:
    """A weight seen as ``weight.view(view)``; ``rows`` are the axes that number its output neurons.

    ``blocks`` are the axes whose parts count as matrices of their own (the gates of an LSTM, q/k/v of a packed
    projection): each has its own threshold even when there is one scalar per matrix. ``inputs`` are the axes that
    number the input channels it reads, empty where nobody knows them.
    """

    view: tuple[int, ...]
    rows: tuple[int, ...]
    blocks: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()

    def broadcast_shape(self, axes: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts against the view and varies along ``axes`` only."""
        return tuple(size if axis in axes else 1 for axis, size in enumerate(self.view))

    @property
    def row_count(self) -> int:
        return math.prod(self.view[axis] for axis in self.rows)


@dataclass(frozen=True)
class AxisMap:
    """A tensor made from a parameter: for each of its axes, the (finely split) axes of the parameter it runs over.

    ``sizes`` are the parameter's fine axes in memory order; ``axes[i]`` lists the fine axes that axis ``i`` merges.
    An axis that is not the parameter's (unsqueezed, broadcast) is the empty tuple.
    """

    sizes: tuple[int, ...]
    axes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: Sequence[int]) -> AxisMap:
        """The parameter itself."""
        return cls(tuple(shape), tuple((axis,) for axis in range(len(shape))))

    def permuted(self, order: Sequence[int]) -> AxisMap:
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def dropped(self, axis: int) -> AxisMap:
        """One index taken along an axis: the axis goes, its part of the parameter stays a row."""
        return replace(self, axes=self.axes[:axis] + self.axes[axis + 1 :])

    def inserted(self, axis: int) -> AxisMap:
        return replace(self, axes=(*self.axes[:axis], (), *self.axes[axis:]))

    def split(self, axis: int, first: int) -> AxisMap | None:
        """Axis ``axis`` seen as two, the outer one of length ``first``."""
        shape = [math.prod(self.sizes[fine] for fine in fines) for fines in self.axes]
        if first <= 0 or shape[axis] % first:
            return None
        return self.reshaped([*shape[:axis], first, shape[axis] // first, *shape[axis + 1 :]])

    def reshaped(self, shape: Sequence[int]) -> AxisMap | None:
        """The same elements in the same order under another shape; None where axes do not line up."""
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
        """The parameter's rows, given the axes of this tensor that the op contracts."""

        def fine(axes: Sequence[int]) -> tuple[int, ...]:
            return tuple(fine for axis in axes for fine in self.axes[axis])

        contracted = fine(columns)
        rows = tuple(axis for axis in range(len(self.sizes)) if axis not in contracted)
        return RowLayout(self.sizes, rows, fine(blocks), fine(inputs))

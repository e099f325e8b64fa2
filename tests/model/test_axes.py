"""Axes of a parameter, followed through views: checked against what torch does to the elements themselves."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from dst_analyze.model.tracing.axes import AxisMap

shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4)


def rows_by_axes(axes: AxisMap, shape: tuple[int, ...], columns: tuple[int, ...]) -> torch.Tensor:
    """Number each element of the parameter by its row, from the layout alone."""
    layout = axes.layout(columns)
    kept = layout.broadcast_shape(layout.rows)
    numbers = torch.arange(math.prod(kept)).view(kept).expand(layout.view)
    return numbers.reshape(shape)


def rows_by_elements(made: torch.Tensor, shape: tuple[int, ...], columns: tuple[int, ...]) -> torch.Tensor:
    """The same from the elements: two are in one row if they differ along contracted axes of the made tensor only."""
    kept = [1 if axis in columns else size for axis, size in enumerate(made.shape)]
    numbers = torch.arange(math.prod(kept)).view(kept).expand(made.shape)
    rows = torch.empty(math.prod(shape), dtype=torch.long)
    rows[made.flatten()] = numbers.flatten()
    return rows.view(shape)


def same_partition(a: torch.Tensor, b: torch.Tensor) -> bool:
    pairs = set(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))
    return len(pairs) == len(set(a.flatten().tolist())) == len(set(b.flatten().tolist()))


@given(shapes, st.data())
def test_rows_follow_permutation_and_reshape(shape: list[int], data: st.DataObject) -> None:
    made, axes = torch.arange(math.prod(shape)).view(shape), AxisMap.of(shape)
    order = data.draw(st.permutations(range(len(shape))))
    made, axes = made.permute(order), axes.permuted(order)
    merged_at = data.draw(st.integers(0, max(len(shape) - 2, 0)))
    if len(shape) > 1:  # merge two neighbours, then cut the result again somewhere
        target = [
            *made.shape[:merged_at],
            made.shape[merged_at] * made.shape[merged_at + 1],
            *made.shape[merged_at + 2 :],
        ]
        merged = axes.reshaped(target)
        assert merged is not None
        made, axes = made.reshape(target), merged
        divisors = [d for d in range(1, target[merged_at] + 1) if target[merged_at] % d == 0]
        first = data.draw(st.sampled_from(divisors))
        again = axes.split(merged_at, first)
        if again is not None:
            made = made.reshape([*target[:merged_at], first, target[merged_at] // first, *target[merged_at + 1 :]])
            axes = again
    columns = tuple(sorted(data.draw(st.sets(st.integers(0, made.ndim - 1)))))
    assert same_partition(rows_by_axes(axes, tuple(shape), columns), rows_by_elements(made, tuple(shape), columns))


def test_axes_that_do_not_line_up_are_refused() -> None:
    assert AxisMap.of((4, 6)).reshaped((3, 8)) is None
    assert AxisMap.of((4, 6)).reshaped((4, 7)) is None
    assert AxisMap.of((4, 6)).split(0, 3) is None


def test_a_taken_index_leaves_its_axis_a_row() -> None:
    layout = AxisMap.of((3, 4, 5)).dropped(0).layout(columns=(0,))
    assert layout.view == (3, 4, 5)
    assert layout.rows == (0, 2)

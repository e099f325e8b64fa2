"""Labels of channels: which must be removed together, which must stay, and why.

A label is a positive integer; 0 means "not a channel". A label tensor has its activation's shape, and stride 0 along
every axis along which it does not vary, so that its size depends on the channels and not on the images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

LabelArray = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Reason:
    """Why channels cannot be removed, or not exactly: the operation, and where in the source it is."""

    why: str
    op: str
    node: str
    place: str

    def describe(self) -> str:
        """Return the reason in words."""
        at = f" at {self.place}" if self.place else ""
        return f"{self.why} ({self.op}{at})" if self.op else self.why


# --- label tensors ----------------------------------------------------------------------------------------------


def varying(labels: torch.Tensor) -> tuple[int, ...]:
    """Return the axes along which collapsed labels differ."""
    return tuple(dim for dim in range(labels.ndim) if labels.shape[dim] > 1 and labels.stride(dim) != 0)


def collapsed(labels: torch.Tensor) -> torch.Tensor:
    """Return the same labels with stride 0 along every axis along which they do not vary."""
    shape = labels.shape
    if not labels.numel():
        return labels
    for dim in range(labels.ndim):
        first = labels.narrow(dim, 0, 1)
        if labels.shape[dim] > 1 and (labels.stride(dim) == 0 or torch.equal(first.expand_as(labels), labels)):
            labels = first
    return labels.expand(shape)


def slim_view(labels: torch.Tensor) -> torch.Tensor:
    """Return collapsed labels without repetition: with length 1 along axes where they do not vary."""
    kept = varying(labels)
    for dim in range(labels.ndim):
        if dim not in kept:
            labels = labels.narrow(dim, 0, min(1, labels.shape[dim]))
    return labels


def along(labels: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the labels along one axis, at the first place of every other."""
    dim %= labels.ndim
    for other in reversed(range(labels.ndim)):
        if other != dim:
            labels = labels.select(other, 0)
    return labels


def spread(vector: torch.Tensor, dim: int, shape: Sequence[int]) -> torch.Tensor:
    """Return a vector of labels expanded to a shape, varying along one axis."""
    view = [1] * len(shape)
    view[dim] = -1
    return vector.view(view).expand(tuple(shape))


@dataclass(frozen=True)
class Granularity:
    """One way to remove channels where there are two: in whole heads or groups, or at the same places of each.

    Attributes:
        joins: Pairs of labels that it joins.
        stays: Labels that it freezes.
        reason: Why, for both.
        whole: Labels of a parameter's axis that has no channels then; no other tensor has them.
    """

    joins: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    stays: tuple[torch.Tensor, ...]
    reason: Reason
    whole: tuple[torch.Tensor, ...] = ()


# --- the space of all labels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """The labels of one axis of a parameter or buffer; an axis with two families has two blocks."""

    name: str
    dim: int
    start: int
    stop: int


class LabelSpace:
    """All labels of one run: which were joined, and which must stay."""

    def __init__(self) -> None:
        self.size = 1
        self.blocks: dict[tuple[str, int, int], Block] = {}
        self.frozen: list[tuple[LabelArray, Reason]] = []
        self.roles: dict[str, list[LabelArray]] = {"produces": [], "reads": []}
        self.floors: list[tuple[LabelArray, int]] = []
        self._edges: list[LabelArray] = []
        self._roots: LabelArray | None = None
        self._choices: list[tuple[Granularity, Granularity]] = []
        self._preferences: list[tuple[LabelArray, tuple[int, ...]]] = []
        self._grids: dict[tuple[tuple[int, ...], bytes], LabelArray] = {}
        self._inexact: list[tuple[LabelArray, tuple[int, ...], Reason]] = []

    def fresh(self, count: int) -> torch.Tensor:
        """Return new labels."""
        start, self.size = self.size, self.size + count
        self._roots = None
        return torch.arange(start, self.size, dtype=torch.int32)

    def of(self, name: str, dim: int, length: int, family: int = 0) -> torch.Tensor:
        """Return the labels of a parameter's axis, the same on every call."""
        key = (name, dim, family)
        if key not in self.blocks:
            labels = self.fresh(length)
            self.blocks[key] = Block(name, dim, int(labels[0]), int(labels[-1]) + 1)
        block = self.blocks[key]
        return torch.arange(block.start, block.stop, dtype=torch.int32)

    def join(self, one: torch.Tensor, other: torch.Tensor, reason: Reason) -> None:
        """Join labels at the same place; freeze labels at a place where the other has no channel."""
        one, other = _met(one, other)
        a, b = _numbers(one).ravel(), _numbers(other).ravel()
        stays = np.concatenate([a[b == 0], b[a == 0]])
        if (stays := np.unique(stays[stays != 0])).size:
            self.frozen.append((stays, reason))
        self._connect(a, b)

    def join_along(self, labels: torch.Tensor, dims: Iterable[int], reason: Reason) -> None:
        """Join labels that differ only in their place along ``dims``."""
        for dim in dims:
            if labels.shape[dim] > 1 and labels.stride(dim) != 0:
                self.join(labels, labels.narrow(dim, 0, 1), reason)

    def choose(self, one: Granularity, other: Granularity) -> None:
        """Take the first granularity in the end, or the second if only that leaves something to remove."""
        self._choices.append((one, other))

    def prefer(self, labels: torch.Tensor, dims: Iterable[int]) -> None:
        """Join these labels along ``dims`` if, in the end, they vary along other axes too.

        If nothing could be removed then, they are joined along the other axes instead, and those stay.
        """
        self._preferences.append((_numbers(slim_view(labels)), tuple(dims)))

    def grid(self, labels: torch.Tensor) -> None:
        """Require that the kept labels are a full grid: a product of choices along the axes."""
        if len(varying(labels)) > 1:
            numbers = _numbers(slim_view(labels))
            self._grids.setdefault((numbers.shape, numbers.tobytes()), numbers)

    def freeze(self, labels: torch.Tensor, reason: Reason) -> None:
        """Note that these labels must stay."""
        stays = np.unique(_numbers(slim_view(labels)))
        if (stays := stays[stays != 0]).size:
            self.frozen.append((stays, reason))

    def inexact(self, labels: torch.Tensor, dims: Iterable[int], reason: Reason) -> None:
        """Note that removing a label along ``dims`` changes others' values, even if its own are zero."""
        if dims := tuple(set(dims) & set(varying(labels))):
            self._inexact.append((_numbers(slim_view(labels)), dims, reason))

    def floor(self, labels: torch.Tensor, count: int) -> None:
        """Require that at least ``count`` of these labels stay."""
        self.floors.append((_numbers(labels), count))

    def role(self, role: str, labels: torch.Tensor) -> None:
        """Note that a parameter "produces" or "reads" these channels."""
        self.roles[role].append(np.unique(_numbers(slim_view(labels))))

    # Results.

    def roots(self) -> LabelArray:
        """Return the number of each label's unit: joined labels have the same."""
        if self._roots is None:
            edges = np.concatenate([np.zeros((2, 0), np.int64), *self._edges], axis=1)
            self._edges = [edges]
            graph = coo_array((np.ones(edges.shape[1], np.int8), (edges[0], edges[1])), shape=(self.size, self.size))
            self._roots = connected_components(graph, directed=False)[1].astype(np.int64)
        return self._roots

    def close(self) -> None:
        """Join labels until every tensor stays a full grid, whichever units are removed."""
        self._apply_choices()
        while self._apply_preferences() or self._apply_grids():
            pass

    def inexact_roots(self) -> list[tuple[LabelArray, Reason]]:
        """Return the units whose removal changes outputs, each with the reason."""
        roots, found = self.roots(), []
        for labels, dims, reason in self._inexact:
            units = roots[labels]
            if any(_varies(units, dim) for dim in dims):
                found.append((np.unique(units[labels != 0]), reason))
        return found

    def _apply_choices(self) -> None:
        """Settle the granularities, the last call's first: what stays at the end of a model is known by then."""
        if all(self._frees(one) for one, _ in self._choices):
            self._choices = [(one, one) for one, _ in self._choices]
        while self._choices:
            one, other = self._choices.pop()
            chosen = one if one is other or self._frees(one) or not self._frees(other) else other
            for labels in chosen.stays:
                self.freeze(labels, chosen.reason)
            for a, b in chosen.joins:
                self.join(a, b, chosen.reason)
            gone = {int(labels.flatten()[0]) for labels in chosen.whole}
            self.blocks = {key: block for key, block in self.blocks.items() if block.start not in gone}

    def _frees(self, granularity: Granularity) -> bool:
        """True if a granularity would leave units of which one can be removed."""
        roots, stays = self.roots(), self._staying()
        pairs = [tuple(map(_numbers, _met(*pair))) for pair in granularity.joins]
        involved = np.unique(roots[np.concatenate([part.ravel() for pair in pairs for part in pair])])
        place = {int(unit): index for index, unit in enumerate(involved)}
        still = stays[involved].copy()
        for labels in granularity.stays:
            for unit in np.unique(roots[_numbers(slim_view(labels))]).tolist():
                if unit in place:
                    still[place[unit]] = True
        a, b = (np.searchsorted(involved, roots[np.concatenate([pair[i].ravel() for pair in pairs])]) for i in (0, 1))
        return _free_count(a, b, still) > 1

    def _staying(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which units hold a frozen label; the label of no channel counts as one."""
        roots = self.roots()
        stays = np.zeros(int(roots.max()) + 1, np.bool_)
        stays[roots[0]] = True
        if self.frozen:
            stays[roots[np.concatenate([labels for labels, _ in self.frozen])]] = True
        return stays

    def _apply_preferences(self) -> bool:
        roots, before = self.roots(), len(self._edges)
        stays = self._staying() if self._preferences else None
        for labels, dims in self._preferences:
            units = roots[labels]
            others = [dim for dim in range(units.ndim) if dim not in dims and _varies(units, dim)]
            along = [dim for dim in dims if _varies(units, dim)]
            if not others or not along:
                continue
            assert stays is not None
            if not _frees_along(units, others, stays) and _frees_along(units, along, stays):
                first: Any = tuple(slice(0, 1) if dim in dims else slice(None) for dim in range(units.ndim))
                self.freeze(torch.from_numpy(labels[first]), Reason("stays with what is summed", "", "", ""))
                along = others
            for dim in along:
                self._join_numbers(labels, dim)
        return len(self._edges) > before

    def _apply_grids(self) -> bool:
        """Join along all but one axis of each grid; return True if any labels were joined.

        Grids that share units are left for the next call: a choice for one grid often settles its neighbours.
        """
        roots, before, stays = self.roots(), len(self._edges), self._staying()
        touched: set[int] = set()
        for labels in self._grids.values():
            units = roots[labels]
            dims = [dim for dim in range(units.ndim) if _varies(units, dim)]
            if len(dims) < 2:
                continue
            mine = set(np.unique(units).tolist())
            if mine.isdisjoint(touched):
                kept = max(dims, key=lambda dim: (_frees_along(units, [dim], stays), _pieces(units, dim)))
                for dim in dims:
                    if dim != kept:
                        self._join_numbers(labels, dim)
            touched |= mine
        return len(self._edges) > before

    def _join_numbers(self, labels: LabelArray, dim: int) -> None:
        first = np.broadcast_to(np.take(labels, [0], axis=dim), labels.shape)
        reason = Reason("is laid out together with an axis of fixed size", "", "", "")
        self.join(torch.from_numpy(labels), torch.from_numpy(first.copy()), reason)

    def _connect(self, a: LabelArray, b: LabelArray) -> None:
        both = (a != 0) & (b != 0) & (a != b)
        if both.any():
            self._edges.append(np.unique(np.stack([a[both], b[both]]), axis=1))
            self._roots = None


def _numbers(labels: torch.Tensor) -> LabelArray:
    return labels.numpy().astype(np.int64)


def _met(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two label tensors in a common shape, without the axes along which neither varies."""
    one, other = torch.broadcast_tensors(_cut(one, other), _cut(other, one))
    return one, other


def _cut(labels: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return labels with length 1 along the axes along which neither tensor varies."""
    for dim in range(labels.ndim):
        if labels.shape[dim] > 1 and labels.stride(dim) == 0 and (other.shape[dim] == 1 or other.stride(dim) == 0):
            labels = labels.narrow(dim, 0, 1)
    return labels


def _varies(units: LabelArray, dim: int) -> bool:
    return units.shape[dim] > 1 and bool((units != np.take(units, [0], axis=dim)).any())


def _free_count(a: LabelArray, b: LabelArray, stays: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """Return how many parts of a graph hold no unit that stays, given its edges from ``a`` to ``b``."""
    graph = coo_array((np.ones(len(a), np.int8), (a, b)), shape=(len(stays), len(stays)))
    count, part = connected_components(graph, directed=False)
    held = np.zeros(count, np.bool_)
    np.logical_or.at(held, part, stays)
    return int(count - held.sum())


def _frees_along(units: LabelArray, dims: Sequence[int], stays: np.ndarray[Any, np.dtype[np.bool_]]) -> bool:
    """True if there is a choice left when only places along ``dims`` may be removed."""
    moved = np.moveaxis(units, list(dims), list(range(len(dims))))
    rows = moved.reshape(math.prod(moved.shape[: len(dims)]), -1)
    involved, numbers = np.unique(rows, return_inverse=True)
    numbers = numbers.reshape(rows.shape)
    return _free_count(numbers.ravel(), np.repeat(numbers[:, 0], rows.shape[1]), stays[involved]) > 1


def _pieces(units: LabelArray, dim: int) -> int:
    """Return how many independent choices are left if only places along ``dim`` may be removed."""
    rows = np.moveaxis(units, dim, 0).reshape(units.shape[dim], -1)
    _, columns = np.unique(rows, return_inverse=True)
    columns = columns.reshape(rows.shape)
    places = np.broadcast_to(np.arange(rows.shape[0])[:, None], rows.shape)
    size = rows.shape[0] + int(columns.max()) + 1
    graph = coo_array((np.ones(rows.size), (places.ravel(), columns.ravel() + rows.shape[0])), shape=(size, size))
    return int(connected_components(graph, directed=False)[0])

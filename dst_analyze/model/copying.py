"""`deep_copied`: deep copies of modules that hold closures over themselves, or tensors that were computed.

`copy.deepcopy` shares functions, so a closure in a copy would still call the original's layers; and it refuses tensors
that autograd computed, as old `weight_norm` and models that keep an activation hold them.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

T = TypeVar("T")


def deep_copied(value: T, memo: dict[int, Any] | None = None) -> T:
    """Return a deep copy whose closures hold the copy's parts and whose computed tensors are detached.

    Args:
        value: A module, or a container of modules.
        memo: What stands for which object, by its id, as for ``copy.deepcopy``.
    """
    memo = {} if memo is None else memo
    given = set(memo)
    with _ComputedTensors():
        twin = copy.deepcopy(value, memo)
        _Rebinder(memo, given).visit(twin)
    return twin


class _ComputedTensors(TorchFunctionMode):
    """Copies the tensors that autograd computed, which `copy.deepcopy` refuses."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.Tensor.__deepcopy__ or args[0].is_leaf:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            base = tensor._base
            if isinstance(base, nn.Parameter):  # a view must show what the parameter learns
                where = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
                memo[id(tensor)] = copy.deepcopy(base, memo).as_strided(*where)
            else:
                memo[id(tensor)] = tensor.detach().clone()
        return memo[id(tensor)]


class _Rebinder:
    """Replaces closures over the original, wherever a copy holds them, by closures over the copy."""

    def __init__(self, memo: dict[int, Any], given: set[int]) -> None:
        kept = {id(one): one for one in memo.get(id(memo), ())}  # deepcopy keeps alive what it copied
        self._memo = memo
        self._copies = {
            key: memo[key] for key, one in kept.items() if key in memo and memo[key] is not one and key not in given
        }
        self._copied = {id(twin) for twin in self._copies.values()}
        self._seen: dict[int, Any] = {}  # of the copy's objects: what takes their place
        self._reaching: dict[int, bool] = {}
        self._cells: dict[int, types.CellType] = {}
        self._functions: dict[int, types.FunctionType] = {}
        self._alive: list[Any] = []

    def visit(self, value: Any) -> Any:
        """Return what takes a value's place in the copy; objects that were copied are changed in place."""
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return self._seen.get(id(value), value)
        self._seen[id(value)] = value
        self._alive.append(value)
        self._seen[id(value)] = new = self._visited(value)
        return new

    def _visited(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            return self._rebound(value)
        if isinstance(value, dict):
            self._visit_items(value)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if (new := self.visit(item)) is not item:
                    value[index] = new
        elif type(value) is tuple:
            items = tuple(self.visit(item) for item in value)
            return value if _same(items, value) else items
        elif id(value) in self._copied and isinstance(getattr(value, "__dict__", None), dict):
            self._visit_items(vars(value))
        return value

    def _visit_items(self, items: dict[Any, Any]) -> None:
        for key, item in list(items.items()):
            if (new := self.visit(item)) is not item:
                items[key] = new

    def _rebound(self, value: Any) -> Any:
        """Return a function, method or partial for the copy; the same if it reaches nothing of the original."""
        if isinstance(value, types.FunctionType):
            return self._function(value) if self._reaches(value) else value
        if isinstance(value, types.MethodType):
            parts = [value.__func__, value.__self__]
            new = [self._replaced(part) for part in parts]
            return value if _same(new, parts) else types.MethodType(*new)
        keywords = {key: self._replaced(item) for key, item in value.keywords.items()}
        new = [self._replaced(part) for part in (value.func, *value.args)]
        if _same(new, (value.func, *value.args)) and _same(keywords.values(), value.keywords.values()):
            return value
        return type(value)(*new, **keywords)

    def _function(self, old: types.FunctionType) -> types.FunctionType:
        if id(old) in self._functions:
            return self._functions[id(old)]
        cells = tuple(self._cell(cell) for cell in old.__closure__ or ())
        new = types.FunctionType(old.__code__, old.__globals__, old.__name__, None, cells or None)
        self._functions[id(old)] = new
        new.__defaults__ = self._replaced(old.__defaults__)
        new.__kwdefaults__ = self._replaced(old.__kwdefaults__)
        new.__qualname__, new.__module__, new.__doc__ = old.__qualname__, old.__module__, old.__doc__
        new.__annotations__ = old.__annotations__
        new.__dict__.update({key: self._replaced(item) for key, item in vars(old).items()})
        for cell, fresh in zip(old.__closure__ or (), cells, strict=True):
            if fresh is not cell and _is_empty(fresh):
                fresh.cell_contents = self._replaced(cell.cell_contents)
        return new

    def _cell(self, cell: types.CellType) -> types.CellType:
        """Return the cell of the copy: functions that shared one still do."""
        if _is_empty(cell) or not self._reaches(cell.cell_contents):
            return cell
        return self._cells.setdefault(id(cell), types.CellType())

    def _replaced(self, value: Any) -> Any:
        """Return what stands for a value that a function holds."""
        if id(value) in self._copied:
            return self.visit(value)
        if id(value) in self._copies:
            return self._copies[id(value)]
        if not self._reaches(value):
            return value
        if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
            return self._rebound(value)
        return self.visit(copy.deepcopy(value, self._memo))

    def _reaches(self, value: Any) -> bool:
        """True if a value is a part of the original, or holds one."""
        if isinstance(value, _ATOMS):
            return False
        if id(value) not in self._reaching:
            self._alive.append(value)
            self._reaching[id(value)] = self._search(value)
        return self._reaching[id(value)]

    def _search(self, value: Any) -> bool:
        seen, ahead = {id(value)}, [value]
        while ahead:
            one = ahead.pop()
            if id(one) in self._copies or self._reaching.get(id(one)):
                return True
            for part in _parts(one):
                known = id(part) in seen or id(part) in self._copied
                if not known and not isinstance(part, _ATOMS):
                    seen.add(id(part))
                    ahead.append(part)
        return False


_ATOMS = (type, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, float, complex, type(None))


def _same(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(one, other, strict=True))


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (raises if it is empty)
    except ValueError:
        return True
    return False


def _parts(value: Any) -> Iterable[Any]:
    """Return the objects that a value holds and calls."""
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values()]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, nn.Module):
        return [*vars(value).values()]
    return []

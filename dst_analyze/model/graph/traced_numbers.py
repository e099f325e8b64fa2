"""Sizes that remember the node that computes them: arithmetic on them is recorded, comparisons answered and noted."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

from torch import fx


class Recorder(Protocol):
    """The tracer, as far as a number knows it."""

    def number(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...
    def answered(self, question: str, answer: object) -> None: ...


class Number:
    """A size of the example, together with the node that computes it."""

    tracer: Recorder
    node: fx.Node

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        return type(plain(self)), (plain(self),)


class TracedInt(Number, int):
    def __hash__(self) -> int:
        """As a key it is the number it stands for, but not of a cache of shapes that would give plain numbers back."""
        if sys._getframe(1).f_globals.get("__name__") in _CACHES_OF_SHAPES:
            raise TypeError("a size that remembers where it came from has no hash here")
        return int.__hash__(self)


class TracedFloat(Number, float):
    __hash__ = float.__hash__


# What einops makes of a shape it keeps; of sizes without a hash, which it takes for symbols, it works it out each time.
_CACHES_OF_SHAPES = ("einops.einops",)


def plain(value: Any) -> Any:
    """A number without its memory."""
    if isinstance(value, TracedInt):
        return int.__add__(value, 0)
    if isinstance(value, TracedFloat):
        return float.__add__(value, 0.0)
    return value


def _recording(function: Callable[..., Any], swap: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        return self.tracer.number(function, (*others, self) if swap else (self, *others))

    return method


def _answering(function: Callable[..., Any], sign: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        answer = function(*(plain(value) for value in (self, *others)))
        self.tracer.answered(f"{plain(self)} {sign} {plain(others[0])}" if others else f"{sign}({plain(self)})", answer)
        return answer

    return method


_BINARY = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow")
_UNARY: dict[str, Any] = {"neg": operator.neg, "ceil": math.ceil, "floor": math.floor, "round": round}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_CONVERSIONS: dict[str, Any] = {"bool": bool, "int": int, "float": float}
for _kind in (TracedInt, TracedFloat):
    for _name in _BINARY:
        setattr(_kind, f"__{_name}__", _recording(getattr(operator, _name)))
        setattr(_kind, f"__r{_name}__", _recording(getattr(operator, _name), swap=True))
    for _name, _function in _UNARY.items():
        setattr(_kind, f"__{_name}__", _recording(_function))
    for _name, _sign in _COMPARISONS.items():
        setattr(_kind, f"__{_name}__", _answering(getattr(operator, _name), _sign))
    for _name, _function in _CONVERSIONS.items():
        setattr(_kind, f"__{_name}__", _answering(_function, _name))

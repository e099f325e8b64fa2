"""Numbers that carry the node that computes them: arithmetic is recorded, comparisons are noted."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import Any, Protocol

from torch import fx


class Recorder(Protocol):
    """The methods of the tracer that numbers call."""

    def compute_number(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...
    def note_answer(self, question: str, answer: object) -> None: ...


class Number:
    """A size of the example, together with the node that computes it."""

    tracer: Recorder
    node: fx.Node

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> Any:
        return type(plain(self)), (plain(self),)


class TracedInt(Number, int):
    """An integer that carries its node."""

    def __hash__(self) -> int:
        """Return the plain number's hash; raise `TypeError` in caches of shapes, which lose the node."""
        if sys._getframe(1).f_globals.get("__name__") in _CACHES_OF_SHAPES:
            raise TypeError("a traced size cannot be hashed here")
        return int.__hash__(self)


class TracedFloat(Number, float):
    """A float that carries its node."""

    __hash__ = float.__hash__


# einops caches the result for a shape; sizes without a hash are symbols to it, for which it computes anew each time.
_CACHES_OF_SHAPES = ("einops.einops",)


def plain(value: Any) -> Any:
    """Return a traced number as a plain one; any other value as it is."""
    if isinstance(value, TracedInt):
        return int.__add__(value, 0)
    if isinstance(value, TracedFloat):
        return float.__add__(value, 0.0)
    return value


def _recording(function: Callable[..., Any], swap: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        return self.tracer.compute_number(function, (*others, self) if swap else (self, *others))

    return method


def _answering(function: Callable[..., Any], sign: str) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        answer = function(*(plain(value) for value in (self, *others)))
        question = f"{plain(self)} {sign} {plain(others[0])}" if others else f"{sign}({plain(self)})"
        self.tracer.note_answer(question, answer)
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

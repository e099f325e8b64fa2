"""The expression that each node of a graph computes, with the brackets that Python's precedence asks for."""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from dst_analyze.slimming.conditions import Branch, Condition, choose
from dst_analyze.slimming.source.constructors import Imports
from dst_analyze.slimming.source.forward.regions import Region, as_list
from dst_analyze.slimming.source.literals import SourceError, is_listed, is_plain, literal
from dst_analyze.slimming.source.templates import Entry, Piece, Slot, Template, joined, rendered, separated

ATOM, _UNARY, _CHOICE, _LOWEST = 100, 80, 10, 0
# Operators: their sign, how tightly they bind, and how tightly the left and the right operand have to.
_INFIX: dict[Any, tuple[str, int]] = {
    operator.pow: ("**", 90),
    operator.mul: ("*", 70),
    operator.truediv: ("/", 70),
    operator.floordiv: ("//", 70),
    operator.mod: ("%", 70),
    operator.matmul: ("@", 70),
    operator.add: ("+", 60),
    operator.sub: ("-", 60),
    operator.and_: ("&", 50),
    operator.xor: ("^", 45),
    operator.or_: ("|", 40),
    operator.eq: ("==", 30),
    operator.ne: ("!=", 30),
    operator.lt: ("<", 30),
    operator.le: ("<=", 30),
    operator.gt: (">", 30),
    operator.ge: (">=", 30),
}
IN_PLACE: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
_BUILTINS = (getattr, float, int, bool, abs, max, min, len, slice, round, tuple, list, sum)
_PLAIN = (bool, int, float, str, type(None))
_SIMPLE = re.compile(r"[A-Za-z_][\w.]*|\d[\w.]*")
_NAME_OR_NUMBER = re.compile(r"[A-Za-z_]\w*|-?\d[\w.]*|")


@dataclass(frozen=True)
class Expression:
    """Source text of a value.

    ``reads`` are the nodes whose variables stand in it, ``depth`` is how many calls are nested in it.
    """

    template: Template
    level: int = ATOM
    reads: tuple[fx.Node, ...] = ()
    depth: int = 0

    @property
    def text(self) -> str:
        return rendered(self.template)


Values = Callable[[fx.Node], Expression]


def called_module(target: Any) -> str:
    """Return the module of the file's fixed imports that has a function; empty if it has to be imported."""
    name = str(getattr(target, "__name__", ""))
    homes = {"F": F, "torch": torch, "math": math, "operator": operator}
    return next((home for home, m in homes.items() if is_plain(name) and getattr(m, name, None) is target), "")


def needs_import(target: Any) -> bool:
    """Return True if a function is called by a name that the file imports."""
    return (
        target not in (as_list, choose)
        and not called_module(target)
        and target not in _BUILTINS
        and target not in _INFIX
        and target not in IN_PLACE
    )


def reference(path: str, root: nn.Module, start: str = "self") -> Template:
    """Return the expression for a module or tensor by its name relative to ``root``; the first list is an `Entry`."""
    module: Any = root
    pieces: list[Piece] = [start]
    for name in path.split("."):
        if isinstance(module, nn.Module) and is_listed(module) and module is not root:
            owner = rendered(tuple(pieces))
            pieces = (
                [*pieces, f"[{int(name)}]"] if any(isinstance(p, Entry) for p in pieces) else [Entry(owner, int(name))]
            )
        else:
            before = rendered(tuple(pieces))
            pieces = [*pieces, f".{name}"] if is_plain(name) else [f"getattr({before}, {literal(name)})"]
        module = getattr(module, name, None)
    return joined(tuple(pieces))


class ExpressionWriter:
    """The expressions of one ``forward``, relative to its module."""

    def __init__(self, slim: nn.Module, region: Region, imports: Imports) -> None:
        self._region, self._imports = region, imports
        self._module = slim.get_submodule(region.path)

    def of_node(self, node: fx.Node, values: Values) -> Expression:
        """Return the expression that a node computes; ``values`` has those of its arguments."""
        return _Parts(self, values).node(node)

    def of_call(self, region: Region, values: Values) -> Expression:
        """Return the call of a module that has a forward of its own."""
        parts = _Parts(self, values)
        return parts.made(self.refer(region.path), "(", separated(parts.value(arg) for arg in region.parameters), ")")

    def of_shape(self, tensor: fx.Node, values: Values) -> Expression:
        """Return the shape of a tensor."""
        parts = _Parts(self, values)
        return parts.made(parts.value(tensor, ATOM), ".shape")

    def of_value(self, value: Any, values: Values, *, bare: bool = False) -> Expression:
        """Return the expression of nested values; ``bare`` leaves out a tuple's brackets."""
        parts = _Parts(self, values)
        if bare and isinstance(value, tuple) and len(value) > 1:
            return parts.made(separated(parts.value(item) for item in value), level=_LOWEST)
        return parts.made(parts.value(value), level=_LOWEST)

    def refer(self, path: str) -> Template:
        """Return the expression for a module or tensor by its full name."""
        return reference(self._region.below(path), self._module)

    def module(self, path: str) -> nn.Module:
        """Return a module by its full name."""
        return self._module.get_submodule(self._region.below(path))

    def is_attribute(self, node: fx.Node) -> bool:
        """Return True if a node stands for an attribute of this module, and not for a variable."""
        return node.op == "get_attr" and (node.target == "training" or bool(self._region.below(str(node.target))))

    def function(self, target: Callable[..., Any]) -> str:
        """Return the expression that names a function in the file; adds an import if needed."""
        name = str(getattr(target, "__name__", ""))
        if home := called_module(target):
            if home in ("math", "operator"):
                self._imports.module(home)
            return f"{home}.{name}"
        for path in ("special", "linalg", "fft"):
            space = getattr(torch, path)
            if found := next((own for own in dir(space) if getattr(space, own) is target), None):
                return f"torch.{path}.{found}"
        if target in _BUILTINS:
            return name
        return self._imports.name(str(getattr(target, "__module__", "")), name)


def _without_defaults(kwargs: dict[str, Any], function: Any) -> dict[str, Any]:
    """Return the keywords of a call without those that a function has by itself; torch records all."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return kwargs
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {
        name: value
        for name, value in kwargs.items()
        if not (isinstance(value, _PLAIN) and type(value) is type(defaults.get(name, ...)) and value == defaults[name])
    }


class _Parts:
    """One expression: what it is made of, and the variables that stand in it."""

    def __init__(self, writer: ExpressionWriter, values: Values) -> None:
        self._writer, self._values = writer, values
        self._reads: list[fx.Node] = []
        self._depth = 0
        self._role = ""

    def made(self, *parts: Template | str, level: int = ATOM) -> Expression:
        return Expression(joined(*parts), level, tuple(self._reads), self._depth + 1)

    def node(self, node: fx.Node) -> Expression:
        if node.op == "call_module":
            called = self._writer.module(str(node.target))
            if isinstance(called, Branch):
                return self._branch(node, called)
            options = _without_defaults(node.kwargs, called.forward)
            return self.made(self._writer.refer(str(node.target)), "(", self._arguments(node.args, options), ")")
        if node.op == "call_method":
            return self._method(node)
        return self._function(node)

    def _branch(self, node: fx.Node, branch: Branch) -> Expression:
        """Return the call of the method that a branch is written as, where its condition holds."""
        test, otherwise, *given = node.args
        call = joined(self._writer.refer(str(node.target)), "(", self._arguments(given, {}), ")")
        return self._chosen(branch.condition, test, call, otherwise)

    def _chosen(self, condition: Condition, test: Any, then: Template, otherwise: Any) -> Expression:
        before, after = condition.value.split("{}")
        tested = joined(f" if {before}", self.value(test, ATOM), f"{after} else ")
        return self.made(then, tested, self.value(otherwise, _CHOICE), level=_CHOICE)

    def _method(self, node: fx.Node) -> Expression:
        method = self._role = str(node.target)
        if not is_plain(method) and not method.startswith("__"):
            raise SourceError(f"a method named {method!r}")
        if method == "size" and len(node.args) < 3 and not node.kwargs:
            index = self._subscript(node.args[1]) if len(node.args) == 2 else ()
            return self.made(self.value(node.args[0], ATOM), ".shape", index)
        return self.made(
            self.value(node.args[0], ATOM), f".{method}(", self._arguments(node.args[1:], node.kwargs), ")"
        )

    def _function(self, node: fx.Node) -> Expression:
        target, args = node.target, node.args
        self._role = str(getattr(target, "__name__", ""))
        infix = IN_PLACE.get(target, target)
        if infix in _INFIX and len(args) == 2 and not node.kwargs:
            return self._infix(*_INFIX[infix], *args)
        if target is operator.neg:
            return self.made("-", self.value(args[0], _UNARY), level=_UNARY)
        if target is operator.invert:
            return self.made("~", self.value(args[0], _UNARY), level=_UNARY)
        if target is operator.getitem:
            return self.made(self.value(args[0], ATOM), self._subscript(args[1]))
        if target is operator.setitem:  # Python computes the new value first
            value, owner = self.value(args[2]), self.value(args[0], ATOM)
            return self.made(owner, self._subscript(args[1]), " = ", value, level=_LOWEST)
        if target is getattr and isinstance(args[1], str) and is_plain(args[1]) and len(args) == 2:
            return self.made(self.value(args[0], ATOM), f".{args[1]}")
        if target is as_list:
            return self.made(self.value(list(args)))
        if target is choose:
            condition, test, then, otherwise = args
            return self._chosen(Condition[str(condition)], test, self.value(then, _CHOICE + 1), otherwise)
        if target is torch._assert:
            message = re.sub(r"Proxy\(\w*\)", "another", args[1]) if isinstance(args[1], str) else args[1]
            return self.made("assert ", self.value(args[0]), ", ", self.value(message), level=_LOWEST)
        name = self._writer.function(target)  # type: ignore[arg-type]
        return self.made(f"{name}(", self._arguments(args, _without_defaults(node.kwargs, target)), ")")

    def _infix(self, sign: str, level: int, left: Any, right: Any) -> Expression:
        if sign == "**":
            base, power = self.value(left, level + 1), self.value(right, _UNARY)
            simple = all(_SIMPLE.fullmatch(rendered(part)) for part in (base, power))
            return self.made(base, sign if simple else f" {sign} ", power, level=level)
        tighter_left = level + 1 if level == 30 else level
        return self.made(self.value(left, tighter_left), f" {sign} ", self.value(right, level + 1), level=level)

    def _arguments(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Template:
        parts: list[Template] = [self.value(arg) for arg in args]
        for key, value in kwargs.items():
            text = self.value(value)
            parts.append(joined(f"{key}=", text) if is_plain(key) else joined(f"**{{{literal(key)}: ", text, "}"))
        return separated(parts)

    def _subscript(self, index: Any) -> Template:
        if isinstance(index, tuple) and index:
            end = ",]" if len(index) == 1 else "]"
            return joined("[", separated(self._index_item(item) for item in index), end)
        return joined("[", self._index_item(index), "]")

    def _index_item(self, item: Any) -> Template:
        if not isinstance(item, slice):
            return self.value(item)
        start, stop, step = (() if part is None else self.value(part) for part in (item.start, item.stop, item.step))
        if all(_NAME_OR_NUMBER.fullmatch(rendered(part)) for part in (start, stop, step)):
            return joined(start, ":", stop, *((":", step) if step else ()))
        pieces = joined(start, " :" if start else ":", " " if stop else "", stop)
        return joined(pieces, " : ", step) if step else pieces

    def value(self, value: Any, level: int = _LOWEST) -> Template:
        """Return the text of an argument, in brackets if it binds less tightly than ``level``."""
        if isinstance(value, fx.Node):
            if self._writer.is_attribute(value):
                return ("self.training",) if value.target == "training" else self._writer.refer(str(value.target))
            found = self._values(value)
            self._reads += found.reads
            self._depth = max(self._depth, found.depth)
            return found.template if found.level >= level else joined("(", found.template, ")")
        if isinstance(value, tuple):
            items = separated(self.value(item) for item in value)
            return joined("(", items, ",)" if len(value) == 1 else ")")
        if isinstance(value, list):
            return joined("[", separated(self.value(item) for item in value), "]")
        if isinstance(value, dict):
            pairs = (joined(f"{literal(key)}: ", self.value(item)) for key, item in value.items())
            return joined("{", separated(pairs), "}")
        if isinstance(value, slice):
            return joined("slice(", separated(self.value(part) for part in (value.start, value.stop, value.step)), ")")
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = literal(value)
            plain: Template = (Slot(value, self._role),)
            return joined("(", plain, ")") if level == ATOM or (level > _UNARY and text.startswith("-")) else plain
        return (literal(value),)

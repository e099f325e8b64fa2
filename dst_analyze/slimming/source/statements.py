"""The forward method of a graph: one statement per node; variables are reused after their last use."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from dst_analyze.slimming.conditions import Branch, Condition, choose
from dst_analyze.slimming.source.constructors import Imports
from dst_analyze.slimming.source.literals import (
    SourceError,
    attribute,
    collection,
    identifier,
    is_plain,
    literal,
    wrapped,
)

_INFIX: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
}
_IN_PLACE: dict[Any, str] = {
    operator.iadd: "+=",
    operator.isub: "-=",
    operator.imul: "*=",
    operator.itruediv: "/=",
}
_INDENT = " " * 8


def forward_lines(slim: fx.GraphModule, imports: Imports) -> list[str]:
    """Return the lines of the forward method, with its signature."""
    lines = _method_lines("forward", slim, slim, imports)
    for name, part in slim.named_children():
        if isinstance(part, Branch):
            lines += ["", *_method_lines(name, part.part, slim, imports)]
    return lines


def _method_lines(name: str, part: fx.GraphModule, slim: fx.GraphModule, imports: Imports) -> list[str]:
    writer = _Writer(part.graph, slim, imports)
    lines = [line for node in part.graph.nodes for line in writer.statement(node)]
    arguments = "".join(f", {writer.names[node]}{_annotation(node)}" for node in writer.placeholders)
    return [f"    {wrapped(f'def {name}(self{arguments})', '    ', 1)}:", *lines]


def _annotation(node: fx.Node) -> str:
    if node.args:
        return ": torch.Tensor | None = None"
    return ": torch.Tensor" if node.meta.get("is_tensor", True) else ""


def _short_name(node: fx.Node) -> str:
    """Return the last name in a module's path, the attribute, or the name of the operation."""
    if node.target is getattr:
        return str(node.args[1])
    if isinstance(node.target, type):
        return node.name
    if node.op == "call_module":
        return next((part for part in reversed(str(node.target).split(".")) if not part.isdigit()), "x")
    return str(getattr(node.target, "__name__", node.target)).strip("_")


def _module_of(target: Any) -> str:
    """Return the module of the file's fixed imports that has a function; empty if it has to be imported."""
    name = str(getattr(target, "__name__", ""))
    homes = {"F": F, "torch": torch, "math": math, "operator": operator}
    return next((home for home, m in homes.items() if is_plain(name) and getattr(m, name, None) is target), "")


def _is_choice(node: fx.Node) -> bool:
    """Return True for a choice of two plain values, which is written where it is used."""
    return node.target is choose and not any(isinstance(arg, fx.Node) for arg in node.args[2:])


class _Writer:
    def __init__(self, graph: fx.Graph, slim: fx.GraphModule, imports: Imports) -> None:
        self._slim, self._imports = slim, imports
        self.placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self.names: dict[fx.Node, str] = {}
        self._last = {arg: node for node in graph.nodes for arg in node.all_input_nodes}
        self._live: set[str] = set()
        functions = [node.target for node in graph.nodes if node.op == "call_function"]
        self._imported = {str(getattr(target, "__name__", "")) for target in functions if not _module_of(target)}
        for node in self.placeholders:
            self.names[node] = self._new_name(str(node.target))

    def statement(self, node: fx.Node) -> list[str]:
        if node.op in ("placeholder", "get_attr") or _is_choice(node):
            return []
        if node.op == "output":
            return [_INDENT + wrapped(f"return {self._value(node.args[0])}", _INDENT)]
        text = self._expression(node)
        expiring = [arg for arg in node.all_input_nodes if self._last[arg] is node and arg in self.names]
        self._live -= {self.names[arg] for arg in expiring}
        if node.target is operator.setitem or not node.users:
            return [_INDENT + wrapped(text, _INDENT)]
        reused = next((arg for arg in expiring if arg.meta.get("is_tensor") and node.meta.get("is_tensor")), None)
        self.names[node] = self._reserve(self.names[reused]) if reused else self._new_name(_short_name(node))
        if node.target in _IN_PLACE:  # changes its first argument, which may still be used under its own name
            first, second = self._value(node.args[0]), self._value(node.args[1])
            alias = [] if self.names[node] == first else [f"{_INDENT}{self.names[node]} = {first}"]
            return [f"{_INDENT}{first} {text} {second}", *alias]
        return [_INDENT + wrapped(f"{self.names[node]} = {text}", _INDENT)]

    def _new_name(self, wish: str) -> str:
        """Return a name that no live variable has."""
        base = identifier(wish, self._imported)
        names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
        return self._reserve(next(name for name in names if name not in self._live))

    def _reserve(self, name: str) -> str:
        self._live.add(name)
        return name

    # Expressions.

    def _expression(self, node: fx.Node) -> str:
        if node.op == "call_module":
            called = self._slim.get_submodule(str(node.target))
            if isinstance(called, Branch):
                test, otherwise, *given = node.args
                call = f"self.{node.target}({self._arguments(given, {})})"
                return self._chosen(called.condition, test, call, self._value(otherwise))
            return f"{attribute('self', str(node.target), self._slim)}({self._arguments(node.args, node.kwargs)})"
        if node.op == "call_method":
            method = str(node.target)
            if not is_plain(method) and not method.startswith("__"):
                raise SourceError(f"a method named {method!r}")
            return f"{self._operand(node.args[0])}.{method}({self._arguments(node.args[1:], node.kwargs)})"
        return self._function(node)

    def _function(self, node: fx.Node) -> str:
        target, args = node.target, node.args
        if target is choose:
            then, otherwise = (self._value(arg) for arg in args[2:])
            return self._chosen(Condition[str(args[0])], args[1], then, otherwise)
        if target in _INFIX and len(args) == 2 and not node.kwargs:
            return f"{self._operand(args[0])} {_INFIX[target]} {self._operand(args[1])}"
        if target in _IN_PLACE:
            return _IN_PLACE[target]
        if target is operator.neg:
            return f"-{self._operand(args[0])}"
        if target is operator.getitem:
            return f"{self._operand(args[0])}[{self._index(args[1])}]"
        if target is operator.setitem:
            return f"{self._operand(args[0])}[{self._index(args[1])}] = {self._value(args[2])}"
        if target is getattr and isinstance(args[1], str) and is_plain(args[1]) and len(args) == 2:
            return f"{self._operand(args[0])}.{args[1]}"
        return f"{self._called(target)}({self._arguments(args, node.kwargs)})"  # type: ignore[arg-type]

    def _chosen(self, condition: Condition, test: Any, then: str, otherwise: str) -> str:
        return f"{then} if {condition.value.format(self._value(test))} else {otherwise}"

    def _called(self, target: Callable[..., Any]) -> str:
        """Return the expression that names a function in the file; adds an import if needed."""
        name = str(getattr(target, "__name__", ""))
        if home := _module_of(target):
            if home in ("math", "operator"):
                self._imports.module(home)
            return f"{home}.{name}"
        for path in ("special", "linalg", "fft"):
            space = getattr(torch, path)
            if found := next((own for own in dir(space) if getattr(space, own) is target), None):
                return f"torch.{path}.{found}"
        if target in (getattr, float, int, bool, abs, max, min, len, slice, round):
            return name
        return self._imports.name(str(getattr(target, "__module__", "")), name)

    def _arguments(self, args: Any, kwargs: Any) -> str:
        named = {key: self._value(value) for key, value in kwargs.items()}
        plain = [f"{key}={value}" for key, value in named.items() if is_plain(key)]
        odd = [f"**{{{literal(key)}: {value}}}" for key, value in named.items() if not is_plain(key)]
        return ", ".join([*(self._value(arg) for arg in args), *plain, *odd])

    def _operand(self, value: Any) -> str:
        text = self._value(value)
        choice = isinstance(value, fx.Node) and _is_choice(value)
        return f"({text})" if text.startswith("-") or choice else text

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple) and index:
            return ", ".join(self._index_item(item) for item in index) + ("," if len(index) == 1 else "")
        return self._index_item(index)

    def _index_item(self, item: Any) -> str:
        if not isinstance(item, slice):
            return self._value(item)
        start, stop, step = ("" if part is None else self._value(part) for part in (item.start, item.stop, item.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")

    def _value(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            if value.op == "get_attr":
                return (
                    "self.training" if value.target == "training" else attribute("self", str(value.target), self._slim)
                )
            return self._function(value) if _is_choice(value) else self.names[value]
        if isinstance(value, tuple | list | dict | slice):
            return collection(value, self._value)
        return literal(value)

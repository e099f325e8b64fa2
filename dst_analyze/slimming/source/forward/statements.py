"""The statements of one ``forward``: what stands on one line, and the names of variables.

A value that is used once is written where it is used, if the model's own source has both on one line or names it
nowhere. The order in which values are computed never changes: what is not yet written stands on a stack, and only its
top may become part of the next expression.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from dst_analyze.slimming.conditions import Branch, choose
from dst_analyze.slimming.source.constructors import Imports
from dst_analyze.slimming.source.forward.expressions import (
    IN_PLACE,
    Expression,
    ExpressionWriter,
    Values,
    needs_import,
)
from dst_analyze.slimming.source.forward.regions import Region, arguments_of, as_list
from dst_analyze.slimming.source.forward.source_lines import in_one_call, in_one_statement, line_of, statement_at
from dst_analyze.slimming.source.forward.unpacking import Unpacking, size_name, unpackings
from dst_analyze.slimming.source.literals import identifier, is_plain
from dst_analyze.slimming.source.templates import Template, joined

_LONGEST = 100  # of an expression with others inside it, in characters
_LONGEST_ELSEWHERE = 64  # of one that the model's source has on several lines, or that has none
_DEEPEST = 4
_SIGNS: dict[Any, str] = {operator.iadd: "+=", operator.isub: "-=", operator.imul: "*=", operator.itruediv: "/="}

Step = fx.Node | Region


@dataclass(frozen=True)
class Parameter:
    """An argument of a forward."""

    name: str
    annotation: str = "torch.Tensor"  # empty if it is neither a tensor nor a size
    default: str = ""

    @property
    def text(self) -> str:
        annotated = f"{self.name}: {self.annotation}" if self.annotation else self.name
        return f"{annotated} = {self.default}" if self.default else annotated


@dataclass
class Body:
    """The text of one ``forward``: names of its arguments, statements, and all variables."""

    parameters: list[Parameter]
    statements: list[Template] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def write_body(region: Region, slim: nn.Module, imports: Imports, *, root_output: fx.Node | None = None) -> Body:
    """Return the body of the forward of a module; ``root_output`` is the graph's output, for the whole model."""
    return _BodyWriter(region, slim, imports).body(root_output)


def _inputs(step: Step) -> list[fx.Node]:
    """Return what a step reads, in the order in which Python computes it."""
    if isinstance(step, Region):
        return step.parameters
    if step.target is operator.setitem:
        return arguments_of((step.args[2], step.args[0], step.args[1]))
    return arguments_of((step.args, step.kwargs))


def _results(step: Step) -> list[fx.Node]:
    return step.results if isinstance(step, Region) else [step]


def _place(step: Step) -> Any:
    return (step.call.line if step.call else None) if isinstance(step, Region) else line_of(step)


def _short_name(node: fx.Node) -> str:
    """Return the last name in a module's path, the attribute, or the name of the operation."""
    if (size := size_name(node)) is not None:
        return size
    if node.target is getattr:
        return str(node.args[1])
    if isinstance(node.target, type):
        return node.name
    if node.target is choose:
        return "result"
    if node.op in ("call_module", "get_attr"):
        return next((part for part in reversed(str(node.target).split(".")) if not part.isdigit()), "x")
    if node.op == "placeholder":
        return str(node.target)
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _short_name(node.args[0])
    return str(getattr(node.target, "__name__", node.target)).strip("_")


def is_optional(node: fx.Node) -> bool:
    """Return True for an input that has a default, which is None."""
    return node.op == "placeholder" and bool(node.args)


def _annotation(node: fx.Node) -> str:
    if size_name(node) is not None:
        return "int"
    if node.target is as_list:
        return "list[torch.Tensor]"
    if is_optional(node):
        return "torch.Tensor | None"
    return "torch.Tensor" if node.meta.get("is_tensor", True) else ""


def _same_list(step: Step, other: Step) -> bool:
    """Return True if two steps call different modules of one list."""
    paths = [s.path if isinstance(s, Region) else str(s.target) if s.op == "call_module" else "" for s in (step, other)]
    return paths[0] != paths[1] and len({re.sub(r"\d+", "#", path) for path in paths}) == 1


class _BodyWriter:
    def __init__(self, region: Region, slim: nn.Module, imports: Imports) -> None:
        self._region = region
        self._writer = ExpressionWriter(slim, region, imports)
        self._unpacked = unpackings(region)
        hidden = {item for unpacking in self._unpacked.values() for item in unpacking.hidden}
        self._steps = [step for step in region.steps if step not in hidden]
        # Names that a variable must not have: of functions that the file imports.
        functions = [node.target for node in region.nodes() if node.op == "call_function"]
        self._imported = {str(getattr(target, "__name__", "")) for target in functions if needs_import(target)}
        self._readers: dict[fx.Node, list[Step]] = {}
        self._names: dict[fx.Node, str] = {}
        self._left: Counter[fx.Node] = Counter()  # how often each value is still to be written
        self._owner: dict[str, fx.Node] = {}  # of the names in use
        self._pending: list[tuple[fx.Node, Expression]] = []
        self._body = Body([])

    def body(self, root_output: fx.Node | None) -> Body:
        region = self._region
        returned: Any = tuple(region.results) if len(region.results) != 1 else region.results[0]
        if root_output is not None:
            returned = root_output.args[0]
        for step in self._steps:
            for node in _inputs(step):
                self._left[node] += 1
                self._readers.setdefault(node, []).append(step)
        for node in arguments_of(returned):
            self._left[node] += 1
        for node in region.parameters:
            name = str(node.meta.get("passed", {}).get(region.call, "")) or _short_name(node)
            bound, default = (
                self._bind(node, self._free_name(name)),
                "None" if root_output and is_optional(node) else "",
            )
            self._body.parameters.append(Parameter(bound, _annotation(node), default))
        for step in self._steps:
            self._write(step)
        if root_output is not None or region.results:
            self._return(returned)
        return self._body

    # Steps.

    def _write(self, step: Step) -> None:
        if isinstance(step, fx.Node) and step.target in IN_PLACE and step.meta.get("is_tensor", True):
            self._change(step)
            return
        inputs = _inputs(step)
        if self._is_conditional(step):  # what is computed before it is computed whatever the condition
            self._flush()
        expression = self._expression(step, self._inlined(inputs))
        if len(expression.text) > _LONGEST and any(node in self._waiting() for node in inputs):
            self._flush()
            expression = self._expression(step, {})
        self._pending = [(node, waiting) for node, waiting in self._pending if node not in inputs]
        results = [node for node in _results(step) if self._left[node] or node in self._unpacked]
        node = results[0] if len(results) == 1 else None
        if node is not None and node in self._unpacked:
            self._flush()
            self._unpack(self._unpacked[node], expression)
        elif node is not None and self._can_wait(node, step, expression):
            self._pending.append((node, expression))
        else:
            self._flush()
            self._assign(step, results, expression)

    def _is_conditional(self, step: Step) -> bool:
        if isinstance(step, Region):
            return False
        return step.target is choose or (
            step.op == "call_module" and isinstance(self._writer.module(str(step.target)), Branch)
        )

    def _waiting(self) -> set[fx.Node]:
        return {node for node, _ in self._pending}

    def _inlined(self, inputs: Sequence[fx.Node]) -> dict[fx.Node, Expression]:
        """Return the waiting values that may stand in an expression which reads these; the others are written."""
        waiting = self._waiting()
        wanted = [node for node in inputs if node in waiting]
        stack = [node for node, _ in self._pending]
        count = len(wanted)
        while count and stack[-count:] != wanted[-count:]:
            count -= 1
        top = set(wanted[len(wanted) - count :])
        if len(wanted) > count:
            last = max(stack.index(node) for node in wanted if node not in top)
            self._flush(last + 1)
        return {node: waiting for node, waiting in self._pending if node in top}

    def _values(self, inlined: dict[fx.Node, Expression]) -> Values:
        return lambda node: inlined.get(node) or Expression((self._names[node],), reads=(node,))

    def _expression(self, step: Step, inlined: dict[fx.Node, Expression]) -> Expression:
        values = self._values(inlined)
        if isinstance(step, Region):
            return self._writer.of_call(step, values)
        unpacking = self._unpacked.get(step)
        if unpacking is not None and unpacking.shape_of is not None:
            return self._writer.of_shape(unpacking.shape_of, values)
        return self._writer.of_node(step, values)

    def _can_wait(self, node: fx.Node, step: Step, expression: Expression) -> bool:
        """Return True if a value is to be written where it is used."""
        if self._left[node] != 1 or node.target is operator.setitem:
            return False
        reader = next(iter(self._readers.get(node, ())), None)
        if isinstance(reader, fx.Node) and reader.target in IN_PLACE and reader.args[0] is node:
            return False
        if node.target is as_list:
            return True
        here, there = _place(step), None if reader is None else _place(reader)
        if in_one_statement(here, there):
            return len(expression.text) <= _LONGEST
        statement = statement_at(here)
        repeated = reader is not None and _same_list(step, reader)
        if statement is not None and statement.assigns and (repeated or not in_one_call(here, there)):
            return False
        if reader is None and statement is not None:
            return len(expression.text) <= _LONGEST
        return len(expression.text) <= _LONGEST_ELSEWHERE and expression.depth < _DEEPEST

    def _flush(self, count: int | None = None) -> None:
        """Write the oldest waiting values as statements."""
        count = len(self._pending) if count is None else count
        ready, self._pending = self._pending[:count], self._pending[count:]
        for node, expression in ready:
            self._assign(self._step_of(node), [node], expression)

    def _step_of(self, node: fx.Node) -> Step:
        return next((step for step in self._steps if isinstance(step, Region) and node in step.results), node)

    # Statements.

    def _assign(self, step: Step, results: Sequence[fx.Node], expression: Expression) -> None:
        expiring = self._read(expression)
        if isinstance(step, fx.Node) and step.target is operator.setitem:
            results = []
        names = []
        for index, node in enumerate(results):
            wish = self._wished(step, node, index, len(results))
            names.append(self._bind(node, self._chosen(node, wish, expiring if len(results) == 1 else [])))
        start = f"{', '.join(names)} = " if names else ""
        if not names or expression.text != ", ".join(names):
            self._body.statements.append(joined(start, expression.template))

    def _unpack(self, unpacking: Unpacking, expression: Expression) -> None:
        self._read(expression)
        names = self._item_names(unpacking)
        self._body.statements.append(joined(f"{', '.join(names)}{',' * (len(names) == 1)} = ", expression.template))

    def _item_names(self, unpacking: Unpacking) -> list[str]:
        names = []
        for item, wish in zip(unpacking.items, unpacking.names, strict=True):
            if item in self._unpacked and unpacking.shape_of is None:
                inner = self._item_names(self._unpacked[item])
                names.append(f"({', '.join(inner)}{',' * (len(inner) == 1)})")
            elif item is not None and self._left[item]:
                wish = wish if isinstance(wish, str) else ""
                names.append(self._bind(item, self._chosen(item, wish or _short_name(item), [])))
            else:
                names.append("_")
        return names

    def _change(self, node: fx.Node) -> None:
        """Write ``a += b``, which changes a tensor that may still be used under its own name."""
        first, second = node.args
        assert isinstance(first, fx.Node)
        values = self._values(self._inlined(arguments_of(second)))
        owner, value = self._writer.of_value(first, values), self._writer.of_value(second, values)
        self._pending = [(old, waiting) for old, waiting in self._pending if old not in arguments_of(second)]
        self._flush()
        self._body.statements.append(joined(owner.template, f" {_SIGNS[node.target]} ", value.template))
        self._read(Expression((), reads=(*owner.reads, *value.reads)))
        if not self._left[node]:
            return
        if not self._writer.is_attribute(first) and not self._left[first]:
            self._bind(node, self._names[first])
        else:
            name = self._bind(node, self._chosen(node, "", []))
            self._body.statements.append(joined(f"{name} = ", owner.template))

    def _return(self, returned: Any) -> None:
        inputs = arguments_of(returned)
        inlined = self._inlined(inputs)
        expression = self._writer.of_value(returned, self._values(inlined), bare=True)
        if len(expression.text) > _LONGEST and inlined:
            self._flush()
            inlined = {}
            expression = self._writer.of_value(returned, self._values(inlined), bare=True)
        self._pending = [(node, waiting) for node, waiting in self._pending if node not in inlined]
        self._flush()
        self._body.statements.append(joined("return ", expression.template))

    # Names.

    def _read(self, expression: Expression) -> list[fx.Node]:
        """Count what a written expression reads; return the values that nothing will read again."""
        for node in expression.reads:
            self._left[node] -= 1
        expiring = [node for node in dict.fromkeys(expression.reads) if self._left[node] <= 0]
        for node in expiring:
            if self._owner.get(self._names[node]) is node:
                del self._owner[self._names[node]]
        return expiring

    def _wished(self, step: Step, node: fx.Node, index: int, count: int) -> str:
        """Return the name that the model's source gives a value; empty if none is known."""
        statement = statement_at(_place(step))
        if statement is None:
            return ""
        if count > 1:
            name = statement.targets[index] if len(statement.targets) == count else ""
            return name if isinstance(name, str) else ""
        if size_name(node) is not None and not statement.is_size:
            return ""
        return "" if any(self._is_within(step, reader) for reader in self._readers.get(node, ())) else statement.target

    def _is_within(self, step: Step, reader: Step) -> bool:
        """Return True if a value is part of the statement that computes its reader."""
        here, there = _place(step), _place(reader)
        return (in_one_statement(here, there) or in_one_call(here, there)) and not _same_list(step, reader)

    def _chosen(self, node: fx.Node, wish: str, expiring: Collection[fx.Node]) -> str:
        """Return the name for a value: the wished one, that of a tensor that it replaces, or one by what it is."""
        if wish and is_plain(wish):
            name = identifier(wish, self._imported)
            if name not in self._owner:
                return name
        tensors = [old for old in expiring if old.meta.get("is_tensor") and node.meta.get("is_tensor")]
        replaced = next((self._names[old] for old in tensors if self._names[old] not in self._owner), None)
        return replaced or self._free_name(_short_name(node))

    def _free_name(self, wish: str) -> str:
        base = identifier(wish, self._imported)
        names = itertools.chain([base], (f"{base}_{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in self._owner)

    def _bind(self, node: fx.Node, name: str) -> str:
        self._names[node] = name
        if self._left[node]:
            self._owner[name] = node
        self._body.names.add(name)
        return name

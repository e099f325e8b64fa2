"""Where a user's source builds each layer, and whether a change of that line says what a plan wants."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

from torch import nn

from dst_analyze.model.user_errors import is_installed, shorten
from dst_analyze.slimming.planning.plan_types import SAME_LINE
from dst_analyze.slimming.source.literals import is_plain


@dataclass(frozen=True)
class Line:
    """The expression that builds a layer, in the ``__init__`` of the class that owns it."""

    owner: str  # qualified name of the module that the class is of
    kind: type[nn.Module]
    file: str
    number: int
    target: str  # what stands left of the equals sign; empty for an item of a container
    item: str  # for an item of a container: the container and the position
    call: ast.Call | None
    parameters: tuple[str, ...]  # of the class's __init__

    @property
    def place(self) -> str:
        """Where it stands: ``Block.__init__, model.py:12``."""
        return f"{self.kind.__name__}.__init__, {shorten(self.file)}:{self.number}"

    @property
    def key(self) -> tuple[str, int, str]:
        """The same for all layers that one expression builds."""
        return self.file, self.number, self.target + self.item


def lines_of(model: nn.Module, names: Iterator[str] | list[str]) -> dict[str, Line]:
    """Return the line that builds each layer, for those whose line is known."""
    found = ((name, _line_of(model, name)) for name in names)
    return {name: line for name, line in found if line is not None}


def remarks(lines: Mapping[str, Line], calls: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return for each changed layer what else has to change, or "" where its line alone says it.

    Args:
        lines: The line of every layer of the model that has one.
        calls: The calls before and after, of all layers.
    """
    together: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for name, found in lines.items():
        together[found.key].append(name)
    wanted = _wanted_arguments(lines, calls)
    result: dict[str, str] = {}
    for name in (name for name, (before, after) in calls.items() if before != after):
        if (line := lines.get(name)) is None:
            result[name] = "built outside of a class, or in a loop: its line is not known"
            continue
        others = [other for other in together[line.key] if other != name and other in calls]
        if is_installed(line.file):
            result[name] = f"{line.kind.__name__} is in an installed package: copy the class"
        elif len({calls[other][1] for other in (*others, name)}) == 1:
            result[name] = f"{SAME_LINE} {_listed(others)}, which need the same" if others else ""
        else:
            result[name] = _by_argument(name, line, others, calls, wanted)
    return result


def _listed(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def _wanted_arguments(
    lines: Mapping[str, Line], calls: Mapping[str, tuple[str, str]]
) -> dict[tuple[str, str], dict[str, list[str]]]:
    """Return which values an owner's argument would need, each with the layers and arguments that need it."""
    wanted: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, line in lines.items():
        now = _written_arguments(calls[name][1]) if name in calls else {}
        for key, expression in _arguments(line).items():
            if isinstance(expression, ast.Name) and expression.id in line.parameters and key in now:
                layer = name.removeprefix(f"{line.owner}.")
                wanted[line.owner, expression.id][now[key]].append(f"{key} of {layer}")
    return wanted


def _by_argument(
    name: str,
    line: Line,
    others: list[str],
    calls: Mapping[str, tuple[str, str]],
    wanted: Mapping[tuple[str, str], Mapping[str, list[str]]],
) -> str:
    """Return what to change where one line builds layers that become different."""
    before, after = (_written_arguments(call) for call in calls[name])
    expressions = _arguments(line)
    kind, layer = line.kind.__name__, name.rpartition(".")[2]
    given, shared, fixed = list[str](), dict[str, list[str]](), dict[str, list[str]]()
    for key in (key for key in after if after[key] != before.get(key)):
        source = expressions.get(key)
        if not (isinstance(source, ast.Name) and source.id in line.parameters):
            fixed.setdefault("left out" if source is None else ast.unparse(source), []).append(key)
        elif len(wanted[line.owner, source.id]) == 1:
            given.append(f"{source.id}={after[key]}")
        else:
            shared.setdefault(source.id, []).append(key)
    said = [f"{', '.join(dict.fromkeys(given))} where {line.owner or kind} is built"] if given else []
    for argument, keys in shared.items():
        values = wanted[line.owner, argument]
        meant = " and ".join(f"{value} ({', '.join(layers)})" for value, layers in values.items())
        said.append(
            f"{kind} cannot express it, since {argument} would be {meant}: "
            f"give {kind} an argument of its own for {' and '.join(keys)} of {layer}"
        )
    for text, keys in fixed.items():
        said.append(
            f"{kind} cannot express it, since {' and '.join(keys)} of {layer} is {text} in {1 + len(others)} layers: "
            f"make it an argument of {kind}"
        )
    return "; ".join(said)


def _arguments(line: Line) -> dict[str, ast.expr]:
    """Return the arguments of the call that builds a layer, by name; empty if they are not written out."""
    call = line.call
    if call is None or any(isinstance(arg, ast.Starred) for arg in call.args):
        return {}
    names = _parameter_names(call)
    return {
        **dict(zip(names, call.args, strict=False)),
        **{keyword.arg: keyword.value for keyword in call.keywords if keyword.arg},
    }


def _written_arguments(text: str) -> dict[str, str]:
    """Return the arguments of a call as `construct` writes it, by name."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return {}
    if not isinstance(call, ast.Call):
        return {}
    named = dict(zip(_parameter_names(call), map(ast.unparse, call.args), strict=False))
    return named | {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg}


def _parameter_names(call: ast.Call) -> list[str]:
    """Return the names of the positional arguments of one of torch's layers."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("LSTM", "GRU", "RNN"):
        return ["input_size", "hidden_size", "num_layers"]
    kind = getattr(nn, name, None)
    return list(inspect.signature(kind).parameters) if isinstance(kind, type) else []


# --- finding the line -------------------------------------------------------------------------------------------


def _line_of(model: nn.Module, name: str) -> Line | None:
    """Return the line of a layer: an assignment to an attribute, or an item of a container that is assigned."""
    path = name.split(".")
    for length in range(len(path) - 1, -1, -1):
        owner = ".".join(path[:length])
        module = model.get_submodule(owner)
        if _is_container(module):
            continue
        attribute, items = path[length], path[length + 1 :]
        for kind in type(module).__mro__:
            if (found := _assignments(kind).get(attribute)) is None:
                continue
            file, value, parameters = found
            item = ""
            for at in items:
                elements = _elements(value)
                if not at.isdigit() or elements is None or int(at) >= len(elements):
                    return None
                value = elements[int(at)]
                item += f"[{at}]"
            call = value if isinstance(value, ast.Call) else None
            target = f"self.{attribute}"
            return Line(
                owner,
                kind,
                file,
                value.lineno,
                "" if item else target,
                f"{target}{item}" if item else "",
                call,
                parameters,
            )
        return None
    return None


def _is_container(module: nn.Module) -> bool:
    return type(module) in (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _elements(value: ast.expr) -> list[ast.expr] | None:
    """Return the items of a Sequential or a ModuleList that is written out."""
    if not isinstance(value, ast.Call) or any(isinstance(arg, ast.Starred) for arg in value.args):
        return None
    name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
    if name == "Sequential":
        return value.args
    if name == "ModuleList" and len(value.args) == 1 and isinstance(value.args[0], ast.List | ast.Tuple):
        return value.args[0].elts
    return None


@cache
def _assignments(kind: type) -> dict[str, tuple[str, ast.expr, tuple[str, ...]]]:
    """Return what the class's own ``__init__`` assigns to each attribute, once and outside of loops."""
    code: Any = getattr(vars(kind).get("__init__"), "__code__", None)
    if kind is nn.Module or not isinstance(code, CodeType):
        return {}
    function = _function_at(code)
    if function is None:
        return {}
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)][1:]
    found: dict[str, tuple[str, ast.expr, tuple[str, ...]]] = {}
    several: set[str] = set()
    for target, value in _assigned(function.body):
        if target in found:
            several.add(target)
        found[target] = code.co_filename, value, tuple(names)
    return {target: line for target, line in found.items() if target not in several and is_plain(target)}


def _function_at(code: CodeType) -> ast.FunctionDef | None:
    """Return the function that a code object was compiled from, with the line numbers of its file."""
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == code.co_name)
    return next(
        (f for f in functions if min((f.lineno, *(d.lineno for d in f.decorator_list))) == code.co_firstlineno), None
    )


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the attributes of self that statements assign, with their expressions."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _pairs(target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield from _pairs(statement.target, statement.value)
        elif isinstance(statement, ast.If):
            yield from _assigned(statement.body)
            yield from _assigned(statement.orelse)
        elif isinstance(statement, ast.With):
            yield from _assigned(statement.body)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        yield target.attr, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)

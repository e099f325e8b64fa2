"""The lines of ``__init__``: every submodule and tensor in its order, with a comment where a width changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from dst_analyze.slimming.conditions import Branch
from dst_analyze.slimming.source.constructors import Imports, constructor
from dst_analyze.slimming.source.literals import attribute, identifier, is_listed, is_plain, literal
from dst_analyze.slimming.source.templates import (
    Slot,
    Template,
    bare,
    joined,
    merged,
    rendered,
    separated,
    skeleton,
    slots,
    with_role,
)

PARTS = "Parts"
_LONGEST = 108  # of a line that stands for a list
_MOST_COLUMNS = 3  # arguments in which the modules of such a list differ


@dataclass(frozen=True)
class Line:
    """A line of ``__init__``; ``depth`` counts the brackets around it, ``also`` has more for the comment."""

    template: Template
    depth: int = 0
    also: Mapping[str, str] = field(default_factory=dict)


class LayerWriter:
    """The lines of ``__init__`` of a model's modules.

    Args:
        held: The model's modules.
        imports: The file's imports, to add to.
        made: The calls that build modules of the classes written so far, by path.
        chains: Paths of modules that are called as an nn.Sequential is.
        was: Sizes before slimming, by the path of a layer or tensor.
    """

    def __init__(
        self,
        held: nn.Module,
        imports: Imports,
        made: Mapping[str, Template],
        chains: set[str],
        was: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._held, self._imports, self._made, self._chains, self._was = held, imports, made, chains, was
        self._persistent = set(held.state_dict())

    def lines(self, path: str) -> list[Line]:
        """Return the lines for all that a module holds."""
        found: list[Line] = []
        for name, value in children(self._held.get_submodule(path)):
            below = f"{path}.{name}" if path else name
            if is_plain(name):
                found += self._part(f"self.{name} = ", value, "", below, 0, name)
            else:
                found += self._part(f"setattr(self, {literal(name)}, ", value, ")", below, 0, name)
        return found

    def items(self, path: str) -> list[Line]:
        """Return the lines for the modules of an nn.Sequential, as arguments."""
        named = children(self._held.get_submodule(path))
        return [
            line for name, value in named for line in self._part("", value, ",", f"{path}.{name}".strip("."), 1, name)
        ]

    def ties(self) -> list[str]:
        """Return assignments that tie parameters which the model holds under several names."""
        seen: dict[int, str] = {}
        found = []
        for name, parameter in self._held.named_parameters(remove_duplicate=False):
            first = seen.setdefault(id(parameter), name)
            if first != name:
                found.append(f"{attribute('self', name, self._held)} = {attribute('self', first, self._held)}")
        return found

    def _part(self, before: str, value: Any, after: str, path: str, depth: int, role: str) -> list[Line]:
        if path in self._made:
            return [Line(joined(before, with_role(self._made[path], role), after), depth)]
        if type(value) is nn.Module:
            return self._container(before, value, after, path, depth, role)
        if isinstance(value, torch.Tensor):
            made, also = self._tensor(value, path)
        else:
            made, also = constructor(value, self._imports, self._was.get(path)), self._other_changes(value, path)
        return [Line(joined(before, with_role(made, role), after), depth, also)]

    def _container(self, before: str, value: nn.Module, after: str, path: str, depth: int, role: str) -> list[Line]:
        """Return the lines of a module that has no class of its own."""
        called, listed = path in self._chains, is_listed(value)
        kind = "nn.Sequential" if called else "nn.ModuleList" if listed else PARTS
        opening, closing = f"{kind}(", ")"
        if kind == "nn.ModuleList":
            opening, closing = f"{kind}([", "])"
        inner = depth + 1 + (called and not listed) + (kind == "nn.ModuleList")
        lines: list[Line] = []
        for name, child in children(value):
            key, end = ("", ",") if listed else (f"{name}=", ",")
            if not listed and not is_plain(name):
                key, end = f"**{{{literal(name)}: ", "},"
            lines += self._part(key, child, end, f"{path}.{name}", inner, f"{role}_{name}")
        if listed and (short := _comprehension(lines, "*" if called else "", role)) is not None:
            whole = joined(before, f"{kind}(", short, f"){after}")
            if len(rendered(whole)) + 4 * depth <= _LONGEST:
                return [Line(whole, depth)]
        if called and not listed:
            lines = [Line(("OrderedDict(",), depth + 1), *lines, Line((")",), depth + 1)]
        elif kind == "nn.ModuleList":
            opening, closing = f"{kind}(", ")"
            lines = [Line(("[",), depth + 1), *lines, Line(("]",), depth + 1)]
        return [Line((f"{before}{opening}",), depth), *lines, Line((f"{closing}{after}",), depth)]

    def _other_changes(self, value: nn.Module, path: str) -> dict[str, str]:
        """Return what surgery changed in a layer and its constructor does not name."""
        return {key: literal(old) for key, old in self._was.get(path, {}).items()} if path in self._was else {}

    def _tensor(self, tensor: torch.Tensor, path: str) -> tuple[Template, dict[str, str]]:
        was = self._was.get(path, {}).get("shape")
        before = was if was is not None and len(was) == tensor.ndim else tuple(tensor.shape)
        role = ["size"] if tensor.ndim == 1 else [f"size_{dim}" for dim in range(tensor.ndim)]
        sizes = separated(
            (Slot(size, name, was=literal(old)),) for size, name, old in zip(tensor.shape, role, before, strict=True)
        )
        shape = joined("(", sizes, ",)" if tensor.ndim == 1 else ")")
        also = {"": literal(was)} if was else {}
        kind = str(tensor.dtype)
        zeros = joined("torch.zeros(", shape, ")" if kind == "torch.float32" else f", dtype={kind})")
        if not isinstance(tensor, nn.Parameter):
            end = ")" if path in self._persistent else ", persistent=False)"
            return joined("nn.Buffer(", zeros, end), also
        if tensor.is_floating_point() and tensor.numel() > 1:  # a reasonable initialisation without the weights file
            spread = float(f"{float(tensor.detach().float().std()):.2g}")
            return joined("nn.Parameter(torch.randn(", shape, ") * ", (Slot(spread, about=True),), ")"), also
        return joined("nn.Parameter(", zeros, ")"), also


def children(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the parameters, buffers and submodules that a module holds, by name; a branch is a method of the model."""
    held = (*module._parameters.items(), *module._buffers.items(), *module._modules.items())
    return [(name, value) for name, value in held if value is not None and not isinstance(value, Branch)]


def _comprehension(lines: Sequence[Line], star: str, role: str) -> Template | None:
    """Return alike modules as one expression: ``Block(width) for width in (64, 24, 48)``; None if they differ."""
    made = [tuple(_without_comma(line.template)) for line in lines]
    if len(made) < 2 or len({line.depth for line in lines}) > 1 or len({skeleton(template) for template in made}) > 1:
        return None
    if any(line.also and set(line.also) - {slot.key for slot in slots(line.template)} for line in lines):
        return None
    rows = [slots(template) for template in made]
    vary = [i for i in range(len(rows[0])) if len({row[i].text for row in rows}) > 1]
    columns = {tuple(row[i].text for row in rows): i for i in reversed(vary)}
    if len(columns) > _MOST_COLUMNS:
        return None
    names: dict[tuple[str, ...], str] = {}
    for column, i in reversed(columns.items()):
        names[column] = identifier(_key(rows[0][i]), set(names.values()))
    texts = [names.get(tuple(row[i].text for row in rows)) if i in vary else None for i in range(len(rows[0]))]
    each = _named(made[0], texts, [merged([row[i] for row in rows]) for i in range(len(rows[0]))])
    if not names:
        values: Template = (f" for _ in range({len(made)})",)
    elif len(names) == 1:
        i = columns[next(iter(names))]
        values = joined(f" for {next(iter(names.values()))} in (", separated(_value(row[i]) for row in rows), ")")
    else:
        items = [joined("(", separated(_value(row[columns[column]]) for column in names), ")") for row in rows]
        values = joined(f" for {', '.join(names.values())} in (", separated(items), ")")
    return joined(star, "(" if star else "", each, values, ")" if star else "")


def _key(slot: Slot) -> str:
    return slot.key or slot.role or "size"


def _value(slot: Slot) -> Template:
    return (bare(slot),)


def _named(template: Template, texts: Sequence[str | None], alike: Sequence[Slot]) -> Template:
    """Return a template with some of its slots replaced by names, and the others by those of all modules."""
    rest = iter(zip(texts, alike, strict=True))
    pieces: list[Any] = []
    for piece in template:
        if isinstance(piece, Slot):
            name, slot = next(rest)
            first = rendered(tuple(pieces)).endswith("(")
            piece = slot if name is None else (slot.before.removeprefix(", ") if first else slot.before) + name
        pieces.append(piece)
    return joined(tuple(pieces))


def _without_comma(template: Template) -> Template:
    last = template[-1]
    return (*template[:-1], last.removesuffix(",")) if isinstance(last, str) else template

"""The classes of a written model: one for each shape of code, what its instances differ in as arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from dst_analyze.slimming.source.forward.loops import Loop
from dst_analyze.slimming.source.forward.statements import Body, Parameter
from dst_analyze.slimming.source.layers import Line
from dst_analyze.slimming.source.literals import identifier, is_plain, wrapped
from dst_analyze.slimming.source.templates import Slot, Template, joined, merged, note, rendered, skeleton, slots

_INDENT = " " * 4
_LONGEST = 120


@dataclass
class Instance:
    """One module that is written as a class: the lines of its ``__init__``, and its ``forward``."""

    path: str
    kind: str  # the name of its own class
    lines: list[Line]
    parameters: list[Parameter] = field(default_factory=list)
    statements: list[Template | Loop] = field(default_factory=list)
    parts: tuple[str, ...] = ()  # names of what it holds
    is_sequence: bool = False  # a subclass of nn.Sequential, with its forward

    def slots(self) -> list[Slot]:
        """Return all literals, in the order of the text."""
        templates = [*(line.template for line in self.lines), *_templates(self.statements)]
        return list(chain.from_iterable(slots(template) for template in templates))

    def shape(self) -> tuple[object, ...]:
        """Return what all instances of one class have in common."""
        lines = tuple((skeleton(line.template), line.depth) for line in self.lines)
        statements = tuple(
            (step.head, *map(skeleton, step.body)) if isinstance(step, Loop) else skeleton(step)
            for step in self.statements
        )
        return self.kind, lines, tuple(self.parameters), statements, self.is_sequence


@dataclass(frozen=True)
class WrittenClass:
    """A class of the file, and the calls that build its instances, by path."""

    name: str
    kind: str
    text: str
    calls: dict[str, Template]


def write_classes(instances: Sequence[Instance], taken: dict[str, Instance]) -> list[WrittenClass]:
    """Return the classes of modules, of which none holds another.

    ``taken``: names in the file, each with the instance that it stands for if it is a class; new ones are added.
    """
    groups: dict[tuple[object, ...], list[Instance]] = {}
    for instance in instances:
        groups.setdefault(instance.shape(), []).append(instance)
    found = []
    for group in sorted(groups.values(), key=len, reverse=True):
        name = _class_name(group[0], taken)
        taken[name] = group[0]
        found.append(_written(name, group, taken))
    return found


def _class_name(instance: Instance, taken: dict[str, Instance]) -> str:
    """Return the name of the module's own class, with what is more in this one if there is another of that name."""
    base = identifier(instance.kind)
    if base not in taken:
        return base
    more = [part for part in instance.parts if part not in taken[base].parts and is_plain(part)]
    if taken[base].kind == instance.kind and len(more) == 1:
        longer = identifier(f"{base}With{''.join(word.capitalize() for word in more[0].split('_'))}")
        if longer not in taken:
            return longer
    number = 2
    while f"{base}{number}" in taken:
        number += 1
    return f"{base}{number}"


# --- arguments ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Argument:
    name: str
    values: tuple[Slot, ...]  # one for each instance

    @property
    def annotated(self) -> str:
        kinds = {type(slot.value) for slot in self.values}
        simple = [kind.__name__ for kind in (bool, int, float, str, tuple) if kinds == {kind}]
        return f"{self.name}: {simple[0] if simple else 'float' if kinds == {int, float} else 'object'}"


def _arguments(group: Sequence[Instance], taken: set[str]) -> tuple[list[_Argument], list[str | None]]:
    """Return the arguments of a class, and the argument in place of each literal, None where all have the same."""
    rows = [instance.slots() for instance in group]
    by_values: dict[tuple[str, ...], list[int]] = {}
    for place, column in enumerate(zip(*rows, strict=True)):
        texts = tuple(slot.text for slot in column)
        if len(set(texts)) > 1 and not column[0].about:
            by_values.setdefault(texts, []).append(place)
    arguments, names = [], list[str | None]([None] * len(rows[0]))
    for places in by_values.values():
        name = identifier(rows[0][places[0]].role or "size", taken)
        taken.add(name)
        told = next((place for place in places if any(row[place].had != row[place].text for row in rows)), places[0])
        arguments.append(_Argument(name, tuple(row[told] for row in rows)))
        for place in places:
            names[place] = name
    return arguments, names


def _call(name: str, arguments: Sequence[_Argument], index: int) -> Template:
    """Return the call that builds one instance."""
    pieces: list[Template | str] = []
    for argument in arguments:
        slot = argument.values[index]
        before = ", " if len(arguments) == 1 else f", {argument.name}="
        shown = Slot(slot.value, argument.name, before, was=slot.was, key=argument.name)
        pieces.append((shown,))
    return joined(f"{name}(", *pieces, ")")


# --- text ---------------------------------------------------------------------------------------------------------


def _written(name: str, group: Sequence[Instance], taken: dict[str, Instance]) -> WrittenClass:
    first = group[0]
    used = {*taken, *first.parts, *(parameter.name for parameter in first.parameters), "self"}
    arguments, names = _arguments(group, used)
    alike = [merged(column) for column in zip(*(instance.slots() for instance in group), strict=True)]
    in_init = sum(len(slots(line.template)) for line in first.lines)
    stored = dict.fromkeys(name for name in names[in_init:] if name is not None)
    lines = [f"{_INDENT * 2}self.{own} = {own}" for own in stored]
    if not first.is_sequence:
        lines += _init_lines(group, iter(names), iter(alike))
    if first.is_sequence:
        lines = _sequence_lines(group, iter(names), iter(alike))
    text = _head(name, first, arguments, lines)
    if not first.is_sequence:
        kept = iter([f"self.{own}" if own is not None else None for own in names[in_init:]])
        text += [*([""] if lines else []), *forward_lines(first, kept, iter(alike[in_init:]))]
    calls = {instance.path: _call(name, arguments, index) for index, instance in enumerate(group)}
    return WrittenClass(name, first.kind, "\n".join(text), calls)


def _head(name: str, first: Instance, arguments: Sequence[_Argument], lines: Sequence[str]) -> list[str]:
    """Return the class with its ``__init__``, which one that holds nothing does not have."""
    base = "nn.Sequential" if first.is_sequence else "nn.Module"
    if not lines:
        return [f"class {name}({base}):"]
    given = "".join(f", {argument.annotated}" for argument in arguments)
    head = f"{_INDENT}def __init__(self{given}) -> None:"
    if len(head) > _LONGEST:
        each = [f"{_INDENT * 2}{argument.annotated}," for argument in arguments]
        together = f"{_INDENT * 2}self{given}"
        inside = [together] if len(together) <= _LONGEST else [f"{_INDENT * 2}self,", *each]
        head = "\n".join([f"{_INDENT}def __init__(", *inside, f"{_INDENT}) -> None:"])
    start = [] if first.is_sequence else [f"{_INDENT * 2}super().__init__()"]
    return [f"class {name}({base}):", head, *start, *lines]


def _init_lines(group: Sequence[Instance], names: Iterator[str | None], alike: Iterator[Slot]) -> list[str]:
    found = []
    for number, line in enumerate(group[0].lines):
        shown, texts = _settled(line.template, names, alike)
        also = {
            key: text for key, text in line.also.items() if all(i.lines[number].also.get(key) == text for i in group)
        }
        constant = [slot for slot, name in zip(slots(shown), texts, strict=True) if name is None]
        argued = {slot.key for slot, name in zip(slots(shown), texts, strict=True) if name is not None}
        comment = note(constant, {key: text for key, text in also.items() if key not in argued})
        found += _commented(rendered(shown, iter(texts)), comment, _INDENT * (2 + line.depth))
    return found


def _sequence_lines(group: Sequence[Instance], names: Iterator[str | None], alike: Iterator[Slot]) -> list[str]:
    return [f"{_INDENT * 2}super().__init__(", *_init_lines(group, names, alike), f"{_INDENT * 2})"]


def _settled(
    template: Template, names: Iterator[str | None], alike: Iterator[Slot]
) -> tuple[Template, list[str | None]]:
    """Return a template with the slots that all instances share, and the arguments in place of the others."""
    shown = tuple(next(alike) if isinstance(piece, Slot) else piece for piece in template)
    return shown, [next(names) for _ in slots(template)]


def _commented(text: str, comment: str, indent: str) -> list[str]:
    """Return the lines of a wrapped text, with its comment behind it or above it."""
    ending = text[-1] if text.endswith(",") else ""
    line = wrapped(text.removesuffix(","), indent, len(ending)) + ending if ending else wrapped(text, indent)
    if not comment:
        return [indent + line]
    if len(indent + line) + len(comment) + 2 <= _LONGEST and "\n" not in line:
        return [f"{indent}{line}  {comment}"]
    return [f"{indent}{comment}", indent + line]


def method_lines(name: str, body: Body) -> list[str]:
    """Return the lines of a method of the whole model, which has one instance."""
    instance = Instance("", "", [], body.parameters, [*body.statements])
    return forward_lines(instance, repeat(None), iter(instance.slots()), name)


def forward_lines(
    instance: Instance, names: Iterator[str | None], alike: Iterator[Slot], name: str = "forward"
) -> list[str]:
    """Return the lines of a forward, with its signature."""
    lines = [forward_signature(instance.parameters, name)]
    for step in instance.statements:
        inner = _INDENT * 2
        if isinstance(step, Loop):
            lines.append(f"{inner}{step.head}")
            inner += _INDENT
        for template in step.body if isinstance(step, Loop) else [step]:
            shown, texts = _settled(template, names, alike)
            lines.append(inner + wrapped(rendered(shown, iter(texts)), inner))
    if not instance.statements:
        lines.append(f"{_INDENT * 2}pass")
    return lines


def forward_signature(parameters: Sequence[Parameter], name: str = "forward") -> str:
    """Return the first line of a forward, or of another method."""
    given = ["self", *(parameter.text for parameter in parameters)]
    line = f"{_INDENT}def {name}({', '.join(given)}):"
    if len(line) <= _LONGEST:
        return line
    inner = _INDENT * 2
    together = [inner + ", ".join(given)]
    each = [f"{inner}{text}," for text in given]
    return "\n".join([f"{_INDENT}def {name}(", *(together if len(together[0]) <= _LONGEST else each), f"{_INDENT}):"])


def _templates(statements: Sequence[Template | Loop]) -> Iterator[Template]:
    for step in statements:
        yield from step.body if isinstance(step, Loop) else [step]

"""Options files such as run.toml: sections as in the help, keys as options; the command line wins."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click

from dst_analyze.cli.default_group import PROGRAM, closest, new_spelling
from dst_analyze.cli.option_types import LISTS_OF_NUMBERS, SeedCount, section_of
from dst_analyze.errors import OptionError
from dst_analyze.run.events import Emit, Event, SweepStarted
from dst_analyze.run.files.atomic_io import write_text
from dst_analyze.run.files.paths import OPTIONS

ONCE = ("config", "print-config", "dry-run", "fast-dev-run", "open", "resume", "retry-failed", "force", "debug")
"""Options of the command line only, which no file can set."""
WHERE = ("quiet", "json", "out", "jobs", "engine", "ray-address", "tensorboard", "wandb", "mlflow")
"""Options that change no results: left out of the options that a run folder keeps."""

RETIRED = {"include-unclear": "take it out: all groups go by their evidence now, unless only-clear is set"}
"""Options of earlier versions that were removed, and what to do about them."""

_LARGEST = 1 << 20  # bytes


def key_of(option: click.Parameter) -> str:
    """Return an option's key in a file: its longest name without the dashes."""
    return max(option.opts, key=len).lstrip("-")


def sections(command: click.Command) -> dict[str, list[click.Parameter]]:
    """Return the options that a file may set, by section, in the order of the help."""
    found: dict[str, list[click.Parameter]] = {}
    for option in command.params:
        if key_of(option) not in ONCE:
            found.setdefault(re.sub(r"\W+", "-", section_of(option).lower()), []).append(option)
    return found


# --- reading --------------------------------------------------------------------------------------------------------


def read_options(path: Path, command: click.Command) -> dict[str, Any]:
    """Return the settings of an options file by parameter name, as click expects defaults."""
    path = path / OPTIONS if path.is_dir() else path
    text, given = _parsed(path)
    known = sections(command)
    options = {key_of(option): option for group in known.values() for option in group}
    found: dict[str, Any] = {}
    for name, value in given.items():
        inner = name.replace("_", "-") in known and isinstance(value, dict)
        for key, setting in value.items() if inner else [(name, value)]:
            place = f"{path}{_line(text, name if inner else '', key)}, {key}"
            option = options.get(new_spelling(key.replace("_", "-")))
            if option is None:
                raise OptionError(f"there is no option {key!r}", place=place, hint=_meant(key, [*options, *known]))
            if option.name in found:
                raise OptionError(f"{key!r} is set twice", place=place, hint="set it once")
            found[str(option.name)] = _as_typed(option, setting, place)
    return found


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        if path.stat().st_size > _LARGEST:
            raise OptionError("the file is too large for an options file", place=str(path), hint=_HINT)
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise OptionError(f"the file cannot be read: {error.strerror}", place=str(path), hint=_HINT) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        line = re.search(r" \(at line (\d+), column \d+\)", str(error))
        said = str(error).replace(line[0], "") if line else str(error)
        beside = path.with_name(OPTIONS)
        hint = f"the options of this run are in {beside}" if path.suffix == ".json" and beside.exists() else _HINT
        raise OptionError(
            f"the file is not TOML: {said}", place=f"{path}:{line[1]}" if line else str(path), hint=hint
        ) from error


_HINT = f"`{PROGRAM} MODEL --print-config > run.toml` writes an options file"


def _line(text: str, section: str, key: str) -> str:
    """Return ":LINE" of a key; "" if it is not found."""
    now = ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\s*[\"']?(.+?)[\"']?\s*\]", line):
            now = head[1]
        elif now == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return f":{number}"
    return ""


def _meant(key: str, known: Collection[str]) -> str:
    name = key.replace("_", "-")
    if name in ONCE:
        return f"--{name} is for the command line only"
    if name in RETIRED:
        return RETIRED[name]
    near = closest(name, known)
    return f"did you mean {near}?" if near else f"`{PROGRAM} --help-all` lists the options"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _expected(option: click.Parameter) -> tuple[Callable[[Any], bool], str]:
    """Return a check for an option's TOML values, and what it accepts in words."""
    if isinstance(option, click.Option) and option.is_flag:
        return lambda value: isinstance(value, bool), "true or false"
    if option.callback in LISTS_OF_NUMBERS:
        numbers = _is_list_of(_is_number)
        return lambda value: _is_text(value) or numbers(value), "a list of numbers such as [1e-5, 1e-4]"
    if option.multiple:
        return _is_list_of(_is_text), 'a list of texts such as ["conv*"]'
    if isinstance(option.type, click.Choice):
        return lambda value: value in option.type.choices, f"one of {', '.join(map(repr, option.type.choices))}"
    if isinstance(option.type, SeedCount):
        return lambda value: value == "auto" or type(value) is int, 'a whole number or "auto"'
    if isinstance(option.type, click.types.IntParamType):
        return lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return _is_number, "a number"
    return _is_text, "a text in quotes"


def _as_typed(option: click.Parameter, value: Any, place: str) -> Any:
    """Return a value of the file as the command line would pass it."""
    fits, wanted = _expected(option)
    if not fits(value):
        raise OptionError(f"{key_of(option)} is {value!r}, not {wanted}", place=place, hint=f"write {wanted}")
    return ",".join(map(repr, value)) if option.callback in LISTS_OF_NUMBERS and isinstance(value, list) else value


# --- writing --------------------------------------------------------------------------------------------------------


def as_toml(command: click.Command, values: Mapping[str, Any], leave_out: Collection[str] = ()) -> str:
    """Return the given options of a call as TOML; options left at their defaults are left out."""
    parts = []
    for title, options in sections(command).items():
        lines = [
            f"{key_of(option)} = {_toml(values[str(option.name)])}"
            for option in options
            if key_of(option) not in leave_out and _is_set(values.get(str(option.name)))
        ]
        if lines:
            parts.append("\n".join([f"[{title}]", *lines]))
    return "\n\n".join(parts) + "\n"


def _is_set(value: Any) -> bool:
    return value is not None and value is not False and value != ()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def keeping(text: str) -> Emit:
    """Return a listener that writes the options into the run folder when the sweep starts."""

    def listen(event: Event) -> None:
        if isinstance(event, SweepStarted):
            write_text(Path(event.folder) / OPTIONS, text)

    return listen

"""Kinds of options, and the sections of a command's help that they stand in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

Decorated = Callable[..., Any]
Decorator = Callable[[Decorated], Decorated]

_SECTION = "dst_section"


class Sectioned(click.Command):
    """A command whose help groups options by section, or shows only the common ones."""

    def __init__(self, *args: Any, common: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.common = tuple(common)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            shown = parameter.get_help_record(ctx)
            if shown is not None and isinstance(parameter, click.Option):
                sections.setdefault(section_of(parameter), []).append(shown)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_common(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options only, in their own order."""
        options = {name: option for option in self.get_params(ctx) for name in option.opts}
        shown = (options[name].get_help_record(ctx) for name in self.common)
        with formatter.section("Common options"):
            formatter.write_dl([row for row in shown if row is not None])


def section(title: str, *options: Decorator) -> Decorator:
    """Return one decorator for several options, in the given order, under one title in the help."""

    def decorate(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
            setattr(command.__click_params__[-1], _SECTION, title)  # type: ignore[attr-defined]
        return command

    return decorate


def section_of(parameter: click.Parameter) -> str:
    """Return the title under which the help shows an option."""
    return getattr(parameter, _SECTION, "Options")


def choice(name: str, *values: str, text: str, metavar: str | None = None) -> Decorator:
    """Return an option with fixed values, of which the first is the default."""
    kind = click.Choice(values)
    return click.option(name, type=kind, default=values[0], show_default=True, metavar=metavar, help=text)


def folder(name: str, text: str) -> Decorator:
    """Return an option that takes a folder."""
    return click.option(name, type=click.Path(path_type=Path), metavar="DIR", help=text)


def alphas(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | str | None:
    return value if value == "auto" else numbers(ctx, param, value)


def numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Return numbers separated by commas; `SweepConfig` checks their values."""
    if value is None:
        return None
    try:
        return tuple(float(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1e-5,1e-4") from None


class SeedCount(click.ParamType[int | str]):
    """A number of seeds, or "auto"."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Return the number, or "auto"."""
        if value == "auto":
            return "auto"
        try:
            return click.IntRange(1).convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is neither a number from 1 nor auto", param, ctx)


LISTS_OF_NUMBERS = (alphas, numbers)
"""Callbacks of options that take a list of numbers."""

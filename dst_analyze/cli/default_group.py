"""The command group that takes a model in place of a command, and usage errors as `OptionError`."""

from __future__ import annotations

import difflib
import platform
import shlex
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import cast

import click
from click.shell_completion import CompletionItem

from dst_analyze.cli.option_types import Sectioned
from dst_analyze.errors import OptionError
from dst_analyze.version import __version__

PROGRAM = "dst-analyze"
DEFAULT = "analyze"
RENAMED = {"fresh": "reinitialize", "threshold-unit": "threshold-scale", "operator": "backend"}
"""Old names of options, accepted for one release on the command line and in files."""
_LIST = f"`{PROGRAM} --help-all` lists the commands and options"
_ALL = "dst_analyze.help_all"


class DefaultGroup(click.Group):
    """A group whose first argument may be a model instead of a command's name."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = args if ctx.resilient_parsing else list(_with_new_spellings(args))
        if ctx.resilient_parsing and not args:  # shell completion
            return super().parse_args(ctx, args)
        if not args or args[0] in self.commands:
            return super().parse_args(ctx, args or ["--help"])
        for own in ("--help", "--help-all", "--version", "--list-examples"):
            if own in args:
                return super().parse_args(ctx, [own])
        return super().parse_args(ctx, [DEFAULT, *args])

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(PROGRAM, "MODEL [OPTIONS]")
        formatter.write_usage(PROGRAM, "COMMAND ...", prefix=" " * len("Usage: "))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the default command's options as those of the program: the common ones, or with --help-all all."""
        default = cast(Sectioned, self.commands[DEFAULT])
        write = default.format_options if ctx.meta.get(_ALL) else default.format_common
        write(click.Context(default, parent=ctx), formatter)
        self.format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions: commands, the default command's options, models and files."""
        default = self.commands[DEFAULT]
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return [*found, *default.shell_complete(click.Context(default, parent=ctx), incomplete)]
        return [*found, *complete_model(ctx, None, incomplete)]


def _with_new_spellings(args: Iterable[str]) -> Iterator[str]:
    """Yield the arguments with renamed options under their new names."""
    for arg in args:
        name, given, value = arg.partition("=")
        yield f"--{new_spelling(name[2:])}{given}{value}" if name.startswith("--") else arg


def new_spelling(name: str) -> str:
    """Return an option's current name; prints a note on stderr if the given name is an old one."""
    new = RENAMED.get(name, name)
    if new != name:
        click.echo(f"--{name} is now --{new}; the next release removes the old name", err=True)
    return new


def complete_model(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """Return completions for MODEL: prefixes of model collections, and files."""
    collections = [
        CompletionItem(name) for name in ("example:", "torchvision:", "timm:") if name.startswith(incomplete)
    ]
    return [*collections, CompletionItem(incomplete, type="file")]


def print_all_options(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the help with every option, and exit."""
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the versions of this package, torch and Python, and exit."""
    if value and not ctx.resilient_parsing:
        # Read from metadata: importing torch takes seconds.
        click.echo(f"{PROGRAM} {__version__} (torch {metadata.version('torch')}, Python {platform.python_version()})")
        ctx.exit()


def print_examples(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print the bundled example models, and exit."""
    if value and not ctx.resilient_parsing:
        from dst_analyze.model.loading.bundled import all_examples
        from dst_analyze.text import short

        formatter = ctx.make_formatter()
        rows = []
        for example in all_examples():
            size = "size unknown" if example.params is None else f"{short(example.params)} parameters"
            arguments = f" ({example.arguments})" if example.arguments else ""
            rows.append((f"example:{example.name}", f"{example.about} {size}{arguments}."))
        formatter.write_dl(rows)
        click.echo(formatter.getvalue(), nl=False)
        ctx.exit()


def closest(wrong: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to a wrong one; None if none is similar."""
    return next(iter(difflib.get_close_matches(wrong, list(known), n=1)), None)


def usage_error(error: click.ClickException, args: Sequence[str], commands: Iterable[str]) -> OptionError:
    """Return click's error as an `OptionError` with cause, place and hint."""
    place = shlex.join([PROGRAM, *args])
    if isinstance(error, click.NoSuchOption):
        meant = next(iter(error.possibilities or ()), None)
        hint = f"did you mean {meant}?" if meant else _LIST
        return OptionError(f"there is no option {error.option_name}", place=place, hint=hint)
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter) and error.param:
        name = next(iter(error.param.opts), "")
        return OptionError(error.message, place=name, hint=f"`{PROGRAM} --help-all` says what {name} takes")
    meant = closest(args[0], commands) if args else None
    hint = f"did you mean `{PROGRAM} {meant}`?" if meant and meant != args[0] else _LIST
    return OptionError(error.format_message(), place=place, hint=hint)

"""The command line's entry point; torch is imported only by commands that need it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import TextIO, cast

import click

from dst_analyze.cli.commands.analyze import analyze
from dst_analyze.cli.commands.compare import compare
from dst_analyze.cli.commands.inspect import inspect
from dst_analyze.cli.commands.rank import rank
from dst_analyze.cli.commands.report import report
from dst_analyze.cli.commands.slim import slim
from dst_analyze.cli.commands.verify import verify
from dst_analyze.cli.default_group import (
    PROGRAM,
    DefaultGroup,
    print_all_options,
    print_examples,
    print_version,
    usage_error,
)
from dst_analyze.cli.output import Output, output_error
from dst_analyze.errors import DstError
from dst_analyze.sweep.engines import forkserver

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 in part, 2 bad input, 130 interrupted.

    Whether the messages could be written decides it only for commands that do nothing but show something.
    """
    args = list(sys.argv[1:] if arguments is None else arguments)
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # characters the terminal cannot encode must not end a run
    output = Output(sys.stdout)
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, Output(sys.stderr))
    try:
        code = _run(args)
        output.flush()
        sys.stderr.flush()
        error = output_error(output.failure, args, [*commands.commands]) if output.failure and code == 0 else None
        return code if error is None else _failed(error, args)
    finally:
        sys.stdout, sys.stderr = streams


def _run(args: Sequence[str]) -> int:
    try:
        return int(commands.main(list(args), prog_name=PROGRAM, standalone_mode=False, obj=list(args)) or 0)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        return _failed(usage_error(error, args, commands.commands), args)
    except DstError as error:
        return _failed(error, args)
    except MemoryError:
        return _failed(DstError("memory ran short", hint="close other programs, or raise the limit (ulimit -v)"), args)
    except Exception as error:
        said = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return _failed(DstError(said, hint="run with --debug to see where this comes from"), args)
    finally:
        forkserver.stop_forkserver()


def _failed(error: DstError, args: Sequence[str]) -> int:
    from dst_analyze.cli.terminal import console, error_text, escape_control

    if "--debug" in args:
        click.echo(escape_control(traceback.format_exc()), err=True)
    console(stderr=True).print(error_text(error), soft_wrap=True)
    return error.exit_code


@click.group(cls=DefaultGroup)
@click.option("--version", is_flag=True, callback=print_version, expose_value=False, is_eager=True)
@click.option("--list-examples", is_flag=True, callback=print_examples, expose_value=False, is_eager=True)
@click.option("--help-all", is_flag=True, callback=print_all_options, expose_value=False, is_eager=True)
def commands() -> None:
    """\b
    Find the redundant layers of a PyTorch model, and how sure that is.
    MODEL is FILE.py, FILE.py:NAME, package.module:NAME, torchvision:NAME,
    timm:NAME or example:NAME (--list-examples). Its code is executed.

    \b
    dst-analyze mymodel.py --alphas 1e-7,1e-6,1e-5    the whole job, to a report
    dst-analyze --help-all                            every option, in groups
    """


for command in (analyze, inspect, slim, verify, report, rank, compare):
    commands.add_command(command)

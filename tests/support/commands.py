"""The command line in the calling process, where a process of its own would only import torch once more."""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from dst_analyze.cli.main import main


@dataclass(frozen=True)
class Completed:
    """The exit code and the output of a command, named as those of a completed process."""

    returncode: int
    stdout: str
    stderr: str


def run_here(folder: Path, *arguments: str) -> Completed:
    """Run ``dst-analyze`` in a folder and return what it printed."""
    with chdir(folder), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(arguments)
    return Completed(code, out.getvalue(), err.getvalue())

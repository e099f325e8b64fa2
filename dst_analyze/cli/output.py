"""Standard output that may be closed or full: what is done does not depend on whether anybody could be told of it."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dst_analyze.cli.default_group import DEFAULT
from dst_analyze.errors import DstError

_LEAVES_FILES = (DEFAULT, "slim", "verify", "report")
_ONLY_SHOWS = ("--help", "--help-all", "--version", "--list-examples", "--print-config", "--dry-run")


class Output:
    """A stream that is written to as long as it can be; ``failure`` is why no longer."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.failure: OSError | None = None if stream is not None else OSError(errno.EBADF, os.strerror(errno.EBADF))

    def write(self, text: str) -> int:
        """Write the text, or nothing if the stream has failed."""
        if self.failure is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        if self.failure is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._fail(error)

    def isatty(self) -> bool:
        """True for a terminal."""
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _fail(self, error: OSError) -> None:
        self.failure = error
        if self._stream in (sys.__stdout__, sys.__stderr__):  # Python tries once more to write it when it ends
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def output_error(failure: OSError, args: Sequence[str], commands: Sequence[str]) -> DstError | None:
    """Return the error of a command whose output could not be written; None if it leaves files, and has left them."""
    name = args[0] if args and args[0] in commands else DEFAULT
    shows = any(option in args for option in _ONLY_SHOWS)
    if "--html" in args or (name in _LEAVES_FILES and not shows):
        return None
    return DstError(f"the output cannot be written: {failure.strerror}", hint="give it a file or a pipe that takes it")

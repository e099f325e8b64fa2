"""Errors in a user's code: their line, the user's frames of the traceback, and the wording."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch import nn

from dst_analyze.errors import DstError, ModelError
from dst_analyze.package import EXAMPLES, PACKAGE

_LIBRARIES = tuple(
    f"{folder}{os.sep}" for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), PACKAGE)
)
_INSTALLED = re.compile(r"[\\/](site|dist)-packages[\\/]")
_INTERACTIVE = ("<stdin>", "<ipython")
_ENFORCED = re.compile(r"^\[enforce fail at [^\]]*\] .*? == 0\. ")  # names a line of torch's source
_NO_MEMORY = re.compile(r"can't allocate memory|out of memory", re.IGNORECASE)
_MACHINERY = tuple(f"{folder}/" for folder in (Path(torch.__file__).parent, PACKAGE / "model"))
_STANDARD_LIBRARY = f"{Path(traceback.__file__).parent}/"
_TRACE_LINES = 3  # with cause, place and hint, an error has six lines


def _is_users(filename: str, file: Path | None) -> bool:
    """True if a frame is in the user's code: not the standard library, an installed package or this one."""
    if filename.startswith("<"):
        return filename.startswith(_INTERACTIVE)
    if file is not None and filename == str(file):
        return True
    return not is_installed(filename)


def is_installed(file: str | os.PathLike[str]) -> bool:
    """True if a file belongs to the standard library, an installed package or this one."""
    return os.fspath(file).startswith(_LIBRARIES) or bool(_INSTALLED.search(os.fspath(file)))


def user_trace(error: BaseException, file: Path | None = None) -> tuple[str, str]:
    """Return where in the user's code an exception arose, and the calls to there in three lines.

    If no frame is the user's, the place is the file alone. The whole traceback, which would hide the error's cause
    and hint, is shown with ``--debug``.
    """
    report = traceback.TracebackException.from_exception(error)
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        shown = [line for line in report.format_exception_only() if line.startswith("    ")]
        return f"{shorten(error.filename)}:{error.lineno or 1}", "".join(shown).rstrip()
    frames = [frame for frame in report.stack if _is_users(frame.filename, file)]
    if not frames:
        return shorten(file) if file else "", ""
    calls = [f"    {_place(frame)}, in {frame.name}: {frame.line}" for frame in frames]
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None:
        calls = [*calls[-_TRACE_LINES + 1 :], f"    after {headline(earlier)}"]
    elif len(calls) > _TRACE_LINES:
        calls = [calls[0], f"    ... {len(calls) - 2} more calls", calls[-1]]
    return _place(frames[-1]), "\n".join(calls)


def _place(frame: traceback.FrameSummary) -> str:
    return f"{shorten(frame.filename)}:{frame.lineno}"


def shorten(path: str | os.PathLike[str]) -> str:
    """Return a path as a user would type it: relative if it is below the current folder."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return os.fspath(path)


def headline(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    first = next(iter(_ENFORCED.sub("", str(error)).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


@contextmanager
def user_code(
    what: str, kind: type[DstError] = ModelError, *, file: Path | None = None, hint: str = ""
) -> Iterator[None]:
    """Turn what the user's code raises inside the block into a `DstError` with the user's frames."""
    try:
        yield
    except DstError:
        raise
    except SystemExit as stop:
        if any(Path(frame.filename).name == "argparse.py" for frame in traceback.extract_tb(stop.__traceback__)):
            raise kind(
                f"{what} parsed arguments of the command line (argparse), of which it sees none, and gave up.",
                place=user_trace(stop, file)[0],
                hint="give the arguments defaults, or parse them below `if __name__ == '__main__':`",
            ) from stop
        raise kind(
            f"{what} called sys.exit({stop.code!r}).",
            place=user_trace(stop, file)[0],
            hint=f"keep scripts below `if __name__ == '__main__':`, which is not run here{'; ' + hint if hint else ''}",
        ) from stop
    except Exception as error:
        place, trace = user_trace(error, file)
        if is_out_of_memory(error):
            raise kind(f"{what} ran out of memory: {headline(error)}", place=place, hint=hint) from error
        raise kind(f"{what} raised {headline(error)}", place=place, trace=trace, hint=hint) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """True if an allocation failed; on CPUs torch says so in the message only."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


def did_you_mean(wanted: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that names the known names closest to a misspelt one."""
    known = list(known)
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wanted.lower(), lower, n=4, cutoff=0.6)
    return f"did you mean {_either(lower[name] for name in close)}?" if close else otherwise


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def describe_value(value: object) -> str:
    """Return what a value is, in words: `a dict`, `the class Config`, `None`."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def describe_error(error: BaseException) -> str:
    """Return an exception's type and the first 200 characters of its message, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message[:200]}".rstrip(": ")


def place_of(error: BaseException) -> str:
    """Return the innermost line of model code in a traceback: not torch's, not this package's."""
    frames = [f"{f.f_code.co_filename}:{line}" for f, line in traceback.walk_tb(error.__traceback__) if _is_model(f)]
    return frames[-1] if frames else ""


def source_of(kind: type[nn.Module]) -> str:
    """Return the file and line of a class's forward, below its decorators; "" if it is not written in Python."""
    forward = inspect.getattr_static(kind, "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def place_here() -> str:
    """Return the innermost line of model code on the current stack; "" if there is none."""
    frame = next((f for f, _ in traceback.walk_stack(sys._getframe(1)) if _is_model(f)), None)
    if frame is None or _is_caller(frame.f_code.co_filename):  # all of the model is torch's, as an nn.Sequential
        return ""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_caller(file: str) -> bool:
    """True if a file is this package's, which runs the model, and not one of its examples."""
    return Path(file).is_relative_to(PACKAGE) and not Path(file).is_relative_to(EXAMPLES)


def _is_model(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    library = file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
    return not library and not file.startswith((*_MACHINERY, "<"))

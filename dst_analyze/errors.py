"""Errors for users, with cause, place and hint; only the command line prints them and exits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class DstError(Exception):
    """Base class of the errors that this package raises on purpose.

    Args:
        cause: What happened, in one sentence.
        place: Where it happened: a file and line, a layer, an option.
        hint: What to do next.
        trace: The part of a traceback that is in the user's code.

    Example:
        >>> from dst_analyze import DstError, load_model
        >>> try:
        ...     load_model("missing.py")
        ... except DstError as error:
        ...     print(error.place)
        missing.py
    """

    exit_code = 1

    def __init__(self, cause: str, *, place: str = "", hint: str = "", trace: str = "") -> None:
        self.cause, self.place, self.hint, self.trace = cause, place, hint, trace
        super().__init__(cause)

    def __str__(self) -> str:
        parts = [self.cause]
        if self.place:
            parts.append(f"  at {self.place}")
        if self.trace:
            parts.append(self.trace.rstrip())
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling with keyword arguments, as errors cross process borders."""
        return _rebuild, (type(self), self.cause, self.place, self.hint, self.trace)


def _rebuild(kind: type[DstError], cause: str, place: str, hint: str, trace: str) -> DstError:
    return kind(cause, place=place, hint=hint, trace=trace)


@contextmanager
def at(place: str) -> Iterator[None]:
    """Set the place of errors raised in this context that have none."""
    try:
        yield
    except DstError as error:
        error.place = error.place or place
        raise


class InputError(DstError):
    """The user's input cannot be used; raised before training starts, exit code 2."""

    exit_code = 2


class ModelError(InputError):
    """The model cannot be found, built, run or masked."""


class DataError(InputError):
    """The data cannot be loaded or do not fit the model."""


class OptionError(InputError):
    """An option is unknown or has an invalid value."""


class FolderError(InputError):
    """A run folder is missing, foreign, damaged or not writable."""


def attempt(make: Callable[[], T], hint: str) -> T | DstError:
    """Return the result, or its error: an unforeseen model must not lose a sweep of hours."""
    try:
        return make()
    except DstError as error:
        return error
    except Exception as error:
        return DstError(f"{type(error).__name__}: {error}", hint=hint)

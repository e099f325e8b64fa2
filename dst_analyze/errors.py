"""The errors a user is meant to read: cause, place, hint. Only the command line prints them and exits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class DstError(Exception):
    """Base of every error this package raises on purpose.

    ``cause`` is one sentence, ``place`` says where (a file and line, a layer, an option), ``hint`` what to do next,
    ``trace`` is the part of a traceback that lies in the user's own code.
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
        """Errors cross process borders: keyword arguments must survive pickling."""
        return _rebuild, (type(self), self.cause, self.place, self.hint, self.trace)


def _rebuild(kind: type[DstError], cause: str, place: str, hint: str, trace: str) -> DstError:
    return kind(cause, place=place, hint=hint, trace=trace)


@contextmanager
def at(place: str) -> Iterator[None]:
    """Errors that do not say where they happened, happened here."""
    try:
        yield
    except DstError as error:
        error.place = error.place or place
        raise


class InputError(DstError):
    """Something the user gave cannot be used: found before any training starts, exit code 2."""

    exit_code = 2


class ModelError(InputError):
    """The model could not be found, built, run or masked."""


class DataError(InputError):
    """The data could not be loaded or do not fit the model."""


class OptionError(InputError):
    """An option's value makes no sense."""


class FolderError(InputError):
    """A run folder is missing, foreign, damaged or not writable."""


def attempt(make: Callable[[], T], hint: str) -> T | DstError:
    """What is made, or the error: a sweep of hours is not to be lost to a model that nobody thought of here."""
    try:
        return make()
    except DstError as error:
        return error
    except Exception as error:
        return DstError(f"{type(error).__name__}: {error}", hint=hint)

"""Old names that work for one more release, with a warning that gives the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warn the caller's caller that a name was replaced."""
    text = f"{old} is now {new}; the next release removes the old name"
    warnings.warn(text, FutureWarning, stacklevel=stacklevel + 1)


def with_new_names(given: Mapping[str, Any], new_names: Mapping[str, str], *, stacklevel: int = 2) -> dict[str, Any]:
    """Return keyword arguments under their new names, with a warning for each old one.

    Raises:
        TypeError: An argument is given under both names.
    """
    found = dict(given)
    for old, new in new_names.items():
        if old in found:
            if new in found:
                raise TypeError(f"{old}= is the old name of {new}=: give {new}= only")
            warn_renamed(f"{old}=", f"{new}=", stacklevel=stacklevel + 1)
            found[new] = found.pop(old)
    return found


def renamed_arguments(**new_names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that also accepts keyword arguments under their old names: ``old="new"``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if new_names.keys().isdisjoint(kwargs):
                return function(*args, **kwargs)
            given: Any = with_new_names(kwargs, new_names, stacklevel=2)
            return function(*args, **given)

        return call

    return decorate

"""Extensions: other packages' entry points, which register layer types, rules and operations."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import metadata

from dst_analyze.model.user_errors import headline

GROUP = "dst_analyze.extensions"


@cache
def load_extensions() -> tuple[str, ...]:
    """Load all extensions, once in a process; warn of those that fail and return these warnings.

    An entry point names a module that registers when it is imported, or a function that registers when it is called.
    """
    failures = []
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        package = f" of {entry.dist.name}" if entry.dist else ""
        try:
            found = entry.load()
            if callable(found):
                found()
        except (Exception, SystemExit) as error:
            failures.append(f"the extension {entry.name!r}{package} is left out: {headline(error)}")
    for failure in failures:
        warnings.warn(failure, stacklevel=2)
    return tuple(failures)

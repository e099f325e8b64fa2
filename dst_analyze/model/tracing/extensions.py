"""What other installed packages bring: entry points that register layer types, channel rules and operations."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import metadata

from dst_analyze.model.user_errors import headline

GROUP = "dst_analyze.extensions"


@cache
def load_extensions() -> tuple[str, ...]:
    """Load them, once in a process; what one fails with is told, and the others go on.

    An entry point names a module, whose import registers what it brings, or a function that is called to do so.
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

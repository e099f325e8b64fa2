"""The command ``dst-analyze``, which is also ``python -m dst_analyze``."""

import os
import sys

from dst_analyze.cli import INTERRUPTED, main


def command() -> None:
    """Run, and end with the exit code; after Ctrl-C at once, as taking torch and Ray down in order takes seconds."""
    code = main()
    if code == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    command()

"""The command ``dst-analyze``, which is also ``python -m dst_analyze``."""

import gc
import os
import sys

from dst_analyze.cli.main import INTERRUPTED, main
from dst_analyze.sweep.engines.forkserver import WAITING_THREADS


def command() -> None:
    """Run the command line and exit; after Ctrl-C at once, as an orderly exit of torch and Ray is slow."""
    for name, value in WAITING_THREADS.items():
        os.environ.setdefault(name, value)
    code = main()
    if code == INTERRUPTED:
        os._exit(code)  # main has flushed what there was to say
    if "triton" not in sys.modules:  # it reports as leaked what is not collected
        gc.freeze()  # skip the garbage collection at exit, which takes a second
    sys.exit(code)


if __name__ == "__main__":
    command()

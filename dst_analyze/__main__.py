"""``python -m dst_analyze`` is the command ``dst-analyze``."""

import sys

from dst_analyze.cli import main

if __name__ == "__main__":
    sys.exit(main())

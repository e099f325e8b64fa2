"""Folders of this package, to separate its code from a user's."""

from pathlib import Path

PACKAGE = Path(__file__).parent
EXAMPLES = PACKAGE / "examples"
"""Bundled models, which count as user code."""

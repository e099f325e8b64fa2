"""Where this package lies on disk, for whoever tells its own code from a user's."""

from pathlib import Path

PACKAGE = Path(__file__).parent
EXAMPLES = PACKAGE / "examples"
"""Models as a user would write them: not the package's own code in this sense."""

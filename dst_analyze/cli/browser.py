"""Opening pages in a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click


def open_in_browser(page: Path) -> None:
    """Open a page in the browser that the variable BROWSER names, or in the system's default."""
    if not webbrowser.open(page.resolve().as_uri()):
        click.echo(f"no browser was found: open {page} yourself", err=True)

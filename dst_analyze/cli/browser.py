"""A page shown in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click


def open_in_browser(page: Path) -> None:
    """Show a page in the browser that BROWSER names, or the system's."""
    if not webbrowser.open(page.resolve().as_uri()):
        click.echo("no browser was found to open the report in", err=True)

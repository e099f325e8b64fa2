"""Asking before the code of a run folder is run that may be somebody else's."""

from __future__ import annotations

import sys

import click

from dst_analyze.cli.terminal import escape_control
from dst_analyze.errors import OptionError
from dst_analyze.run.record import SweepRecord


def ask_trust(record: SweepRecord, *, trust: bool) -> None:
    """Ask whether a run's model may be run, where that is not clear; an OptionError if not, or without a terminal."""
    from dst_analyze.sweep.planning.reload import why_untrusted

    why = "" if trust else why_untrusted(record)
    if not why:
        return
    asked = sys.stdin.isatty() and sys.stderr.isatty()
    if not (asked and click.confirm(f"{escape_control(why)}. Run it?", default=False, err=True)):
        raise OptionError(why, place=str(record.folder), hint="--trust runs it, if you know what it does")

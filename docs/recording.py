"""Record a run of the command as docs/terminal.svg, the picture in README.

    python docs/recording.py                       # runs it, about a minute on two free cores
    python docs/recording.py --text FILE           # from the kept output of a run

The command is really run, in an empty folder; what it prints on stdout is shown as it is.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMAND = "dst-analyze example:demo --alphas 1e-7,1e-6,1e-5 --steps 300"
PICTURE = Path(__file__).with_name("terminal.svg")
WIDTH = 96


def run() -> str:
    """Return what the command prints on stdout, with its colours."""
    words = shlex.split(COMMAND)[1:]
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(WIDTH)}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "dst_analyze", *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="kept output, in place of a run")
    arguments = parser.parse_args()
    printed = arguments.text.read_text() if arguments.text else run()
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")), "")
    for line in printed.strip("\n").splitlines():
        console.print(Text.from_ansi(line), soft_wrap=True)
    drawn = console.export_svg(title="dst-analyze", theme=MONOKAI, unique_id="terminal")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()

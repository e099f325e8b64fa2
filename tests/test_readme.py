"""The README tells the truth: its code runs, its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_model_file_is_analysed_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(next(block for block in BLOCKS if "build_model" in block))
    command = [sys.executable, "-m", "dst_analyze", "mymodel.py", "--alphas", "1e-4,1e-3,1e-2", "--steps", "6"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "conv" in done.stdout
    assert "head" in done.stdout
    (page,) = tmp_path.glob("reports/mymodel-*/report.html")
    assert str(page.name) in done.stdout
    again = [sys.executable, "-m", "dst_analyze", "report", str(page.parent)]
    assert subprocess.run(again, capture_output=True, timeout=120).returncode == 0


def test_the_notebook_lines_run() -> None:
    script = next(block for block in BLOCKS if "mask_model" in block)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "'1': " in done.stdout


def test_every_command_line_in_it_is_one_the_program_knows() -> None:
    lines = re.findall(r"dst-analyze ([a-z]+ )?[^`\n#]*?(--[a-z-]+)", README)
    for command, option in set(lines):
        assert option in helped(command.strip()), (command, option)


@cache
def helped(command: str) -> str:
    """What --help says of a command; a word that is none is a model, and the program's own help counts."""
    known = ["inspect", "report", "rank", "compare", "slim", "verify"]
    ask = [sys.executable, "-m", "dst_analyze", *([command] if command in known else []), "--help"]
    return subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout

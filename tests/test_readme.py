"""The README tells the truth: its code runs, its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dst_analyze.cli import commands
from dst_analyze.configfile import read_options

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
    helped = subprocess.run([sys.executable, "-m", "dst_analyze", "--help"], capture_output=True, text=True, timeout=60)
    for option in set(re.findall(r"dst-analyze [^`\n#]*?(--[a-z-]+)", README)):
        assert option in helped.stdout, option


def test_the_file_of_options_is_one_the_program_reads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "run.toml").write_text(block)
    read = read_options(tmp_path / "run.toml", commands.commands["analyze"])
    assert read == {"model": "mymodel.py", "alphas": "0.0001,0.001", "lr": 0.1, "schedule": "cosine"}

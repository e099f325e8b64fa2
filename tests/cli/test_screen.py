"""What somebody sees in the terminal: one screen at the end of a run, names that differ, Ctrl-C, warnings."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys

import pandas as pd
import pytest
from commands import run_here

import dst_analyze as dst
from dst_analyze.text import duration, minutes, plain_table, shorten_names

FILE = """
import logging, warnings
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_projection, self.feed_forward_expansion = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x):
        return x + self.feed_forward_expansion(self.attention_projection(x).relu()).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(12, 24), nn.Linear(24, 4)
        self.transformer_blocks = nn.Sequential(*[Block() for _ in range(12)])

    def forward(self, x):
        return self.leave(self.transformer_blocks(self.enter(x)))


def build_model():
    return Net()


def train_data():
    x = torch.randn(256, 12, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()


test_data = train_data


def loss(outputs, batch):
    warnings.warn("the guest is not happy")
    logging.getLogger("guest").warning("the guest logs it, too")
    return nn.functional.cross_entropy(outputs, batch[1])
"""
NAMES = [f"transformer.h.{n}.{part}" for n in range(12) for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc")]


@pytest.fixture(scope="module")
def screen(tmp_path_factory):
    """The folder of a run, and what a terminal of 80 columns shows of it."""
    folder = tmp_path_factory.mktemp("screen")
    (folder / "m.py").write_text(FILE)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dst_analyze", "m.py", "--alphas", "1e-6,1e-5", "--steps", "40", "--out", "run"]
    process = subprocess.Popen(
        [*command, "--jobs", "2"],
        cwd=folder,
        env={**os.environ, "COLUMNS": "80", "LINES": "24", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = process.communicate(timeout=300)
    os.close(theirs)
    assert process.returncode == 0, errors
    return folder, os.read(ours, 1 << 20).decode().replace("\r\n", "\n"), errors


def test_a_run_ends_in_one_screen(screen):
    _, shown, _ = screen
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    rows = [line[:12].strip() for line in lines if line[:12].strip()]
    assert rows[0] == "answer"
    assert rows[-2:] == ["report", "next"]
    assert {"how sure", "slim model"} <= set(rows)
    assert "weights that remain" not in shown


def test_warnings_of_guests_are_printed_once(screen):
    _, _, errors = screen
    workers = [line for line in errors.splitlines() if line.startswith(("UserWarning: the guest", "guest: the guest"))]
    assert sorted(line.partition(" (")[0] for line in workers) == [
        "UserWarning: the guest is not happy",
        "guest: the guest logs it, too",
    ]


@pytest.mark.filterwarnings("ignore:the guest is not happy")  # the model warns, and trains in this process
def test_tables_are_shown_on_request(screen, inline):
    folder, _, _ = screen
    done = run_here(folder, "m.py", "--alphas", "1e-6,1e-5", "--steps", "40", "--out", "run", "-v")
    assert done.returncode == 0, done.stderr
    assert "weights that remain, in %, at each alpha" in done.stdout
    assert "Verdict: " in done.stdout


@pytest.mark.parametrize("width", [9, 12, 14, 20, 80])
def test_no_two_names_look_the_same(width):
    shown = shorten_names(NAMES, width)
    assert len(set(shown)) == len(NAMES)
    assert all(name in short or "…" in short for name, short in zip(NAMES, shown, strict=True))
    assert all(short.endswith(name[-3:]) for name, short in zip(NAMES, shown, strict=True))


def test_a_ranking_of_such_layers_fits_80_columns():
    kept = [(name, alpha, 0.9 - 2e3 * alpha * at) for alpha in (8e-6, 1e-5) for at, name in enumerate(NAMES)]
    ratios = pd.DataFrame(kept, columns=["layer", "alpha", "remaining"]).assign(params=1234567)
    text = dst.rank_layers(ratios).text(80)
    assert all(len(line) <= 80 for line in text.splitlines())
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("transf")]
    assert len(set(rows)) == len(NAMES)
    assert plain_table(["a", "b"], [["x", "1"]], 80).splitlines()[-1] == "x  1"


def test_times_are_said_as_people_say_them():
    seconds = (99.6, 9.96, 110, 119 * 60, 3600 * 150)
    assert [duration(each) for each in seconds] == ["100 s", "10 s", "110 s", "119 min", "150 h"]
    assert [minutes(s) for s in (4, 80, 100, 5000, 9000)] == [
        "less than a minute", "about 1 min", "about 2 min", "about 83 min", "about 2.5 h",
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:the guest is not happy")  # the model warns, and trains in this process
def test_ctrl_c_says_what_was_kept_and_how_to_go_on(tmp_path, inline):
    slow = FILE.replace("    warnings.warn", "    import time; time.sleep(0.02)\n    warnings.warn")
    (tmp_path / "my net.py").write_text(slow)
    arguments = ["my net.py", "--alphas", "1e-6,1e-5", "--steps", "40", "--out", "run", "--jobs", "1", "--force"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dst_analyze", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("dense, seed 0"):
            break
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "1 of 3 trials are kept in run" in err
    command = re.search(r"^go on with: (.*)$", err, re.MULTILINE)
    assert command
    assert shlex.split(command[1]) == ["dst-analyze", *arguments[:-1], "--resume"]
    again = run_here(tmp_path, *shlex.split(command[1])[1:])
    assert again.returncode == 0, again.stderr
    assert "1 of them done already" in again.stderr

"""A model that kills, raises or waits where a test asks for it, and the command run on it in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from commands import run_here

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "PYTHONWARNINGS": "error"}
MODEL = """
import os, signal, time
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))

def train_data():
    x = torch.randn(256, 20, generator=torch.Generator().manual_seed(0))
    return x, x[:, :4].argmax(1)

test_data = train_data

def loss(outputs, batch):
    {inject}
    return nn.functional.cross_entropy(outputs, batch[1])
"""

# Kills the worker of one trial, or of a warm-up; of which one, the initial weights of its seed tell.
KILL = """import pathlib, traceback
inside = {call.name for call in traceback.extract_stack()}
if torch.initial_seed() == {seed} and outputs.requires_grad and '{inside}' in inside:
    tries = pathlib.Path('tries')
    tries.write_text(tries.read_text() + 'x' if tries.exists() else 'x')
    if len(tries.read_text()) <= {times}:
        os.kill(os.getpid(), signal.SIGKILL)"""
ARGS = ("--alphas", "1e-3,3e-3", "--seeds", "2", "--steps", "60", "--lr", "0.1")


def write(folder, inject="pass"):
    (folder / "m.py").write_text(MODEL.replace("{inject}", inject.replace("\n", "\n    ")))


def _hears_ctrl_c():
    """Tests that were started in the background of a shell ignore Ctrl-C, and so would all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(folder, *args, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "dst_analyze", "m.py", "--out", "run", "--json", *args],
        cwd=folder,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hears_ctrl_c,
        **options,
    )


def finish_apart(folder, *args):
    """Run to the end in a process of its own; the events."""
    process = start(folder, *args)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    return events_of(out)


def finish(folder, *args, code=0):
    """Run to the end from this process, with real workers; the events and what was said."""
    torch.manual_seed(0)  # some models below kill a process by its seed
    done = run_here(folder, "m.py", "--out", "run", "--json", *args)
    assert done.returncode == code, done.stderr
    return events_of(done.stdout), done.stderr


def events_of(out):
    return [json.loads(line) for line in out.splitlines()]


def members(group):
    """Processes of a group that live: zombies wait for somebody else."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(pgrp) == group and state != "Z":
                found.append(int(entry.name))
    return found


def gone(group, seconds):
    deadline = time.monotonic() + seconds
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not members(group)


def events_until(process, wanted):
    """Read events until one satisfies a condition."""
    for line in process.stdout:
        event = json.loads(line)
        if wanted(event):
            return event
    raise AssertionError(process.stderr.read())


def killing(inside, times, *, seed=1):
    """What kills a worker of a seed so many times while it is inside of a function."""
    return KILL.replace("{inside}", inside).replace("{times}", str(times)).replace("{seed}", str(seed))


def trials_of(files, seed):
    return {name: data for name, data in files.items() if f"seed={seed}/" in name}

"""What the whole default job costs: its time over that of one plain training, and over its own forecast.

    python benchmarks/job_cost.py [--nets mlp,lenet_5,vgg,resnet,vit] [--repeats 3] [--share 1] [--data digits]

Both are commands of their own, run in turn: a script with a plain PyTorch loop on all cores, of the 3,000 steps that
the dense reference is trained for in all (imports and reading the data among its time), and `dst-analyze NET --alphas
1e-7,1e-6,1e-5` with no other option but the data: planning, warm-up, reference, three trials, ranking, suggestion,
report. ``--share 0.2`` trains both for a fifth of the steps, where time is short: start and report then weigh five
times as much.

Shown are the seconds of both and their ratio, the median over repeats; the ratio of the seconds of CPU, which depends
less on what else the machine does; and the forecast of `--dry-run` over the time that the job took, by the clock
and, for what the job would take alone, by its seconds of CPU.

docs/experiments/cost.md has the table of 19 November 2026.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from dst_analyze.run.defaults import DEFAULT_STEPS

ROOT = Path(__file__).parents[1]
NETS = {
    "mlp": "experiments/nets.py:lenet_300_100",
    "lenet_5": "experiments/nets.py:lenet_5",
    "vgg": "experiments/nets.py:vgg",
    "resnet": "experiments/nets.py:small_resnet",
    "vit": "experiments/small_vit.py:vit",
    "demo": "example:demo",
}
ALPHAS = "1e-7,1e-6,1e-5"
BAR = 2.5
PLAIN_STEPS = 2 * DEFAULT_STEPS
"""What the reference and each trial is trained for in all: before masks, and with them."""
PLAIN = """
import sys
import torch
from dst_analyze.sweep.planning.plan import plan_task
spec, data, steps = sys.argv[1:]
task = plan_task(spec, data)
model = task.source.build()
print(task.recipe.describe(), torch.get_num_threads(), "threads")
if task.recipe.family == "sgd":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, int(steps) // 2, 0.1)
for _, (x, y) in zip(range(int(steps)), task.train_data.stream(0)):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
with torch.no_grad():
    model.eval()
    print(sum(int((model(x).argmax(1) == y).sum()) for x, y in task.test_data.once()))
"""


class Taken(NamedTuple):
    """The seconds of a command, by the clock and of CPU in all its processes."""

    wall: float
    cpu: float


def take(arguments: list[str]) -> Taken:
    """Return what a command takes, its worker processes among it, which outlive their parent for a moment."""
    before, started = _cpu(), time.perf_counter()
    subprocess.run(arguments, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    while psutil.Process().children():
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    return Taken(wall, _cpu() - before)


def _cpu() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def forecast(spec: str, data: str, length: list[str]) -> dict[str, float]:
    """Return what `--dry-run` expects."""
    command = [*job(spec, data, length), "--dry-run", "--json"]
    return json.loads(subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout)


def job(spec: str, data: str, length: list[str]) -> list[str]:
    return [sys.executable, "-m", "dst_analyze", spec, "--data", data, "--alphas", ALPHAS, *length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default="mlp,lenet_5,vgg,resnet,vit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=1, help="of the default length, of both")
    parser.add_argument("--data", default="digits")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # Linux: orphans become children of this process, which counts their time
    whole, trial = (max(1, round(options.share * steps)) for steps in (PLAIN_STEPS, DEFAULT_STEPS))
    length = [] if options.share == 1 else ["--steps", str(trial)]
    print(f"{'net':8} {'plain s':>8} {'job s':>7} {'ratio':>6} {'of CPU':>7} {'forecast':>8} / job   load", flush=True)
    for name in options.nets.split(","):
        spec, plains, jobs = NETS[name], list[Taken](), list[Taken]()
        expected = forecast(spec, options.data, length)
        for _ in range(options.repeats):
            plains.append(take([sys.executable, "-c", PLAIN, spec, options.data, str(whole)]))
            with tempfile.TemporaryDirectory() as folder:
                jobs.append(take([*job(spec, options.data, length), "--out", f"{folder}/run"]))
        ratio, cpu = (
            statistics.median(getattr(a, kind) / getattr(b, kind) for a, b in zip(jobs, plains, strict=True))
            for kind in ("wall", "cpu")
        )
        plain, taken = (statistics.median(each.wall for each in found) for found in (plains, jobs))
        spent = [statistics.median(each.cpu for each in found) for found in (plains, jobs)]
        print(
            f"{name:8} {plain:8.1f} {taken:7.1f} {ratio:6.2f} {cpu:7.2f} {expected.get('time', 0):8.1f} "
            f"/ {taken:.1f}   {os.getloadavg()[0]:.1f}   CPU {spent[0]:.1f} and {spent[1]:.1f} s   (bar {BAR})",
            flush=True,
        )


if __name__ == "__main__":
    main()

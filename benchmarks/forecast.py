"""Whether the line before a sweep is right: its forecast beside what the job then takes.

    python benchmarks/forecast.py [--nets mlp,lenet_5,vgg,resnet,vit] [--steps 150] [--repeats 1] [--jobs 1]

For each net, `dst-analyze NET --data digits --alphas 1e-7,1e-6,1e-5 --steps 150 --json` is run, and its event
`time_foreseen` compared with what follows until the command ends: warm-up, trials, ranking, suggestion and report.

Shown are seconds by the clock beside the forecast for this machine as it is, and seconds of CPU of all processes beside
the forecast for a machine with nothing else to do, which for trainings on one thread, one after the other, is the same.
The bar is 25 %. On a busy machine only the second ratio says much.
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

import psutil
from job_cost import ALPHAS, NETS, ROOT

BAR = 0.25


def run(spec: str, steps: int, jobs: int) -> tuple[float, float, float, float]:
    """Return the forecast for now and for a machine with nothing else to do, and the seconds by clock and of CPU."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "dst_analyze", spec, "--data", "digits", "--alphas", ALPHAS, "--steps", str(steps),
            "--jobs", str(jobs), "--json", "--out", f"{folder}/run",
        ]  # fmt: skip
        quiet = subprocess.DEVNULL
        before, started = _ended(), None
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=quiet, text=True) as job:
            assert job.stdout is not None
            for line in job.stdout:
                event = json.loads(line)
                if event["event"] == "time_foreseen":
                    seconds, busy = event["seconds"], event.get("busy", 1.0)
                    started, spent = time.perf_counter(), _running(job.pid)
            code = job.wait()
        if code or started is None:
            raise SystemExit(f"{spec} ended with {code}")
        clock = time.perf_counter() - started
        while psutil.Process().children():
            os.waitpid(-1, 0)  # the fork server, which outlives the command for a moment
        return seconds, seconds / busy, clock, _ended() - before - spent


def _running(pid: int) -> float:
    """Return the seconds of CPU of a process and its children so far, those of the fork server among them."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    times = [each.cpu_times() for each in family]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def _ended() -> float:
    """Return the seconds of CPU of all processes that this one has waited for, and of theirs."""
    spent = os.times()
    return spent.children_user + spent.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default="mlp,lenet_5,vgg,resnet,vit")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="trials at once; seconds of CPU compare best for 1")
    given = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # Linux: orphans become children of this process, which counts their time
    print(f"{'net':8} {'forecast now':>12} {'clock':>7} {'ratio':>6}   {'alone':>7} {'CPU':>7} {'ratio':>6}   load")
    for net in given.nets.split(","):
        found = [run(NETS[net], given.steps, given.jobs) for _ in range(given.repeats)]
        now, alone, clock, cpu = (statistics.median(values) for values in zip(*found, strict=True))
        flag = "" if abs(alone / cpu - 1) <= BAR else f"   off by more than {BAR:.0%}"
        ratios = f"{now:12.1f} {clock:7.1f} {now / clock:6.2f}   {alone:7.1f} {cpu:7.1f} {alone / cpu:6.2f}"
        print(f"{net:8} {ratios}   {os.getloadavg()[0]:.1f}{flag}", flush=True)


if __name__ == "__main__":
    main()

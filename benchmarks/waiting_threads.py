"""What it costs that threads which wait for each other soon sleep, and what it saves on a busy machine.

    python benchmarks/waiting_threads.py [--net small_resnet ...] [--rounds 5] [--steps 20] [--busy 0 2]

Training steps with two threads, in processes of their own that take turns: threads that wait spin as long as libgomp's
default, as briefly as workers' do (`WAITING_THREADS`), or sleep at once (``OMP_WAIT_POLICY=PASSIVE``); beside them run
as many busy loops as asked for. Printed are medians of ratios to the default in the same round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from image_layout import NETS

from dst_analyze.sweep.engines.forkserver import WAITING_THREADS

WAYS: dict[str, dict[str, str]] = {"default": {}, "briefly": WAITING_THREADS, "asleep": {"OMP_WAIT_POLICY": "PASSIVE"}}
NAMES = ("OMP_NUM_THREADS", *(name for settings in WAYS.values() for name in settings))
BUSY_LOOP = "while True: pass"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def seconds(net: str, steps: int, settings: dict[str, str]) -> float:
    """Return the seconds of some steps, measured in a process of its own."""
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    command = [sys.executable, __file__, "--measure", net, "--steps", str(steps)]
    done = subprocess.run(command, env=kept | settings, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure(net: str, steps: int) -> float:
    import torch
    from masked_step import stepper

    torch.set_num_threads(2)
    torch.manual_seed(0)
    build, shape = NETS[net]
    step = stepper(build(), torch.randn(shape))
    for _ in range(2):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 2], help="busy loops beside the steps")
    parser.add_argument("--measure", choices=NETS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(measure(options.measure, options.steps))
        return
    for busy in options.busy:
        with busy_loops(busy):
            for net in options.net or NETS:
                rounds = [
                    {way: seconds(net, options.steps, settings) for way, settings in WAYS.items()}
                    for _ in range(options.rounds)
                ]
                ratios = {
                    way: statistics.median(each[way] / each["default"] for each in rounds)
                    for way in ("briefly", "asleep")
                }
                said = "  ".join(f"{way} {ratio:.2f}" for way, ratio in ratios.items())
                default = statistics.median(each["default"] for each in rounds)
                print(f"{busy} busy  {net:14} default {default:6.2f} s   {said}", flush=True)


if __name__ == "__main__":
    main()

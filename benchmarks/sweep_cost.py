"""Cost of a sweep beside its training: `--jobs 2` over `--jobs 1`, and the share of time outside training steps.

    python benchmarks/sweep_cost.py [--steps 600] [--repeats 3]

Three alphas and the dense trial of the demo. Both numbers are ratios of things interleaved in one run, the median of
them is printed, so that a slow moment of a shared machine hits both sides. ``outside`` is all of a trial but its
training steps: building and masking the model, reading masks, writing and checking artefacts; scoring the test data is
work the user asked for and is shown apart. On 2 cores with 4 trials of 600 steps, two jobs took 0.55 of the time of
one on a quiet machine, and 95 s to 94 s on one kept busy by others (load 7).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dst_analyze.sweep.engines.engine import Engine, InProcessEngine
from dst_analyze.sweep.engines.process_engine import ProcessEngine
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_plan
from dst_analyze.sweep.training import trial

DEMO = Path(__file__).parents[1] / "dst_analyze" / "examples" / "demo.py"
ALPHAS = (3e-4, 1e-3, 2e-3)
JOBS_BAR, OUTSIDE_BAR = 0.6, 0.03


def sweep_seconds(engine: Engine, steps: int) -> float:
    """Wall time of the trials, from the first to the last file; planning is the same for all."""
    folder = tempfile.mkdtemp()
    try:
        plan = plan_sweep(str(DEMO), alphas=ALPHAS, steps=steps, out=Path(folder) / "run")
        started = time.perf_counter()
        run_plan(plan, engine=engine)
        return time.perf_counter() - started
    finally:
        shutil.rmtree(folder)


@contextmanager
def timed() -> Iterator[dict[str, float]]:
    """Seconds spent in training steps and in scoring, by wrapping the two functions a trial calls for them."""
    spent = {"train": 0.0, "read": 0.0, "score": 0.0}

    def measured(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if "on_step" in options:
                options["on_step"] = measured("read", options["on_step"])
            started = time.perf_counter()
            try:
                return function(*args, **options)
            finally:
                spent[name] += time.perf_counter() - started

        return call

    train, evaluate = trial.train, trial.evaluate
    trial.train, trial.evaluate = measured("train", train), measured("score", evaluate)
    try:
        yield spent
    finally:
        trial.train, trial.evaluate = train, evaluate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    sweep_seconds(ProcessEngine(2), 2)  # workers' imports are paid once per command, not per sweep
    sweep_seconds(InProcessEngine(), 2)
    jobs, outside, processes = [], [], []
    for _ in range(options.repeats):
        one = sweep_seconds(ProcessEngine(1), options.steps)
        two = sweep_seconds(ProcessEngine(2), options.steps)
        with timed() as spent:
            inline = sweep_seconds(InProcessEngine(), options.steps)
        jobs.append(two / one)
        outside.append((inline - spent["score"] - (spent["train"] - spent["read"])) / inline)
        processes.append(one / inline)
        print(f"seconds: one job {one:.1f}, two jobs {two:.1f}, this process {inline:.1f}", flush=True)
    print(f"--jobs 2 over --jobs 1      {statistics.median(jobs):.3f}  (bar {JOBS_BAR})  {rounded(jobs)}")
    print(f"outside training steps      {statistics.median(outside):.3f}  (bar {OUTSIDE_BAR})  {rounded(outside)}")
    print(f"one worker over this process {statistics.median(processes):.3f}  {rounded(processes)}")


def rounded(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]


if __name__ == "__main__":
    main()

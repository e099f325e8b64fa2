"""Estimate the time and memory of a sweep from a few timed training steps on the real data."""

from __future__ import annotations

import heapq
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import psutil
import torch

from dst_analyze.model.isolation import deep_copy
from dst_analyze.run.alpha_search import schedule_of, search_of
from dst_analyze.sweep.data.batches import SCORED_AT_MOST, first_batch
from dst_analyze.sweep.engines.gpus import free_gpu_memory
from dst_analyze.sweep.engines.resources import free_memory, torch_threads
from dst_analyze.sweep.planning.estimates.initial_alphas import HALVING
from dst_analyze.sweep.planning.plan import Plan
from dst_analyze.sweep.training.measurements import SCORES
from dst_analyze.sweep.training.train import DivergedError, evaluate, train
from dst_analyze.sweep.training.trial import SCORED_BATCHES, Task, seeded

TIMED, UNTIMED = 6, 2
"""The least timed steps of each kind, and untimed ones before them, as the first steps are slower."""
LONG_ENOUGH = 0.4
"""Seconds of timed steps after which these are enough; the short steps of small models vary."""
STARTING, ENDING = 0.4, 1.5
"""Seconds in which a worker process starts, and in which ranking, suggestion and report are made, with imports."""
TOGETHER = 1.15
"""How many times longer trials take beside each other on one CPU, whose caches and memory they share."""
NOTICED = 0.2
"""Cores that other programs use at least where the machine counts as busy."""
_MOST_TIMED = 200
PATIENCE = 20.0
"""Seconds after which timing stops, even if fewer steps were timed."""


@dataclass(frozen=True)
class Estimate:
    """The measured times of a plan, as they would be alone on the machine, and its totals."""

    trials: int
    most_trials: int  # if the search for alphas uses all its rounds
    steps: int
    warm_ups: int  # warm-up trainings, which all trials wait for
    warm_up_steps: int  # of each
    jobs: int
    threads: int
    dense_step: float  # seconds
    masked_step: float
    timed: int
    scoring: float  # seconds per trial
    memory: int  # bytes of one trial's process
    free: int
    warm_up_step: float = 0.0  # seconds, with the threads of a warm-up
    starting: float = 0.0  # seconds in which a worker starts
    ending: float = 0.0  # seconds from the last trial to the report
    busy: float = 1.0  # how many times longer all of this takes beside what other programs do now
    others: float = 0.0  # cores that these use
    loading: float = 0.0  # share of a dense step in which it waits for its batch
    together: float = 1.0  # how many times longer trials take beside each other
    trained: bool = True  # trials are; those of a quick run are only scored

    def seconds(self, trials: int) -> float:
        """Return the time of the warm-ups, the dense trial, the masked ones and the report, alone on the machine."""
        warm_up = self.warm_up_steps * (self.warm_up_step or self.dense_step) + self.starting
        steps = self.steps if self.trained else 0
        dense = steps * self.dense_step + self.scoring + self.starting
        masked = steps * self.masked_step + self.scoring + self.starting
        trained = _makespan([dense, *[masked] * (trials - 1)], self.jobs) * self.together
        return _makespan([warm_up] * self.warm_ups, self.jobs) + trained + self.ending

    def as_json(self) -> dict[str, Any]:
        """Return all fields, and the time of the whole job: alone on the machine, and beside what it does now."""
        alone = self.seconds(self.trials)
        return {**asdict(self), "time": round(alone, 3), "time_now": round(alone * self.busy, 3)}

    def proof_seconds(self, trainings: int) -> float:
        """Return an upper bound of a proof's time: each of its models is at most as large as the dense one."""
        return trainings * (self.steps * self.dense_step + self.scoring) / min(self.jobs, trainings)

    @property
    def searches(self) -> bool:
        """True if the search for alphas may add trials."""
        return self.most_trials > self.trials


def _makespan(seconds: list[float], jobs: int) -> float:
    """Return when the last of some jobs ends, each started in turn as soon as one of the workers is free."""
    ends = [0.0] * max(1, jobs)
    for taken in seconds:
        heapq.heapreplace(ends, ends[0] + taken)
    return max(ends)


@dataclass(frozen=True)
class _Timed:
    """The seconds of something done a few times, by the clock and of CPU."""

    wall: list[float]
    cpu: list[float]
    waited: float = 0.0  # share of the time in which it waited for data

    def alone(self, threads: int, *, crowded: bool) -> float:
        """Return the seconds of one, alone on the machine: of CPU where other programs hold up the clock."""
        return min(median(self.wall), median(self.cpu) / threads) if crowded else median(self.wall)


@dataclass
class _Machine:
    """What other programs do while steps are timed."""

    others: float = 0.0  # cores
    crowded: bool = False
    share: float = 1.0  # of its time that a thread of this process gets, as far as it does not wait for data


@contextmanager
def _watched(task: Task) -> Iterator[_Machine]:
    """Watch the machine in a block that is busy with training steps, on this task's number of threads."""
    found, own, everything, started = _Machine(), time.process_time(), _all_cpu(), time.perf_counter()
    yield found
    seconds = max(time.perf_counter() - started, 1e-9)
    used = time.process_time() - own
    found.others = max(0.0, (_all_cpu() - everything - used) / seconds)
    found.crowded = task.device.name == "cpu" and found.others > NOTICED
    if found.crowded:
        found.share = min(1.0, used / seconds / task.threads)


def _all_cpu() -> float:
    """Return the seconds that all cores have been busy with all programs."""
    spent = psutil.cpu_times()
    return float(spent.user + spent.system + getattr(spent, "nice", 0.0))


def estimate_of(plan: Plan, jobs: int, *, in_workers: bool = True) -> Estimate:
    """Return the estimate of a plan, from a few training steps of a dense and a masked copy."""
    task, config = plan.task, plan.task.config
    trials, search = schedule_of(config, plan.manifest.first_alphas, {}).keys, search_of(config)
    count = len(trials)
    kinds, seeds = 2 if config.control else 1, len(config.seeds)
    most = count
    if search is not None:  # the first seed searches; the other seeds and the controls repeat the alphas it found
        found = len(search.targets)
        count += found * (kinds * seeds - 1)
        most = count + found * search.rounds
    wide = task.recipe.warm_up > 0 and task.warm_up_threads > task.threads
    with torch_threads(task.threads), seeded(config.seeds[0]), _watched(task) as machine:
        dense, masked = _step_seconds(task, masked=False), _step_seconds(task, masked=True)
        scoring = _scoring_seconds(task)
    with torch_threads(task.warm_up_threads), seeded(config.seeds[0]):
        warming = _step_seconds(task, masked=False) if wide else dense
    crowded, needed = machine.crowded, machine.others + min(jobs, count) * task.threads
    busy = max(1.0, 1 / max(machine.share, 0.01), needed / (psutil.cpu_count() or 1)) if crowded else 1.0
    return Estimate(
        trials=count,
        most_trials=most,
        steps=task.steps,
        warm_ups=config.warm_ups if task.recipe.warm_up else 0,
        warm_up_steps=task.recipe.warm_up,
        jobs=min(jobs, count),
        threads=task.threads,
        dense_step=dense.alone(task.threads, crowded=crowded),
        masked_step=masked.alone(task.threads, crowded=crowded),
        timed=min(len(dense.wall), len(masked.wall)),
        scoring=scoring.alone(task.threads, crowded=crowded),
        memory=_peak_memory(task),
        free=free_gpu_memory() if task.device.name == "cuda" else free_memory(),
        warm_up_step=warming.alone(task.warm_up_threads if wide else task.threads, crowded=crowded),
        starting=STARTING if in_workers else 0.0,
        ending=ENDING,
        busy=round(busy, 2),
        others=round(machine.others, 2),
        loading=round(dense.waited, 3),
        together=TOGETHER if in_workers and min(jobs, count) > 1 and task.device.name == "cpu" else 1.0,
        trained=not config.quick,
    )


def _step_seconds(task: Task, *, masked: bool) -> _Timed:
    built = task.source.build()
    model = (task.mask(built) if masked else deep_copy(built)).to(task.device.name)
    first = task.config.given_alphas[0] if task.config.given_alphas else HALVING
    optimizer, schedule = task.recipe.start(model, alpha=task.config.factor * first)
    times, spent, waits = [begun := time.perf_counter()], [time.process_time()], list[float]()

    def on_step(step: int, loss: float) -> bool:
        task.device.wait()
        times.append(time.perf_counter())
        spent.append(time.process_time())
        if step == UNTIMED:
            times[:], spent[:] = times[-1:], spent[-1:]
        timed, seconds = len(times) - 1, times[-1] - begun
        return step > UNTIMED and (seconds > PATIENCE or (timed >= TIMED and times[-1] - times[0] > LONG_ENOUGH))

    try:
        train(
            model, _clocked(task.train_data.stream(task.config.seeds[0]), waits), task.objective(built), optimizer,
            schedule, task.device, steps=max(UNTIMED + 1, min(task.steps, _MOST_TIMED)), on_step=on_step,
        )  # fmt: skip
    except DivergedError:  # the trial will report it; the time is valid
        times.append(time.perf_counter())
        spent.append(time.process_time())
    wall, cpu = ([after - before for before, after in pairwise(clock)] for clock in (times, spent))
    return _Timed(wall, cpu, median(waits[-len(wall) :]) / max(median(wall), 1e-9))


def _clocked(batches: Iterator[Any], waits: list[float]) -> Iterator[Any]:
    """Yield batches, and note how long each was waited for."""
    while True:
        started = time.perf_counter()
        try:
            batch = next(batches)
        except StopIteration:
            return
        waits.append(time.perf_counter() - started)
        yield batch


def _scoring_seconds(task: Task) -> _Timed:
    """Return the scoring time of a trial: all test batches at the end, a few of them during training."""
    built = task.source.build()
    model = task.mask(built).to(task.device.name)
    batch = first_batch(task.test_data, place="test_data()")
    started, spent = time.perf_counter(), time.process_time()
    evaluate(model, [batch], task.objective(built), task.device)
    each, cpu = time.perf_counter() - started, time.process_time() - spent
    count = (task.test_data.per_epoch or SCORED_AT_MOST) + SCORES * SCORED_BATCHES
    return _Timed([each * count], [cpu * count])


def _peak_memory(task: Task) -> int:
    """Return the peak memory of this process, which has done what a worker does with the same data."""
    if task.device.name == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

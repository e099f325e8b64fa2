"""Estimate the time and memory of a sweep from a few timed training steps on the real data."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

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
"""Timed steps of each kind, and untimed ones before them, as the first steps are slower."""
PATIENCE = 20.0
"""Seconds after which timing stops, even if fewer steps were timed."""


@dataclass(frozen=True)
class Estimate:
    """The measured times of a plan, and its totals."""

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

    def seconds(self, trials: int) -> float:
        """Return the time of the warm-ups, one dense trial and the masked ones, with all jobs busy."""
        warm_up = self.warm_ups * self.warm_up_steps * self.dense_step
        dense = self.steps * self.dense_step + self.scoring
        masked = (trials - 1) * (self.steps * self.masked_step + self.scoring)
        return warm_up / min(self.jobs, max(self.warm_ups, 1)) + (dense + masked) / min(self.jobs, trials)

    def proof_seconds(self, trainings: int) -> float:
        """Return an upper bound of a proof's time: each of its models is at most as large as the dense one."""
        return trainings * (self.steps * self.dense_step + self.scoring) / min(self.jobs, trainings)

    @property
    def searches(self) -> bool:
        """True if the search for alphas may add trials."""
        return self.most_trials > self.trials


def estimate_of(plan: Plan, jobs: int) -> Estimate:
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
    with torch_threads(task.threads), seeded(config.seeds[0]):
        dense, masked = _step_seconds(task, masked=False), _step_seconds(task, masked=True)
        scoring = _scoring_seconds(task)
    return Estimate(
        trials=count,
        most_trials=most,
        steps=task.steps,
        warm_ups=kinds * seeds if task.recipe.warm_up else 0,
        warm_up_steps=task.recipe.warm_up,
        jobs=min(jobs, count),
        threads=task.threads,
        dense_step=median(dense),
        masked_step=median(masked),
        timed=min(len(dense), len(masked)),
        scoring=scoring,
        memory=_peak_memory(task),
        free=free_gpu_memory() if task.device.name == "cuda" else free_memory(),
    )


def _step_seconds(task: Task, *, masked: bool) -> list[float]:
    built = task.source.build()
    model = (task.mask(built) if masked else deep_copy(built)).to(task.device.name)
    first = task.config.given_alphas[0] if task.config.given_alphas else HALVING
    optimizer, schedule = task.recipe.start(model, alpha=task.config.factor * first)
    times = [time.perf_counter()]

    def on_step(step: int, loss: float) -> bool:
        task.device.wait()
        times.append(time.perf_counter())
        return times[-1] - times[0] > PATIENCE and step > UNTIMED

    try:
        train(
            model, task.train_data.stream(task.config.seeds[0]), task.objective(built), optimizer, schedule,
            task.device, steps=min(task.steps, UNTIMED + TIMED), on_step=on_step,
        )  # fmt: skip
    except DivergedError:  # the trial will report it; the time is valid
        times.append(time.perf_counter())
    taken = [after - before for before, after in pairwise(times)]
    return taken[UNTIMED:] or taken[-1:]


def _scoring_seconds(task: Task) -> float:
    """Return the scoring time of a trial: all test batches at the end, a few of them during training."""
    built = task.source.build()
    model = task.mask(built).to(task.device.name)
    batch = first_batch(task.test_data, place="test_data()")
    started = time.perf_counter()
    evaluate(model, [batch], task.objective(built), task.device)
    each = time.perf_counter() - started
    return each * ((task.test_data.per_epoch or SCORED_AT_MOST) + SCORES * SCORED_BATCHES)


def _peak_memory(task: Task) -> int:
    """Return the peak memory of this process, which has done what a worker does with the same data."""
    if task.device.name == "cuda":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

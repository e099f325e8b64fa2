"""The output of ``--dry-run``: what a sweep would train, for how long and in how much memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dst_analyze.run.alpha_search import schedule_of
from dst_analyze.run.record import TrialKey
from dst_analyze.sweep.data.batches import TensorBatches
from dst_analyze.sweep.engines.resources import gigabytes
from dst_analyze.sweep.planning.estimates.cost import UNTIMED, Estimate
from dst_analyze.sweep.planning.plan import Plan
from dst_analyze.text import duration, short

SLOW_LOADING = 0.25
"""Share of a step from which waiting for data is worth a word."""
NOTICEABLE = 1.15
"""How many times longer a sweep has to take beside other programs for that to be said."""


def words(plan: Plan, cost: Estimate, trainings: Sequence[int] = ()) -> Iterator[tuple[str, str]]:
    """Yield the estimate as rows of label and text; ``trainings`` are those of a proof, the fewest first."""
    traced, manifest = plan.task.traced, plan.manifest
    more = f", up to {cost.most_trials} if the search for alphas takes all its tries" if cost.searches else ""
    before = f", each from weights trained for {manifest.warm_up:,} before" if manifest.warm_up else ""
    plan_of = f"{cost.trials} trials of {cost.steps:,} steps{before}{more}"
    if not cost.trained:
        once = "one training" if cost.warm_ups == 1 else f"{cost.warm_ups} trainings"
        plan_of = f"{once} of {manifest.warm_up:,} steps without masks, then pruned by magnitude; no sweep"
    yield "plan", plan_of
    keys = schedule_of(plan.task.config, manifest.first_alphas, {}).keys
    yield "trials", _listed(keys)
    yield "model", f"{len(traced.layers)} layers, {traced.params:,} parameters, {short(traced.macs)} MACs per sample"
    yield "data", f"{'STAND-IN: ' if manifest.data.stand_in else ''}{manifest.data.description}"
    yield (
        "a step",
        f"dense {duration(cost.dense_step)}, masked {duration(cost.masked_step)}: medians of {cost.timed} on the real "
        f"data, after {UNTIMED} untimed ones, {cost.threads} {'thread' if cost.threads == 1 else 'threads'}",
    )
    if cost.loading > SLOW_LOADING and not isinstance(plan.task.train_data, TensorBatches):
        more = "workers of a DataLoader (num_workers) load ahead where cores are idle, tensors are loaded once"
        yield "", f"! {cost.loading:.0%} of a step is waiting for data: {more}"
    longest = f", {duration(cost.seconds(cost.most_trials))} at most" if cost.searches else ""
    at_once = f"with {cost.jobs} at once, if they do not slow each other down" if cost.jobs > 1 else "one by one"
    yield "time", f"about {duration(cost.seconds(cost.trials))}{longest}, alone on the machine, {at_once}"
    if cost.busy > NOTICEABLE:
        now = duration(cost.seconds(cost.trials) * cost.busy)
        yield "", f"! other programs use {cost.others:.1f} cores: at the moment it would take about {now}"
    if trainings:
        few, many = (duration(cost.proof_seconds(count)) for count in (trainings[0], trainings[-1]))
        counts, times = str(trainings[0]), few
        if trainings[-1] > trainings[0]:
            counts, times = f"{trainings[0]} to {trainings[-1]}", f"{few} to {many}"
        yield "proof", f"{counts} more trainings of {cost.steps:,} steps, {times} at most"
    whole = cost.memory * cost.jobs
    yield (
        "memory",
        f"about {gigabytes(cost.memory)} a trial, {gigabytes(whole)} in all; {gigabytes(cost.free)} are free",
    )
    if whole > cost.free:
        yield "", f"! too much memory: give --jobs {max(1, cost.free // cost.memory)} or a smaller --batch-size"
    if manifest.warning:
        yield "", f"! {manifest.warning}"
    yield "run folder", f"{plan.out} (nothing was trained or written)"


def _listed(keys: tuple[TrialKey, ...]) -> str:
    shown = "; ".join(key.label for key in keys[:6])
    return f"{shown} and {len(keys) - 6} more" if len(keys) > 6 else shown

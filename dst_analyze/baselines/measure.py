"""Measure the baselines: train the dense model once per seed, then prune it by magnitude, globally and per layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dst_analyze.baselines.values import SETTINGS, Baselines, Measurement, Method
from dst_analyze.errors import DstError
from dst_analyze.model.isolation import deep_copy
from dst_analyze.run.derived import is_whole
from dst_analyze.run.files.atomic_io import replace_files
from dst_analyze.run.files.paths import BASELINES
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord
from dst_analyze.run.writer import editing
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.own_loop.fit_function import train_plain
from dst_analyze.sweep.training.train import DivergedError, evaluate
from dst_analyze.sweep.training.trial import Task, seeded

_SCORED = 1024  # test samples, as the loss is computed once per layer and setting

Notify = Callable[[str], None]


def baselines_of(
    task: Task, record: SweepRecord, methods: Sequence[Method], notify: Notify = lambda text: None
) -> Baselines:
    """Return a run's baselines, measured with its seeds; read from its folder if it holds them all.

    If a method is missing, the methods in the folder are measured again with it, so that the new file has them all.
    """
    seeds = record.config.seeds
    with editing(record.folder):
        if is_whole(record, BASELINES):
            kept = read_json(record.folder / BASELINES, Baselines)
            if kept.covers(methods, seeds, task.steps):
                return kept
            methods = [*kept.methods, *methods]
        found = measure(task, methods, seeds, notify)
        replace_files(record.folder, {BASELINES: f"{found.model_dump_json(indent=1)}\n".encode()})
    return found


def add_baselines(task: Task, record: SweepRecord, methods: Sequence[Method], notify: Notify, failed: Notify) -> None:
    """Measure baselines at the end of a sweep; an error is passed to ``failed``, so that the sweep is not lost."""
    try:
        baselines_of(task, record, methods, notify)
    except DstError as error:
        failed(f"no baselines: {error.cause}")


def measure(
    task: Task, methods: Sequence[Method], seeds: Sequence[int], notify: Notify = lambda text: None
) -> Baselines:
    """Train the dense model with every seed and measure its layers by each method; diverged seeds are left out."""
    if task.own_loop and "sensitivity" in methods:
        raise DstError(
            "sensitivity reads the loss on test data, and those of evaluate(model) are not known here",
            place="--baselines",
            hint="--baselines magnitude works with a fit(model)",
        )
    batches, samples = _scored_batches(task) if "sensitivity" in methods else ([], 0)
    measured: list[Measurement] = []
    with torch_threads(task.threads):
        for seed in seeds:
            notify(f"baselines: the dense model, seed {seed}")
            try:
                model = train_plain(task, lambda: deep_copy(task.source.build()), seed)
            except DivergedError:
                continue
            weights = {layer.name: model.get_parameter(layer.parameter) for layer in task.traced.layers}
            if "magnitude" in methods:
                measured += _by_magnitude(weights, seed)
            if "sensitivity" in methods:
                notify(f"baselines: its {len(weights)} layers, one at a time")
                measured += _by_sensitivity(task, model, weights, batches, seed)
    if not measured:
        raise DstError(
            "the dense model diverged with every seed, so there are no trained weights to rank layers by",
            place="--baselines",
            hint="give a lower --lr",
        )
    return Baselines(steps=task.steps, samples=samples, measured=tuple(measured))


def _scored_batches(task: Task) -> tuple[list[Any], int]:
    """Return the first test batches, on the task's device, and their number of samples."""
    batches, samples, objective = [], 0, task.objective(task.traced.model)
    for batch in task.test_data.once():
        batches.append(task.device.moved(batch))
        samples += objective.inputs(batch).batch_size
        if samples >= _SCORED:
            break
    return batches, samples


def _by_magnitude(weights: dict[str, nn.Parameter], seed: int) -> Iterator[Measurement]:
    magnitudes = Magnitudes(weights)
    for share in SETTINGS["magnitude"]:
        left = {name: float(kept) for name, kept in magnitudes.null(share).items()}
        yield Measurement(method="magnitude", setting=share, seed=seed, values=left)


def _by_sensitivity(
    task: Task, model: nn.Module, weights: dict[str, nn.Parameter], batches: Sequence[Any], seed: int
) -> Iterator[Measurement]:
    objective = task.objective(task.traced.model)

    def loss() -> float:
        with seeded(seed):
            return evaluate(model, batches, objective, task.device)[0]

    unpruned = loss()
    for share in SETTINGS["sensitivity"]:
        risen = {}
        for name, weight in weights.items():
            with largest_kept(weight, share):
                risen[name] = loss() - unpruned
        yield Measurement(method="sensitivity", setting=share, seed=seed, values=risen)


@contextmanager
def largest_kept(weight: nn.Parameter, share: float) -> Iterator[None]:
    """Temporarily set all but the largest share of a weight's values to zero."""
    before = weight.detach().clone()
    sizes = before.abs().flatten()
    kept = torch.zeros_like(sizes, dtype=torch.bool)
    kept[sizes.argsort(descending=True)[: max(1, round(share * len(sizes)))]] = True
    with torch.no_grad():
        weight.mul_(kept.view(before.shape))
    try:
        yield
    finally:
        with torch.no_grad():
            weight.copy_(before)

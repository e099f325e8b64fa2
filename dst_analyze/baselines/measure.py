"""Measuring: the dense model is trained once per seed, then pruned by magnitude, as a whole and layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dst_analyze.baselines.values import SETTINGS, Baselines, Measurement, Method
from dst_analyze.errors import DstError
from dst_analyze.model.isolation import deep_copy
from dst_analyze.run.atomic_io import replace_files
from dst_analyze.run.derived import is_whole
from dst_analyze.run.paths import BASELINES
from dst_analyze.run.reader import read_json
from dst_analyze.run.record import SweepRecord
from dst_analyze.run.writer import editing
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.train import DivergedError, evaluate
from dst_analyze.sweep.training.trial import Task, seeded, trained_model

_SCORED = 1024  # samples of the test data: every layer is pruned at every setting, and the loss read each time

Said = Callable[[str], None]


def baselines_of(
    task: Task, record: SweepRecord, methods: Sequence[Method], said: Said = lambda text: None
) -> Baselines:
    """Other ways to rank the layers of a run, measured with its seeds and kept in its folder; not twice the same.

    Where one is missing, those that are there are measured with it again: none of them is lost.
    """
    seeds = record.config.seeds
    with editing(record.folder):
        if is_whole(record, BASELINES):
            kept = read_json(record.folder / BASELINES, Baselines)
            if kept.covers(methods, seeds, task.steps):
                return kept
            methods = [*kept.methods, *methods]
        found = measure(task, methods, seeds, said)
        replace_files(record.folder, {BASELINES: f"{found.model_dump_json(indent=1)}\n".encode()})
    return found


def add_baselines(task: Task, record: SweepRecord, methods: Sequence[Method], said: Said, failed: Said) -> None:
    """The same at the end of a sweep, which is not to be lost to it: ``failed`` is told why there are none."""
    try:
        baselines_of(task, record, methods, said)
    except DstError as error:
        failed(f"no baselines: {error.cause}")


def measure(task: Task, methods: Sequence[Method], seeds: Sequence[int], said: Said = lambda text: None) -> Baselines:
    """Train the dense model with every seed and rank its layers by each method; seeds that diverge are left out."""
    batches, samples = _some(task)
    measured: list[Measurement] = []
    with torch_threads(task.threads):
        for seed in seeds:
            said(f"baselines: the dense model, seed {seed}")
            try:
                model = trained_model(task, lambda: deep_copy(task.source.build()), seed)
            except DivergedError:
                continue
            weights = {layer.name: model.get_parameter(layer.parameter) for layer in task.traced.layers}
            if "magnitude" in methods:
                measured += _by_magnitude(weights, seed)
            if "sensitivity" in methods:
                said(f"baselines: its {len(weights)} layers, one at a time")
                measured += _by_sensitivity(task, model, weights, batches, seed)
    if not measured:
        raise DstError(
            "the dense model diverged with every seed, so that there are no trained weights to rank layers by",
            place="--baselines",
            hint="a lower --lr",
        )
    return Baselines(steps=task.steps, samples=samples, measured=tuple(measured))


def _some(task: Task) -> tuple[list[Any], int]:
    """The first batches of the test data, moved to where the model is, and how many samples they hold."""
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

    whole = loss()
    for share in SETTINGS["sensitivity"]:
        risen = {}
        for name, weight in weights.items():
            with largest_kept(weight, share):
                risen[name] = loss() - whole
        yield Measurement(method="sensitivity", setting=share, seed=seed, values=risen)


@contextmanager
def largest_kept(weight: nn.Parameter, share: float) -> Iterator[None]:
    """Set all but the largest share of a weight's values to zero while the block runs."""
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

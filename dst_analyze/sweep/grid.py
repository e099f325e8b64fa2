"""The sweep: one trial after another, written to a run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dst_analyze.sweep.folder import draft_folder, read_run
from dst_analyze.sweep.plan import Plan, plan_sweep
from dst_analyze.sweep.record import (
    DEFAULT_BATCH_SIZE,
    SweepRecord,
)
from dst_analyze.sweep.trial import Listener, ModelSpec, Task, run_trial

_SMALL_STEP = 2e8
"""Multiply-accumulates of one forward pass below which a second thread does not pay."""


def run_sweep(
    model: ModelSpec,
    data: Any = None,
    *,
    model_args: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    force: bool = False,
    listener: Listener | None = None,
    **options: Any,
) -> SweepRecord:
    """Train a model, or what a spec names, once per alpha and seed, and record how much of each layer remains.

    ``data`` is what train_data() of a model file may return, or a pair of (train, test); without it the file's own
    are used. ``options`` are the fields of `SweepConfig`: alphas, seeds, epochs or steps, batch_size, lr, include,
    exclude, threshold, estimator, operator. The run folder is ``out``, else reports/<model>-<hash>.
    """
    plan = plan_sweep(model, data, model_args=model_args, out=out, force=force, **options)
    return run_plan(plan, listener)


def run_plan(plan: Plan, listener: Listener | None = None) -> SweepRecord:
    """Run the trials of a plan; the run folder appears under its name when all are done."""
    config = plan.task.config
    with draft_folder(plan.out, config, force=plan.force) as draft:
        draft.write_head(config, plan.manifest, plan.task.traced.frame().rename(columns={"name": "layer"}))
        with _threads(plan.task):
            for key in config.trials():
                draft.write_trial(*run_trial(plan.task, key, listener or (lambda progress: None)))
        draft.commit()
    return read_run(plan.out)


@contextmanager
def _threads(task: Task) -> Iterator[None]:
    """One thread for a small model: more of them wait for each other longer than they compute."""
    before = torch.get_num_threads()
    per_step = task.traced.macs * (task.config.batch_size or DEFAULT_BATCH_SIZE)
    torch.set_num_threads(1 if per_step < _SMALL_STEP else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

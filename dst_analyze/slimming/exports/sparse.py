"""`sparse_model.safetensors`: the weights of a trial with the zeros of its masks, for sparse runtimes.

A run folder keeps masks, not weights. So the trial is trained again, as it was, and its masks must be those that the
folder has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from dst_analyze.errors import DstError
from dst_analyze.masking.masked import MaskedModel
from dst_analyze.run.events import ignore_event
from dst_analyze.run.files.masks import read_masks
from dst_analyze.run.files.paths import SPARSE_WEIGHTS, trial_folder
from dst_analyze.run.record import SweepRecord, TrialKey, TrialResult
from dst_analyze.slimming.exports.result import Exported, NotExportedError, SlimResult
from dst_analyze.sweep.engines.resources import torch_threads
from dst_analyze.sweep.training.trial import run_trial


def write_sparse(result: SlimResult) -> Exported:
    """Return the state dict of the masked model of a run: the strongest trial at no measurable loss of score."""
    record = result.record
    if record is None or result.task is None:
        raise NotExportedError("there is no sweep whose masks could be written")
    trial = chosen_trial(record)
    try:
        task = result.task()
    except DstError as error:
        raise NotExportedError(f"the trial cannot be trained again: {error.cause}") from error
    if task.own_loop:
        raise NotExportedError(
            "a loop of your own trained the trial: keep its model there, whose weights have the zeros after training"
        )
    kept: list[nn.Module] = []

    def keep(model: MaskedModel) -> None:
        kept.append(model.unmasked().cpu())

    with torch_threads(task.threads):
        output = run_trial(task, trial.key, ignore_event, keep=keep)
    if not kept:
        raise NotExportedError(f"{trial.key.label} did not end well when it was trained again: {output.result.reason}")
    tensors = {name: tensor.detach().contiguous().clone() for name, tensor in kept[0].state_dict().items()}
    _check_masks(record, trial.key, kept[0], {layer.name: layer.parameter for layer in task.traced.layers})
    data: bytes = save(tensors, {"sparse": trial.key.label})
    zeros = sum(int((kept[0].get_parameter(layer.parameter) == 0).sum()) for layer in task.traced.layers)
    share = zeros / sum(layer.params for layer in task.traced.layers)
    note = f"{trial.key.label}: {share:.1%} of the masked weights are zero, {_scores(record, trial)}"
    return Exported({SPARSE_WEIGHTS: data}, note=note)


def chosen_trial(record: SweepRecord) -> TrialResult:
    """Return the sparsest trial that scores no worse than the dense one, as far as the test data can tell.

    Without one it is the sparsest that does the task, else the densest.
    """
    trials = [trial for alpha in record.alphas for trial in record.at(alpha) if trial.remaining is not None]
    if not trials:
        raise NotExportedError("no trial ended well")
    trials.sort(key=lambda trial: (trial.remaining, trial.seed))
    level = [trial for trial in trials if _is_level(record, trial)]
    working = [trial for trial in trials if record.does_the_task(trial)]
    return next(iter((*level, *working)), trials[-1])


def _is_level(record: SweepRecord, trial: TrialResult) -> bool:
    dense = record.dense
    if trial.score is None or dense.score is None:
        return False
    worse: float = trial.score - dense.score if record.manifest.data.score == "loss" else dense.score - trial.score
    return worse <= 2 * math.hypot(trial.error or 0.0, dense.error or 0.0)


def _scores(record: SweepRecord, trial: TrialResult) -> str:
    kind, dense = record.manifest.data.score, record.dense.score
    if trial.score is None or dense is None:
        return "its score is not known"
    return f"{kind} {trial.score:.3g}, dense {dense:.3g}"


def _check_masks(record: SweepRecord, key: TrialKey, model: nn.Module, parameters: Mapping[str, str]) -> None:
    """Raise if the weights do not have the zeros of the masks that the run has kept."""
    for layer, mask in read_masks(trial_folder(record.folder, key)).items():
        found = model.get_parameter(parameters[layer]).detach().cpu()
        extra = int(torch.count_nonzero(found[torch.from_numpy(~mask)]))
        if extra or int(torch.count_nonzero(found)) < 0.999 * int(np.count_nonzero(mask)):
            raise NotExportedError(
                f"{key.label} trained again has other masks than the run ({layer}): was it another machine or version?"
            )

"""The warm start of trials: weights that are trained once per seed before anything is masked.

While weights are close to their initialisation, thresholds show that more than the task
(docs/experiments/short-sweeps.md). A trial that gets no such weights trains them itself, with bit-identical results,
so that a resumed sweep gives the same ones.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import safetensors
import torch
from safetensors.torch import load, save
from torch import nn

from dst_analyze.run.record import TrialKey

Origin = tuple[int, bool]
"""What determines the starting weights of a trial: the seed, and whether labels are shuffled."""
Warmed = Mapping[Origin, bytes]


def origin(key: TrialKey) -> Origin:
    """Return the origin of a trial's starting weights."""
    return key.seed, key.control


def pack_weights(model: nn.Module) -> bytes | None:
    """Return a model's parameters and all of its buffers as safetensors bytes; None if they cannot be saved."""
    try:
        data: bytes = save({n: value.detach().cpu().contiguous().clone() for n, value in _tensors(model).items()})
    except (safetensors.SafetensorError, KeyError, TypeError, RuntimeError):  # a tensor type safetensors lacks
        return None
    return data


@torch.no_grad()
def restore_weights(model: nn.Module, data: bytes | None) -> bool:
    """Load packed weights into a model of the same structure; return False if they are missing or do not fit."""
    if data is None:
        return False
    own, trained = _tensors(model), load(data)
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in trained.items()}:
        return False
    for name, value in own.items():
        value.copy_(trained[name])
    return True


def _tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def missing_starts(keys: Iterable[TrialKey], warmed: Container[Origin]) -> list[Origin]:
    """Return the starting weights that trials need and that are not trained yet, in the order of the trials."""
    return [start for start in dict.fromkeys(map(origin, keys)) if start not in warmed]

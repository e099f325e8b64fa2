"""The weights that all trials of a seed start from: trained once, before anything is masked, and handed on.

Thresholds that move while weights are still those of the initialisation say more of that than of the task; what it
brings to start from trained ones is in docs/evidence.md. A trial that is handed none trains its own, to the same bits:
whatever happens to a sweep, such as that it is killed and goes on later, its results are the same.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import safetensors
import torch
from safetensors.torch import load, save
from torch import nn

from dst_analyze.run.record import TrialKey

Origin = tuple[int, bool]
"""What trials must share to have the same trained weights: the seed, and whether labels are shuffled."""
Warmed = Mapping[Origin, bytes]


def origin(key: TrialKey) -> Origin:
    return key.seed, key.control


def packed(model: nn.Module) -> bytes | None:
    """What training has changed in a model: its parameters and all of its buffers; None if that cannot travel."""
    try:
        data: bytes = save({n: value.detach().cpu().contiguous().clone() for n, value in _tensors(model).items()})
    except (safetensors.SafetensorError, KeyError, TypeError, RuntimeError):  # of a kind that no file can hold
        return None
    return data


@torch.no_grad()
def restored(model: nn.Module, data: bytes | None) -> bool:
    """Put it back into a model built alike; whether that could be done."""
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
    """The starting weights that trials need and nobody has trained yet, in the order of the trials."""
    return [start for start in dict.fromkeys(map(origin, keys)) if start not in warmed]

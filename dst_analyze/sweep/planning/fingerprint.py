"""Fingerprints of a sweep's model, weights and data, so that a run is not resumed with other ones."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dst_analyze.model.isolation import preserved_randomness
from dst_analyze.model.loading.load import LoadedModel
from dst_analyze.model.loading.weights import Weights
from dst_analyze.sweep.data.batches import Batches, TensorBatches


def model_sha256(loaded: LoadedModel, model: Any) -> str | None:
    """Return the SHA-256 of the model's file, or of the structure and weights of a module given as an object."""
    if loaded.file is not None:
        return hashlib.sha256(loaded.file.read_bytes()).hexdigest()
    if not isinstance(model, nn.Module):
        return None
    digest = hashlib.sha256(repr(model).encode())
    _update(digest, model.state_dict())
    return digest.hexdigest()


def weights_sha256(weights: Weights) -> str:
    """Return the SHA-256 of the weights' names and values, which does not depend on the file format."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        _update(digest, [name, weights[name]])
    return digest.hexdigest()


def data_sha256(*sets: Batches, seed: int) -> str:
    """Return the SHA-256 of all tensors in memory, or of a loader's first batch, as the rest may not fit."""
    digest = hashlib.sha256()
    for batches in sets:
        if isinstance(batches, TensorBatches):
            _update(digest, batches.tensors)
            continue
        with preserved_randomness():
            torch.manual_seed(seed)
            _update(digest, next(batches.stream(seed), None))
    return digest.hexdigest()


def _update(digest: Any, values: Any) -> None:
    for value in tree_leaves(values):
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().view(-1)
            digest.update(f"{value.dtype}{list(value.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy() if flat.numel() else b"")
        elif isinstance(value, str | int | float | bool):
            digest.update(repr(value).encode())

"""Weights of a model: read from a file and loaded into it, or initialized anew."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from dst_analyze.errors import ModelError

Weights = Mapping[str, torch.Tensor]
Shapes = Mapping[str, Sequence[int]]

_WRAPPED = ("state_dict", "model_state_dict", "model")  # keys of the state dict in training scripts' checkpoints
_PARALLEL = "module."  # the prefix that torch's parallel wrappers give every name


def read_weights(path: Path) -> Weights:
    """Return the state dict in a .safetensors file or in a torch.save checkpoint."""
    try:
        found: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise ModelError(
            f"the weights cannot be read: {why}",
            place=str(path),
            hint="give a .safetensors file, or what torch.save(model.state_dict(), path) writes",
        ) from error
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ModelError(
            f"the file holds no weights: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            place=str(path),
            hint="give a .safetensors file, or what torch.save(model.state_dict(), path) writes",
        ) from error
    while isinstance(found, dict) and (inner := next((found[n] for n in _WRAPPED if n in found), None)) is not None:
        found = inner
    if not isinstance(found, dict) or not found or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise ModelError(
            f"the file holds no state dict, but a {type(found).__name__}",
            place=str(path),
            hint="torch.save(model.state_dict(), path) writes one",
        )
    if all(name.startswith(_PARALLEL) for name in found):
        return {name.removeprefix(_PARALLEL): value for name, value in found.items()}
    return found


def put_weights(model: nn.Module, weights: Weights, place: str) -> None:
    """Load weights into a model; raise `ModelError` if their names or shapes differ from the model's."""
    there, here = ({n: value.shape for n, value in state.items()} for state in (weights, model.state_dict()))
    if difference := first_difference(there, here, "tensor"):
        name, in_file, in_model = difference
        raise ModelError(
            f"the weights do not fit the model: {name} is {in_file} in the file, {in_model} in the model",
            place=place,
            hint="build the model as it was trained, with --model-arg name=value",
        )
    model.load_state_dict(dict(weights))


def first_difference(there: Shapes, here: Shapes, what: str) -> tuple[str, str, str] | None:
    """Return the first name whose shapes differ, and both shapes; ``what`` says what it names."""
    for name in dict.fromkeys((*there, *here)):
        shapes = [None if name not in shapes else list(shapes[name]) for shapes in (there, here)]
        if shapes[0] != shapes[1]:
            one, other = (f"no such {what}" if shape is None else str(shape) for shape in shapes)
            return name, one, other
    return None


def reinitialize_modules(model: nn.Module) -> None:
    """Call ``reset_parameters`` of each module that has it; others keep their weights."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()

"""Weights of a model: those a user has trained already, from a file, put into it, or new ones drawn."""

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

_WRAPPED = ("state_dict", "model_state_dict", "model")  # how training scripts name it among what else they save
_PARALLEL = "module."  # what torch's parallel wrappers put before every name


def read_weights(path: Path) -> Weights:
    """A state dict: of a .safetensors file, or of what torch.save wrote, alone or beside a script's other things."""
    try:
        found: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise ModelError(f"there are no weights: {why}", place=str(path), hint="give a file of weights") from error
    except (safetensors.SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ModelError(
            f"these are no weights: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            place=str(path),
            hint="a .safetensors file, or what torch.save(model.state_dict(), path) writes",
        ) from error
    while isinstance(found, dict) and (inner := next((found[n] for n in _WRAPPED if n in found), None)) is not None:
        found = inner
    if not isinstance(found, dict) or not found or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise ModelError(
            f"there is no state dict in here, but a {type(found).__name__}",
            place=str(path),
            hint="torch.save(model.state_dict(), path) writes one",
        )
    if all(name.startswith(_PARALLEL) for name in found):
        return {name.removeprefix(_PARALLEL): value for name, value in found.items()}
    return found


def put_weights(model: nn.Module, weights: Weights, place: str) -> None:
    """Load them; refused where they are another model's, with the first difference."""
    there, here = ({n: value.shape for n, value in state.items()} for state in (weights, model.state_dict()))
    if difference := first_difference(there, here, "tensor"):
        name, in_file, in_model = difference
        raise ModelError(
            f"these weights are another model's: {name} is {in_file} in the file, {in_model} in the model",
            place=place,
            hint="--model-arg builds the model as it was trained",
        )
    model.load_state_dict(dict(weights))


def first_difference(there: Shapes, here: Shapes, what: str) -> tuple[str, str, str] | None:
    """The first name whose shapes differ, and each of them in words; ``what`` is what the names are of."""
    for name in dict.fromkeys((*there, *here)):
        shapes = [None if name not in shapes else list(shapes[name]) for shapes in (there, here)]
        if shapes[0] != shapes[1]:
            one, other = (f"no such {what}" if shape is None else str(shape) for shape in shapes)
            return name, one, other
    return None


def reinitialize_modules(model: nn.Module) -> None:
    """New weights for each module that can draw some (has ``reset_parameters``, as torch's do); others keep theirs."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()

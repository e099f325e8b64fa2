"""Weights of a model: read from a file and loaded into it, or initialized anew."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import nn

from dst_analyze.errors import ModelError

Weights = Mapping[str, torch.Tensor]
Shapes = Mapping[str, Sequence[int]]

# Keys of the state dict in training scripts' checkpoints; averages of the weights come last.
_WRAPPED = ("state_dict", "model_state_dict", "model", "net", "state_dict_ema", "model_ema", "ema_state_dict", "ema")
_COMPILED = "_orig_mod."  # which torch.compile puts before the names in a compiled module
_AVERAGES = ("ema", "swa", "teacher", "averag")


def read_weights(path: Path) -> Weights:
    """Return the state dict in a .safetensors file or in a torch.save checkpoint."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # which scripts keep beside the weights
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
    while isinstance(found, dict) and (inner := _inner(found)) is not None:
        found = inner
    if not isinstance(found, dict) or not found or not all(isinstance(v, torch.Tensor) for v in found.values()):
        raise ModelError(
            f"the file holds no state dict, but a {type(found).__name__}",
            place=str(path),
            hint="torch.save(model.state_dict(), path) writes one",
        )
    return found


def _inner(found: Mapping[Any, Any]) -> Any:
    """Return what a checkpoint holds under a usual key, if that is a dict; None if it is a state dict itself."""
    return next((found[name] for name in _WRAPPED if isinstance(found.get(name), Mapping)), None)


def put_weights(model: nn.Module, weights: Weights, place: str) -> str:
    """Load weights into a model, and return how their names were matched; "" if they are the model's.

    Raises:
        ModelError: Names or shapes differ, also without the prefix that wrappers give them.
    """
    own = {name: value.shape for name, value in model.state_dict().items()}
    fitting, how = _matched(weights, own)
    if difference := first_difference({n: value.shape for n, value in fitting.items()}, own, "tensor"):
        name, in_file, in_model = difference
        raise ModelError(
            f"the weights do not fit the model: {name} is {in_file} in the file, {in_model} in the model",
            place=place,
            hint="build the model as it was trained, with --model-arg name=value",
        )
    model.load_state_dict(dict(fitting))
    return how


def _matched(weights: Weights, own: Shapes) -> tuple[Weights, str]:
    """Return the weights by the model's names, and how these were found; unchanged if no prefix explains them."""
    plain = {name.replace(_COMPILED, ""): value for name, value in weights.items()}
    compiled = f" without {_COMPILED!r}" if plain.keys() != weights.keys() else ""
    if plain.keys() == own.keys():
        return plain, f"names were matched{compiled}" if compiled else ""
    complete: Weights = plain
    for prefix in _prefixes(plain, own):
        inner = {n.removeprefix(prefix): value for n, value in plain.items() if n.startswith(prefix)}
        if not own.keys() <= inner.keys():
            continue
        complete = {name: inner[name] for name in own}
        if all(complete[name].shape == shape for name, shape in own.items()):
            left = len(plain) - len(complete)
            others = f"; {left} tensors of the file are not the model's" if left else ""
            return complete, f"names were matched without the prefix {prefix!r}{compiled}{others}"
    for prefix in _prefixes(own, plain):  # the file holds a part that the model wraps
        outer = {f"{prefix}{name}": value for name, value in plain.items()}
        if outer.keys() == own.keys():
            return outer, f"names were matched with the prefix {prefix!r}{compiled}"
    return complete, ""


def _prefixes(longer: Mapping[str, Any], shorter: Mapping[str, Any]) -> Iterator[str]:
    """Yield what stands before one of the shorter names among the longer ones: averages last, short ones first."""
    first = next(iter(shorter), None)
    found = {n[: -len(first)] for n in longer if n.endswith(f".{first}")} if first else set()
    yield from sorted(found, key=lambda prefix: (any(word in prefix for word in _AVERAGES), len(prefix), prefix))


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

"""Whether the text of a model computes what the model computes: it is executed, and both run on the example."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from dst_analyze.model.isolation import preserved, quiet_inspection

_SEED = 20200426
_TOLERANCE = 1e-3


def is_same_model(text: str, slim: fx.GraphModule) -> bool:
    """Return True if the text builds a model with the same tensors and outputs, in both modes.

    Without an example, or where the model itself does not run on it, only the tensors are compared.
    """
    with preserved(), quiet_inspection(), torch.no_grad():
        try:
            written = _built(text)
            if not _takes_tensors(written, slim):
                return False
        except Exception:
            return False
        inputs = slim.meta.get("inputs")
        if not inputs or any(tensor.is_meta for tensor in (*inputs, *slim.parameters())):
            return True
        for mode in (False, True):
            try:
                expected = _outputs(copy.deepcopy(slim).train(mode), inputs)
            except Exception:  # such as a batch norm in training mode, of one value per channel
                continue
            try:
                found = _outputs(written.train(mode), inputs)
            except Exception:
                return False
            if not _same(expected, found):
                return False
    return True


def _built(text: str) -> nn.Module:
    names: dict[str, Any] = {"__name__": "slim_model", "__file__": "slim_model.py"}
    exec(compile(text, "slim_model.py", "exec", dont_inherit=True), names)
    model: nn.Module = names["build_model"](None)
    return model


def _takes_tensors(written: nn.Module, slim: nn.Module) -> bool:
    """Give the written model the tensors of the other; return False if their names or shapes differ."""
    given = dict((*slim.named_parameters(remove_duplicate=False), *slim.named_buffers(remove_duplicate=False)))
    own = dict((*written.named_parameters(remove_duplicate=False), *written.named_buffers(remove_duplicate=False)))
    if list(written.state_dict()) != list(slim.state_dict()) or own.keys() != given.keys():
        return False
    for name, tensor in own.items():
        if tensor.shape != given[name].shape:
            return False
        tensor.data = given[name].detach().clone()
    return True


def _outputs(model: nn.Module, inputs: list[torch.Tensor]) -> list[Any]:
    torch.manual_seed(_SEED)
    return tree_leaves(model(*(tensor.clone() for tensor in inputs)))


def _same(expected: list[Any], found: list[Any]) -> bool:
    if len(expected) != len(found):
        return False
    for one, other in zip(expected, found, strict=True):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
            if one != other:
                return False
        elif (
            one.shape != other.shape
            or one.dtype != other.dtype
            or not torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
        ):
            return False
    return True

"""`Substitution`: other tensors in place of a module's parameters during a call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


class Substitution:
    """Some parameters of a module, each by all its names, which can be replaced for a while."""

    def __init__(self, module: nn.Module, parameters: Iterable[Sequence[str]]) -> None:
        self._slots = [[_slot(module, alias) for alias in aliases] for aliases in parameters]

    def current(self) -> list[torch.Tensor]:
        """Return the tensors that the module has in these places now."""
        return [slots[0][0]._parameters[slots[0][1]] for slots in self._slots]  # type: ignore[misc]

    @contextmanager
    def of(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Put other tensors in these places inside the block, and restore the previous ones on exit."""
        before = self.current()
        self._put(tensors)
        try:
            yield
        finally:
            self._put(before)

    def _put(self, tensors: Sequence[torch.Tensor]) -> None:
        for slots, tensor in zip(self._slots, tensors, strict=True):
            for module, name in slots:
                module._parameters[name] = tensor  # type: ignore[assignment]
                if isinstance(module, nn.RNNBase):  # keeps a second list of its weights
                    module._flat_weights[module._flat_weights_names.index(name)] = tensor


def _slot(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, leaf = name.rpartition(".")
    return module.get_submodule(owner), leaf

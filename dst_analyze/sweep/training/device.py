"""Where trials run, and in which precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from dst_analyze.errors import OptionError

_AVAILABLE: dict[str, Callable[[], bool]] = {  # in the order of preference
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "cpu": lambda: True,
}


@dataclass(frozen=True)
class Device:
    """A device by its name; ``amp``: matmuls and convolutions in bfloat16 where torch thinks that safe.

    ``channels_last``: batches of images are handed over with their channels innermost, which convolutions are faster
    on (docs/training.md); a model that takes its inputs apart with ``view`` may not be able to take them.
    """

    name: str = "cpu"
    amp: bool = False
    channels_last: bool = False

    @classmethod
    def chosen(cls, asked: str, *, amp: bool = False) -> Device:
        """The device asked for, if this machine has it; of "auto" the best it has."""
        if asked == "auto":
            return cls(next(name for name, there in _AVAILABLE.items() if there()), amp)
        if not _AVAILABLE[asked]():
            there = ", ".join(name for name, available in _AVAILABLE.items() if available())
            raise OptionError(
                f"torch finds no {asked} device on this machine", place="--device", hint=f"available: auto, {there}"
            )
        return cls(asked, amp)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The same batches, their tensors on the device."""
        return map(self.moved, batches)

    def moved(self, batch: Any) -> Any:
        if isinstance(batch, Mapping) and not isinstance(batch, dict):  # a BatchEncoding of Hugging Face
            batch = dict(batch)
        return tree_map(lambda leaf: self._moved(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        images = self.channels_last and tensor.ndim == 4 and tensor.is_floating_point()
        return tensor.to(self.name, memory_format=torch.channels_last if images else torch.preserve_format)

    def precision(self) -> AbstractContextManager[None]:
        """For forward passes and losses."""
        return torch.autocast(self.name, dtype=torch.bfloat16, enabled=self.amp)

    def wait(self) -> None:
        """Until all that was asked of the device is done: for timing."""
        if self.name != "cpu":
            torch.accelerator.synchronize()

    def describe(self) -> str:
        return f"{self.name}, bfloat16 where safe" if self.amp else self.name

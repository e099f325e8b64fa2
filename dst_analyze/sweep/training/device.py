"""The device that trials run on, and their precision."""

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
    """A device by name; with ``amp``, autocast runs matmuls and convolutions in bfloat16.

    ``channels_last``: batches of images are passed in torch's channels-last format, which makes convolutions faster
    (docs/how-to/training.md); models that call ``view`` on their inputs may not support it.
    """

    name: str = "cpu"
    amp: bool = False
    channels_last: bool = False

    @classmethod
    def chosen(cls, asked: str, *, amp: bool = False) -> Device:
        """Return the requested device; for "auto" the best that this machine has. Raise if it is missing."""
        if asked == "auto":
            return cls(next(name for name, there in _AVAILABLE.items() if there()), amp)
        if not _AVAILABLE[asked]():
            there = ", ".join(name for name, available in _AVAILABLE.items() if available())
            raise OptionError(
                f"torch finds no {asked} device on this machine", place="--device", hint=f"available: auto, {there}"
            )
        return cls(asked, amp)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches with their tensors on the device."""
        return map(self.moved, batches)

    def moved(self, batch: Any) -> Any:
        """Return a batch with its tensors on the device."""
        if isinstance(batch, Mapping) and not isinstance(batch, dict):  # a BatchEncoding of Hugging Face
            batch = dict(batch)
        return tree_map(lambda leaf: self._moved(leaf) if isinstance(leaf, torch.Tensor) else leaf, batch)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        images = self.channels_last and tensor.ndim == 4 and tensor.is_floating_point()
        return tensor.to(self.name, memory_format=torch.channels_last if images else torch.preserve_format)

    def precision(self) -> AbstractContextManager[None]:
        """Return the autocast context for forward passes and losses."""
        return torch.autocast(self.name, dtype=torch.bfloat16, enabled=self.amp)

    def wait(self) -> None:
        """Wait until all queued work of the device is done, for timing."""
        if self.name != "cpu":
            torch.accelerator.synchronize()

    def describe(self) -> str:
        """Return the device and precision in words."""
        return f"{self.name}, bfloat16 where safe" if self.amp else self.name

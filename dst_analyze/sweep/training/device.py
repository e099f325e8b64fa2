"""The device that trials run on, and their precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map

from dst_analyze.errors import OptionError

_AVAILABLE: dict[str, Callable[[], bool]] = {  # in the order of preference
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "cpu": lambda: True,
}

AmpDtype = Literal["bfloat16", "float16"]
READ_EVERY = 50
"""Steps between two readings of losses from a GPU, at most: each reading waits for it."""


@dataclass(frozen=True)
class Device:
    """A device by name; with ``amp``, autocast runs matmuls and convolutions in ``amp_dtype``.

    ``channels_last``: batches of images are passed in torch's channels-last format, which makes convolutions faster
    (docs/experiments/cost.md); models that call ``view`` on their inputs may not support it.
    """

    name: str = "cpu"
    amp: bool = False
    channels_last: bool = False
    amp_dtype: AmpDtype = "bfloat16"

    @classmethod
    def chosen(cls, asked: str, *, amp: bool = False, amp_dtype: AmpDtype = "bfloat16") -> Device:
        """Return the requested device; for "auto" the best that this machine has. Raise if it is missing."""
        if asked == "auto":
            asked = next(name for name, there in _AVAILABLE.items() if there())
        if not _AVAILABLE[asked]():
            there = ", ".join(name for name, available in _AVAILABLE.items() if available())
            raise OptionError(
                f"torch finds no {asked} device on this machine", place="--device", hint=f"available: auto, {there}"
            )
        if amp and amp_dtype == "bfloat16" and asked == "cuda" and not torch.cuda.is_bf16_supported():
            raise OptionError(
                f"{torch.cuda.get_device_name()} does not compute in bfloat16",
                place="--amp",
                hint="add --amp-dtype float16, which trains with a gradient scaler",
            )
        if not amp and amp_dtype != "bfloat16":
            raise OptionError("it has no effect without --amp", place=f"--amp-dtype {amp_dtype}", hint="add --amp")
        return cls(asked, amp, amp_dtype=amp_dtype)

    @property
    def on_host(self) -> bool:
        """True if losses and counts can be read without waiting for a device."""
        return self.name == "cpu"

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
        layout = torch.channels_last if images else torch.preserve_format
        return to_device(tensor, self.name, memory_format=layout)

    def precision(self) -> AbstractContextManager[None]:
        """Return the autocast context for forward passes and losses."""
        return torch.autocast(self.name, dtype=getattr(torch, self.amp_dtype), enabled=self.amp)

    def scaler(self) -> torch.amp.GradScaler | None:
        """Return a new gradient scaler, without which small gradients would be zero in float16; else None."""
        return torch.amp.GradScaler(self.name) if self.amp and self.amp_dtype == "float16" else None

    @property
    def loss_scale(self) -> float:
        """A fixed factor for losses whose gradients are only looked at, so that small ones are not zero in float16."""
        return 2.0**10 if self.amp and self.amp_dtype == "float16" else 1.0

    def wait(self) -> None:
        """Wait until all queued work of the device is done, for timing."""
        if self.name != "cpu":
            torch.accelerator.synchronize()

    def describe(self) -> str:
        """Return the device and precision in words."""
        return f"{self.name}, {self.amp_dtype} where safe" if self.amp else self.name


def read_all(values: Sequence[torch.Tensor]) -> list[float]:
    """Return single values as numbers, waiting for their device once."""
    if not values or values[0].is_cpu:
        return [value.item() for value in values]
    numbers: list[float] = torch.stack(list(values)).tolist()
    return numbers


def to_device(
    tensor: torch.Tensor, device: str | torch.device, *, memory_format: torch.memory_format = torch.preserve_format
) -> torch.Tensor:
    """Return a tensor on a device; the copy to a GPU starts from pinned memory, so that nothing waits for it."""
    to_gpu = torch.device(device).type == "cuda" and tensor.is_cpu
    if to_gpu and not tensor.is_pinned() and tensor.layout is torch.strided:
        tensor = tensor.pin_memory()
    return tensor.to(device, memory_format=memory_format, non_blocking=to_gpu)

"""What happens to a layer whose mask keeps almost nothing: its thresholds are set back, and that is counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from dst_analyze.masking.layer import MaskedLayer

OnCollapse = Literal["reset", "hold"]

COLLAPSED = 0.01  # a mask that keeps no more than this has collapsed (the paper's 99 %)
HELD = 0.9
"""The factor for thresholds of a collapsed layer that is held: just enough for more than 1 % to remain."""


class Collapse:
    """The rule for collapsed layers, and how often it was applied to each."""

    def __init__(self, layers: Sequence[MaskedLayer], sizes: Sequence[int], on_collapse: OnCollapse) -> None:
        self.layers, self.on_collapse = layers, on_collapse
        self._counts: dict[str, dict[str, int]] = {
            "reset": {layer.name: 0 for layer in layers},
            "hold": {layer.name: 0 for layer in layers},
        }
        self._least = [-1.0 if layer.recurrent else COLLAPSED * size for layer, size in zip(layers, sizes, strict=True)]
        self._unread: torch.Tensor | None = None  # counts on a device that have not been added to those above

    @property
    def resets(self) -> dict[str, int]:
        """How often each layer's thresholds were reset to zero."""
        return self._read("reset")

    @property
    def holds(self) -> dict[str, int]:
        """How often each layer's thresholds were lowered to hold it."""
        return self._read("hold")

    def set_back(self, thresholds: torch.Tensor, counts: Sequence[int]) -> list[str]:
        """Set the thresholds of collapsed layers back, and return the names of these layers.

        Args:
            thresholds: The thresholds of all layers.
            counts: How many weights of each layer remain.
        """
        names = []
        for layer, count, least in zip(self.layers, counts, self._least, strict=True):
            if count > least:
                continue
            own = thresholds.detach()[layer.start : layer.stop]
            # Without positive thresholds nothing is pruned: the layer's weights are zeros, and it has not collapsed.
            if bool((own > 0).any()):
                own.mul_(self._factor)
                self._counts[self.on_collapse][layer.name] += 1
                names.append(layer.name)
        return names

    def set_back_on_device(self, thresholds: torch.Tensor, counts: torch.Tensor) -> None:
        """Do the same without waiting for the device, on which the counts are; see `set_back`."""
        device, own = thresholds.device, thresholds.detach()
        least, sizes = self._tensors(device)
        above = torch.segment_reduce((own > 0).float(), "max", lengths=sizes, unsafe=True) > 0
        collapsed = (counts <= least) & above
        factors = torch.where(collapsed, self._factor, 1.0).to(own.dtype)
        own.mul_(factors.repeat_interleave(sizes, output_size=len(own)))
        if self._unread is None or self._unread.device != device:
            self._read(self.on_collapse)
            self._unread = torch.zeros(len(self.layers), dtype=torch.int64, device=device)
        self._unread += collapsed

    @property
    def _factor(self) -> float:
        return HELD if self.on_collapse == "hold" else 0.0

    def _tensors(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the count at which each layer has collapsed, and the number of its thresholds."""
        known = self.__dict__.get("_on_device")
        if known is None or known[0].device != device:
            least = torch.tensor(self._least, dtype=torch.float64 if device.type != "mps" else torch.float32)
            sizes = torch.tensor([layer.count for layer in self.layers])
            known = self._on_device = (least.to(device), sizes.to(device))
        return known

    def _read(self, kind: str) -> dict[str, int]:
        if self._unread is not None and not self._unread.is_meta:
            unread, self._unread = self._unread.tolist(), None
            for layer, count in zip(self.layers, unread, strict=True):
                self._counts[self.on_collapse][layer.name] += count
        return self._counts[kind]

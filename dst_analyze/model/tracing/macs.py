"""Multiply-accumulates, by torch's FlopCounterMode, and the operations that it cannot count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

# Parts of the names of expensive operations that the counter may not know.
_HEAVY = ("rnn", "lstm", "gru", "bilinear", "trilinear", "fft", "cdist", "grid_sampl", "mv", "dot", "linalg", "deform")


def counted_macs(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return a call's result and its multiply-accumulates; 0 if the counter knows none of its ops."""
    with FlopCounterMode(display=False) as counter:
        result = call()
    return result, int(counter.get_total_flops()) // 2


class UncountedOps(TorchDispatchMode):
    """A mode that collects the names of expensive operations that FlopCounterMode does not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        packet = getattr(func, "overloadpacket", func)
        name = str(packet).removeprefix("aten.")
        if packet not in flop_registry and any(part in name for part in _HEAVY):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


def total_macs(call: Callable[[], Any]) -> tuple[int, tuple[str, ...]]:
    """Return the multiply-accumulates of a call, and the expensive operations not counted."""
    with torch.no_grad(), UncountedOps() as uncounted, FlopCounterMode(display=False) as counter:
        call()
    return int(counter.get_total_flops()) // 2, tuple(sorted(uncounted.names))

"""Registered layers in the audit: their weights are recorded when the layer is called."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dst_analyze.model.tracing.registered import RegisteredWeight, registered_weights
from dst_analyze.model.tracing.weight_audit import Audit, WeightUse
from dst_analyze.model.user_errors import place_here


@contextmanager
def watching_registered(audit: Audit, model: nn.Module, mode: Literal["train", "eval"]) -> Iterator[None]:
    """Record the weights of every registered layer that is called inside the block."""
    with ExitStack() as stack:
        for module in model.modules():
            for weight in registered_weights(module):
                watch = _Calls(audit, module, weight, mode)
                stack.callback(module.register_forward_pre_hook(watch.before).remove)
                stack.callback(module.register_forward_hook(watch.after).remove)
        yield


class _Calls:
    """Hooks on one layer's calls: its weight is recorded before a call, and counted after."""

    def __init__(self, audit: Audit, module: nn.Module, weight: RegisteredWeight, mode: str) -> None:
        self.audit, self.weight, self.mode = audit, weight, mode
        self.parameter = weight.of(module)
        self.counted = 0

    def before(self, module: nn.Module, args: Any) -> None:
        if self.parameter is None:
            return
        shape = tuple(self.parameter.shape)
        use = self.audit.uses.setdefault(
            id(self.parameter),
            WeightUse(
                parameter=self.audit.names[id(self.parameter)],
                op=type(module).__name__,
                layout=self.weight.layout(shape, type(module).__name__),
                shape=shape,
                output_shape=(),
                place=place_here(),
                recurrent=self.weight.recurrent,
                mode=self.mode,
                tensor=self.parameter,
            ),
        )
        self.counted = use.macs

    def after(self, module: nn.Module, args: Any, output: Any) -> None:
        """Count each weight once per output of its row, unless torch counted the layer's operations."""
        if self.parameter is None:
            return
        use = self.audit.uses[id(self.parameter)]
        made = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)), None)
        if made is None or use.mode != self.mode:
            return
        use.output_shape = use.output_shape or tuple(made.shape)
        if use.macs == self.counted:
            macs = made.numel() // use.layout.row_count * self.parameter.numel()
            use.macs += macs
            use.macs_note = "closed form" if macs else "not counted"
            self.audit.missed_macs += macs if self.mode == "eval" else 0

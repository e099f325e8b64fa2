"""The masks of a whole model as one module: what the masked graph calls once, ahead of everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import nn

from dst_analyze.masking.kernels.c_backend import compiled_kernels, kernels_when_ready
from dst_analyze.masking.layer import MaskedLayer, grouped, units_of
from dst_analyze.masking.masked_weight import EAGER, Kernels, Masking, bool_mask, float_mask, masked_weights

ThresholdScale = Literal["one", "layer"]
OnCollapse = Literal["reset", "hold"]
Backend = Literal["eager", "compiled", "when-ready"]

COLLAPSED = 0.01  # a mask that keeps no more than this has collapsed (the paper's 99 %)
HELD = 0.9
"""What thresholds of a collapsed layer are multiplied by where it is held: just enough for more than 1 % to remain."""


class Masks(nn.Module):
    """From the flat thresholds and the weights of all layers to the masked weights, in as few calls as possible.

    ``units`` is None, or what each threshold is counted in: it then stands at that many times its own value among the
    weights. Weights are given in the order of ``layers`` everywhere.
    """

    units: torch.Tensor | None

    def __init__(
        self,
        layers: tuple[MaskedLayer, ...],
        weights: Sequence[torch.Tensor],
        *,
        estimator: str,
        backend: Backend,
        threshold_scale: ThresholdScale,
        on_collapse: OnCollapse,
    ) -> None:
        super().__init__()
        self.layers = layers
        self.estimator = estimator
        self.backend: Backend = backend
        self.auto_reset = True
        self.on_collapse = on_collapse
        self.resets: dict[str, int] = {layer.name: 0 for layer in layers}
        self.holds: dict[str, int] = {layer.name: 0 for layer in layers}
        self._least = [
            -1.0 if layer.recurrent else COLLAPSED * weight.numel()
            for layer, weight in zip(layers, weights, strict=True)
        ]
        self._groups = [
            (slice(indices[0], indices[-1] + 1), Masking.of(estimator, [layers[i] for i in indices]))
            for indices in grouped([(weight.device, weight.numel()) for weight in weights])
        ]
        self.register_buffer("units", None if threshold_scale == "one" else self._counted_in(weights), persistent=False)

    def forward(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return P of every layer. In training mode collapsed layers are reset first (`auto_reset`)."""
        compiling = torch.compiler.is_compiling()
        counts: list[int] | None = [] if self.training and self.auto_reset and not compiling else None
        masked = self._masked(thresholds, weights, counts)
        if counts and self.reset(thresholds, counts):
            masked = self._masked(thresholds, weights, None)
        if not torch.is_grad_enabled() and not compiling:
            for weight, substitute in zip(weights, masked, strict=True):
                # torch picks some convolution kernels by this flag, and they round differently
                substitute.requires_grad_(weight.requires_grad)
        return masked

    def _masked(
        self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor], counts: list[int] | None
    ) -> Sequence[torch.Tensor]:
        kernels, effective_thresholds = self.kernels, self.effective_thresholds(thresholds)
        if len(self._groups) == 1:
            return masked_weights(self._groups[0][1], kernels, effective_thresholds, weights, counts)
        parts = self._grouped(effective_thresholds, weights)
        return [weight for part in parts for weight in masked_weights(part[0], kernels, *part[1:], counts)]

    def effective_thresholds(self, thresholds: torch.Tensor) -> torch.Tensor:
        """Where the thresholds stand among the weights: what a magnitude must exceed to stay."""
        return thresholds if self.units is None else thresholds * self.units

    def of_layer(self, layer: MaskedLayer, thresholds: torch.Tensor) -> torch.Tensor:
        """Where one layer's thresholds stand, in the shape that broadcasts against its weight's view."""
        part = slice(layer.start, layer.stop)
        own = thresholds.detach()[part]
        return (own if self.units is None else own * self.units[part]).view(layer.threshold_shape)

    @torch.no_grad()
    def boolean(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Each layer's mask, in the shape of its weight."""
        return {
            layer.name: bool_mask(weight.reshape(layer.layout.view), self.of_layer(layer, thresholds)).view(
                weight.shape
            )
            for layer, weight in zip(self.layers, weights, strict=True)
        }

    @torch.no_grad()
    def viewed(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """The masks as zeros and ones, each in the view whose axes the layer's layout speaks of."""
        for layer, weight in zip(self.layers, weights, strict=True):
            yield float_mask(weight.reshape(layer.layout.view).abs(), self.of_layer(layer, thresholds))

    @torch.no_grad()
    def count(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[int]:
        """How many weights of each layer remain."""
        count = self.kernels.count
        groups = self._grouped(self.effective_thresholds(thresholds).detach(), weights)
        return [each for group in groups for each in count(*group)]

    def reset(self, thresholds: torch.Tensor, counts: Sequence[int]) -> list[str]:
        """Set the thresholds of collapsed layers back, and return the names of these layers."""
        names = []
        for layer, count, least in zip(self.layers, counts, self._least, strict=True):
            if count > least:
                continue
            own = thresholds.detach()[layer.start : layer.stop]
            # Thresholds that prune nothing have nothing to give back: a layer of zeros is empty, not collapsed.
            if bool((own > 0).any()):
                hold = self.on_collapse == "hold"
                own.mul_(HELD if hold else 0.0)
                (self.holds if hold else self.resets)[layer.name] += 1
                names.append(layer.name)
        return names

    @property
    def kernels(self) -> Kernels:
        """The loops to compute with. Looked up rather than stored: a model must be picklable."""
        # torch.compile traces the eager loops and fuses them.
        if self.backend == "eager" or torch.compiler.is_compiling():
            return EAGER
        return (compiled_kernels() if self.backend == "compiled" else kernels_when_ready()) or EAGER

    def extra_repr(self) -> str:
        return f"layers={len(self.layers)}, estimator={self.estimator!r}, backend={self.backend!r}"

    def _grouped(
        self, effective_thresholds: torch.Tensor, weights: Sequence[torch.Tensor]
    ) -> Iterator[tuple[Masking, torch.Tensor, Sequence[torch.Tensor]]]:
        """Groups of layers with their part of the flat thresholds, in network order."""
        sizes = [sum(masking.sizes) for _, masking in self._groups]
        for (layers, masking), part in zip(self._groups, effective_thresholds.split(sizes), strict=True):
            group = weights[layers]
            yield masking, part.to(group[0].device), group

    def _counted_in(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        counts = torch.tensor([layer.count for layer in self.layers], device=weights[0].device)
        return units_of(self.layers, weights).repeat_interleave(counts, output_size=self.layers[-1].stop)

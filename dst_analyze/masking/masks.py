"""The masks of a whole model as one module, which a masked graph calls once, before all other nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from torch import nn

from dst_analyze.masking.collapse import Collapse, OnCollapse
from dst_analyze.masking.kernels.choice import Backend, kernels_on
from dst_analyze.masking.layer import MaskedLayer, grouped, units_of
from dst_analyze.masking.masked_weight import Kernels, Masking, bool_mask, float_mask, masked_weights

ThresholdScale = Literal["one", "layer"]


class Masks(nn.Module):
    """A module that returns all masked weights, given the flat thresholds and all weights, in few calls.

    ``units`` is None, or a factor for each threshold: its product with the threshold is compared to magnitudes. All
    methods take the weights in the order of ``layers``.
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
        self.collapse = Collapse(layers, [weight.numel() for weight in weights], on_collapse)
        self._group(weights)
        self.register_buffer("units", None if threshold_scale == "one" else self._counted_in(weights), persistent=False)

    def forward(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return P of every layer; in training mode, reset collapsed layers first (`auto_reset`)."""
        compiling = torch.compiler.is_compiling()
        watching = self.training and self.auto_reset and not compiling
        if watching and not on_host(thresholds):
            self.set_back_collapsed(thresholds, weights)
            watching = False
        counts: list[int] | None = [] if watching else None
        masked = self._masked(thresholds, weights, counts)
        if counts and self.collapse.set_back(thresholds, counts):
            masked = self._masked(thresholds, weights, None)
        if not torch.is_grad_enabled() and not compiling:
            for weight, substitute in zip(weights, masked, strict=True):
                # torch picks some convolution kernels by this flag, and they round differently
                substitute.requires_grad_(weight.requires_grad)
        return masked

    def _masked(
        self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor], counts: list[int] | None
    ) -> Sequence[torch.Tensor]:
        kernels, effective_thresholds = self.kernels(thresholds.device), self.effective_thresholds(thresholds)
        if weights[0].device != self._grouped_on:
            self._group(weights)
        if len(self._groups) == 1:
            return masked_weights(self._groups[0][1], kernels, effective_thresholds, weights, counts)
        parts = self._grouped(effective_thresholds, weights)
        return [weight for part in parts for weight in masked_weights(part[0], kernels, *part[1:], counts)]

    def effective_thresholds(self, thresholds: torch.Tensor) -> torch.Tensor:
        """Return the thresholds times their units: what magnitudes are compared to."""
        return thresholds if self.units is None else thresholds * self.units

    def of_layer(self, layer: MaskedLayer, thresholds: torch.Tensor) -> torch.Tensor:
        """Return a layer's thresholds times their units, in a shape that broadcasts against its view."""
        part = slice(layer.start, layer.stop)
        own = thresholds.detach()[part]
        return (own if self.units is None else own * self.units[part]).view(layer.threshold_shape)

    @torch.no_grad()
    def boolean(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return each layer's mask, in the shape of its weight."""
        return {
            layer.name: bool_mask(weight.reshape(layer.layout.view), self.of_layer(layer, thresholds)).view(
                weight.shape
            )
            for layer, weight in zip(self.layers, weights, strict=True)
        }

    @torch.no_grad()
    def viewed(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Yield the masks as zeros and ones, each in its layout's view."""
        for layer, weight in zip(self.layers, weights, strict=True):
            yield float_mask(weight.reshape(layer.layout.view).abs(), self.of_layer(layer, thresholds))

    @torch.no_grad()
    def count(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return how many weights of each layer remain, without waiting for the device."""
        count = self.kernels(thresholds.device).count
        groups = self._grouped(self.effective_thresholds(thresholds).detach(), weights)
        return torch.cat([count(*group).to(thresholds.device, non_blocking=True) for group in groups])

    @torch.no_grad()
    def set_back_collapsed(self, thresholds: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
        """Set the thresholds of collapsed layers back, without waiting for the device."""
        counts = self.count(thresholds, weights)
        if on_host(thresholds):
            self.collapse.set_back(thresholds, counts.tolist())
        else:
            self.collapse.set_back_on_device(thresholds, counts)

    def kernels(self, device: torch.device) -> Kernels:
        """Return the loops to compute with; looked up rather than stored, since a model must be picklable."""
        return kernels_on(device, self.backend)

    def extra_repr(self) -> str:
        return f"layers={len(self.layers)}, estimator={self.estimator!r}, backend={self.backend!r}"

    def _grouped(
        self, effective_thresholds: torch.Tensor, weights: Sequence[torch.Tensor]
    ) -> Iterator[tuple[Masking, torch.Tensor, Sequence[torch.Tensor]]]:
        """Yield groups of layers with their part of the flat thresholds, in network order."""
        if weights[0].device != self._grouped_on:
            self._group(weights)
        sizes = [sum(masking.sizes) for _, masking in self._groups]
        for (layers, masking), part in zip(self._groups, effective_thresholds.split(sizes), strict=True):
            group = weights[layers]
            yield masking, part.to(group[0].device), group

    def _group(self, weights: Sequence[torch.Tensor]) -> None:
        """Find the groups of layers for the devices that the weights are on now."""
        self._grouped_on = weights[0].device
        self._groups = [
            (slice(indices[0], indices[-1] + 1), Masking.of(self.estimator, [self.layers[i] for i in indices]))
            for indices in grouped([(weight.device, weight.numel()) for weight in weights])
        ]

    def _counted_in(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        counts = torch.tensor([layer.count for layer in self.layers], device=weights[0].device)
        return units_of(self.layers, weights).repeat_interleave(counts, output_size=self.layers[-1].stop)


def on_host(thresholds: torch.Tensor) -> bool:
    """True if values can be read without waiting for a device."""
    return thresholds.is_cpu

"""`mask_model`: any model, its weights masked by trainable thresholds.

The user's own code runs, unchanged, with the masked weights in place of its parameters. Not the traced graph: a
graph bakes in the mode it was traced in and whatever the example answered, while here train and eval, control flow,
hooks and every kind of layer (recurrent, attention, a subclass with its own forward, a raw parameter in a matmul)
behave as in the original by construction, and a tied weight has one mask because it is one tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import nn

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.compiled import compiled_kernels, repays
from dst_analyze.masking.estimators import ESTIMATORS
from dst_analyze.masking.layer import MaskedLayer, Threshold, grouped, lay_out, units_of
from dst_analyze.masking.operator import EAGER, Kernels, Masking, keep, kept, masked_weights
from dst_analyze.masking.substitution import Substitution
from dst_analyze.model.copying import copied
from dst_analyze.model.skip_cause import SkipCause
from dst_analyze.model.tracing import TracedModel, trace_model

Operator = Literal["auto", "eager", "compiled"]
Unit = Literal["one", "layer"]

OnCollapse = Literal["reset", "hold"]

COLLAPSED = 0.01  # a mask that keeps no more than this has collapsed (the paper's 99 %)
HELD = 0.9
"""What thresholds of a collapsed layer are multiplied by where it is held: just enough for more than 1 % to remain."""


class MaskedModel(nn.Module):
    """A model that computes with masked weights: call it as the original, train it with `sparsity_loss` added.

    ``model`` is a deep copy of the original with its own parameters under their own names; ``thresholds`` holds the
    thresholds of all layers in one flat parameter (one tensor for the optimizer, whatever the number of layers).
    A weight-standardised or normalised weight is masked before it is standardised: the zero is in the parameter.

    ``units`` is None, or what each threshold is counted in: it then stands at that many times its own value among the
    weights (`heights`). The regulariser sees thresholds as they are counted.
    """

    units: torch.Tensor | None

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[MaskedLayer, ...],
        *,
        estimator: str = "long-tail",
        compiled: bool = False,
        unit: Unit = "one",
        on_collapse: OnCollapse = "reset",
    ) -> None:
        super().__init__()
        self.model = model
        self.layers = layers
        self.estimator = estimator
        self.compiled = compiled
        self.auto_reset = True
        self.on_collapse = on_collapse
        self.resets: dict[str, int] = {layer.name: 0 for layer in layers}
        self.holds: dict[str, int] = {layer.name: 0 for layer in layers}
        self._substitution = Substitution(model, [layer.aliases for layer in layers])
        weights = self._weights()
        dtype = torch.float32  # at the least: half precision cannot resolve a threshold's small steps
        for weight in weights:
            dtype = torch.promote_types(dtype, weight.dtype)
        self.thresholds = nn.Parameter(torch.zeros(layers[-1].stop, dtype=dtype, device=weights[0].device))
        self.register_buffer("units", None if unit == "one" else self._counted_in(weights), persistent=False)
        self._groups = [
            (indices, Masking.of(estimator, [layers[i] for i in indices]))
            for indices in grouped([(weight.device, weight.numel()) for weight in weights])
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        weights, masked = self._weights(), self.masked_weights()
        if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            for weight, substitute in zip(weights, masked, strict=True):
                # torch picks some convolution kernels by this flag, and they round differently
                substitute.requires_grad_(weight.requires_grad)
        with self._substitution.of(masked):
            return self.model(*args, **kwargs)

    def masked_weights(self) -> list[torch.Tensor]:
        """P of every layer in order, computed once however often the model uses it."""
        counts = self._counts()
        masked = self._masked_weights(counts)
        return self._masked_weights(None) if counts and self._reset(counts) else masked

    def _masked_weights(self, counts: list[int] | None) -> list[torch.Tensor]:
        kernels = self._kernels
        return [
            weight
            for masking, thresholds, weights in self._grouped(self.heights())
            for weight in masked_weights(masking, kernels, thresholds, weights, counts)
        ]

    def heights(self) -> torch.Tensor:
        """Where the thresholds stand among the weights: what a magnitude must exceed to stay."""
        return self.thresholds if self.units is None else self.thresholds * self.units

    def sparsity_loss(self) -> torch.Tensor:
        """L_s = Σ exp(−t) over all thresholds; the objective is loss + α · L_s."""
        return torch.exp(-self.thresholds).sum()

    def remaining(self) -> dict[str, float]:
        """Each layer's remaining ratio, by name, in network order."""
        pairs = zip(self.layers, self._kept(), self._weights(), strict=True)
        return {layer.name: kept / weight.numel() for layer, kept, weight in pairs}

    def model_remaining(self) -> float:
        """The share of all masked weights that remains."""
        return sum(self._kept()) / sum(weight.numel() for weight in self._weights())

    @torch.no_grad()
    def masks(self) -> dict[str, torch.Tensor]:
        """Each layer's mask, in the shape of its weight."""
        return {
            layer.name: keep(weight.reshape(layer.layout.view), self._threshold(layer)).view(weight.shape)
            for layer, weight in zip(self.layers, self._weights(), strict=True)
        }

    @torch.no_grad()
    def viewed_masks(self) -> Iterator[torch.Tensor]:
        """The masks in network order as zeros and ones, each in the view whose axes the layer's layout speaks of."""
        for layer, weight in zip(self.layers, self._weights(), strict=True):
            yield kept(weight.reshape(layer.layout.view).abs(), self._threshold(layer))

    def layer_weights(self) -> dict[str, torch.Tensor]:
        """Each layer's weight by name, unmasked."""
        return {layer.name: weight for layer, weight in zip(self.layers, self._weights(), strict=True)}

    @torch.no_grad()
    def layer_thresholds(self) -> dict[str, torch.Tensor]:
        """Where each layer's thresholds stand, by name; without units these are views into the one flat parameter:
        writing to one sets it."""
        return {layer.name: self._threshold(layer) for layer in self.layers}

    def reset_collapsed(self) -> list[str]:
        """Set the thresholds of collapsed layers back, to zero or just enough to hold them, and name the layers.

        A layer whose mask keeps at most 1 % counts as collapsed; recurrent layers are exempt, as in the paper. Every
        forward pass in training mode does this by itself while it computes the masks (`auto_reset`); only a model
        under torch.compile needs the call, before each step.
        """
        return self._reset(self._kept())

    @torch.no_grad()
    def unmasked(self) -> nn.Module:
        """An ordinary model of the original's class, the zeros written into its weights, thresholds gone."""
        plain = copy.deepcopy(self.model)
        for layer, mask in zip(self.layers, self.masks().values(), strict=True):
            plain.get_parameter(layer.aliases[0]).mul_(mask)
        return plain

    @torch.no_grad()
    def typical_magnitudes(self) -> torch.Tensor:
        """The mean magnitude of the row that each threshold belongs to, in the order of the flat thresholds."""
        return torch.cat(
            [
                layer.per_threshold(weight.abs().reshape(layer.layout.view)).flatten().to(self.thresholds)
                for layer, weight in zip(self.layers, self._weights(), strict=True)
            ]
        )

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        """The original's own parameters."""
        return self.model.parameters()

    def threshold_parameters(self) -> Iterator[nn.Parameter]:
        """The thresholds, for an optimizer group without weight decay."""
        yield self.thresholds

    def extra_repr(self) -> str:
        return f"layers={len(self.layers)}, thresholds={self.thresholds.numel()}, estimator={self.estimator!r}"

    def _repr_html_(self) -> str:
        from dst_analyze.html import html_table

        weights, thresholds = self.layer_weights(), self.layer_thresholds()
        rows = [
            (
                name,
                "x".join(map(str, weights[name].shape)),
                f"{100 * ratio:.1f}",
                thresholds[name].numel(),
                f"{float(thresholds[name].mean()):.3g}",
                self.resets[name],
            )
            for name, ratio in self.remaining().items()
        ]
        lead = f"{type(self.model).__name__}, masked: {self.model_remaining():.1%} of its weights remain"
        return html_table(lead, ["layer", "shape", "keeps %", "thresholds", "their mean", "resets"], rows)

    @property
    def _kernels(self) -> Kernels:
        # Looked up rather than stored: a model must be picklable. torch.compile traces the eager loops and fuses them.
        if not self.compiled or torch.compiler.is_compiling():
            return EAGER
        return compiled_kernels() or EAGER

    def _counted_in(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        counts = torch.tensor([layer.count for layer in self.layers], device=weights[0].device)
        return units_of(self.layers, weights).repeat_interleave(counts, output_size=self.layers[-1].stop)

    def _weights(self) -> list[torch.Tensor]:
        return self._substitution.current()

    def _threshold(self, layer: MaskedLayer) -> torch.Tensor:
        part = slice(layer.start, layer.stop)
        thresholds = self.thresholds.detach()[part]
        return (thresholds if self.units is None else thresholds * self.units[part]).view(layer.threshold_shape)

    def _grouped(self, thresholds: torch.Tensor) -> Iterator[tuple[Masking, torch.Tensor, list[torch.Tensor]]]:
        """Groups of layers with their part of the flat thresholds, in network order."""
        weights = self._weights()
        sizes = [sum(masking.sizes) for _, masking in self._groups]
        parts = thresholds.split(sizes) if len(sizes) > 1 else [thresholds]
        for (indices, masking), part in zip(self._groups, parts, strict=True):
            group = [weights[i] for i in indices]
            yield masking, part.to(group[0].device), group

    def _counts(self) -> list[int] | None:
        """A list for the forward pass to count remaining weights into, where somebody will look at it."""
        return [] if self.training and self.auto_reset and not torch.compiler.is_compiling() else None

    @torch.no_grad()
    def _reset(self, kept: Sequence[int]) -> list[str]:
        names = []
        for layer, count, weight in zip(self.layers, kept, self._weights(), strict=True):
            if count > COLLAPSED * weight.numel() or layer.recurrent:
                continue
            thresholds = self.thresholds[layer.start : layer.stop]
            # Thresholds that prune nothing have nothing to give back: a layer of zeros is empty, not collapsed.
            if bool((thresholds > 0).any()):
                hold = self.on_collapse == "hold"
                thresholds.mul_(HELD if hold else 0.0)
                (self.holds if hold else self.resets)[layer.name] += 1
                names.append(layer.name)
        return names

    @torch.no_grad()
    def _kept(self) -> list[int]:
        """How many weights of each layer remain."""
        count = self._kernels.count
        groups = self._grouped(self.heights().detach())
        return [each for masking, thresholds, weights in groups for each in count(masking, thresholds, weights)]


def mask_model(
    model: nn.Module | TracedModel,
    example_inputs: Any = None,
    *,
    threshold: Threshold = "vector",
    estimator: str = "long-tail",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    operator: Operator = "auto",
    unit: Unit = "one",
    on_collapse: OnCollapse = "reset",
    steps: int = 0,
) -> MaskedModel:
    """A masked copy of a model; the original is untouched.

    ``threshold``: one per output row ("vector", the paper's choice), one per matrix ("scalar"), one per weight
    ("matrix"). ``estimator``: "long-tail" (the paper's) or "clipped" straight-through. ``operator``: "compiled" runs
    the masking in loops compiled by torch, "eager" always works, "auto" compiles where a compiler is found and a
    training of ``steps`` steps repays it. ``unit``: thresholds count in "one" and the same unit (the paper's), or each
    in the mean magnitude that the weights of its "layer" have now. ``on_collapse``: thresholds of a layer that keeps at
    most 1 % are "reset" to zero (the paper's), or lowered by a tenth to "hold" it there.
    """
    if unit not in get_args(Unit):
        raise OptionError(f"unknown unit {unit!r}", hint=f"choose one of {', '.join(get_args(Unit))}")
    if on_collapse not in get_args(OnCollapse):
        raise OptionError(f"cannot {on_collapse!r} layers", hint=f"choose one of {', '.join(get_args(OnCollapse))}")
    if estimator not in ESTIMATORS:
        raise OptionError(f"unknown estimator {estimator!r}", hint=f"choose one of {', '.join(ESTIMATORS)}")
    if operator not in get_args(Operator):
        raise OptionError(f"unknown operator {operator!r}", hint=f"choose one of {', '.join(get_args(Operator))}")
    if isinstance(model, TracedModel):
        traced = model
    else:
        refuse_masked(model)
        traced = trace_model(model, example_inputs, include=include, exclude=exclude)
    if not traced.layers:
        raise ModelError(
            f"nothing in the model is left to mask: {_why_nothing(traced)}",
            hint="`dst-analyze inspect` lists what was skipped and why",
        )
    weights = sum(layer.params for layer in traced.layers)
    wanted = operator == "compiled" or (operator == "auto" and repays(weights, steps))
    compiled = wanted and compiled_kernels() is not None
    if operator == "compiled" and not compiled:
        raise OptionError(
            "--operator compiled: no working C++ compiler was found",
            hint="install one (g++ or clang++), or use --operator eager, which gives the same results",
        )
    layers = lay_out(traced.layers, threshold)
    return MaskedModel(
        copied(traced.model), layers, estimator=estimator, compiled=compiled, unit=unit, on_collapse=on_collapse
    )


def _why_nothing(traced: TracedModel) -> str:
    if any(skipped.cause in (SkipCause.NOT_INCLUDED, SkipCause.EXCLUDED) for skipped in traced.skipped):
        return "--include and --exclude leave no layer"
    quantised = [module for module in traced.model.modules() if ".quantized" in type(module).__module__]
    if quantised:
        return f"it is quantised ({type(quantised[0]).__name__}), mask the model it was made from"
    wrong = next((skipped for skipped in traced.skipped if skipped.cause is SkipCause.DTYPE), None)
    return f"{wrong.name}: {wrong.reason}" if wrong else "no weight reaches a matmul or a convolution"


def refuse_masked(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, MaskedModel):
            raise ModelError(
                "the model is masked already", place=name or type(model).__name__, hint="pass masked.unmasked() instead"
            )

"""`mask_model`: any model, its weights masked by trainable thresholds.

A masked model has two forms that give the same bits. As a graph: the traced graph, rewritten so that one node computes
all masked weights (`fx_pass.py`). As modules: the user's own code, with the masked weights in place of its parameters,
which reaches every model by construction. The graph runs where it is proven equal (`graph_forms.py`), the modules
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import nn

from dst_analyze.deprecation import renamed_arguments
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.checkpointing import Running
from dst_analyze.masking.collapse import OnCollapse
from dst_analyze.masking.estimators import ESTIMATORS
from dst_analyze.masking.forms import GraphForm
from dst_analyze.masking.graph_forms import GraphForms
from dst_analyze.masking.kernels.c_backend import compiled_kernels, repays
from dst_analyze.masking.kernels.choice import Backend
from dst_analyze.masking.layer import MaskedLayer, Threshold, flat_layout
from dst_analyze.masking.masks import Masks, ThresholdScale
from dst_analyze.masking.parameter_swap import Substitution
from dst_analyze.model.copying import deep_copied
from dst_analyze.model.isolation import deep_copy
from dst_analyze.model.tracing.skip_cause import SkipCause
from dst_analyze.model.tracing.trace import TracedModel, trace_model

AskedBackend = Literal["auto", "eager", "compiled"]
AskedForm = Literal["auto", "graph", "modules"]


class MaskedModel(GraphForms):
    """A model that computes with masked weights; train it with `sparsity_loss` added to the loss.

    A weight-standardised or normalised weight is masked before it is standardised: the zeros are in the parameter.
    Make one with `mask_model`.

    Attributes:
        model: A deep copy of the original, with parameters of the same names.
        thresholds: The thresholds of all layers as one flat parameter, which is a single tensor for the optimizer.
        masking: The module that computes the masked weights of all layers.
        constants: Tensors that the graphs need and the model does not have.

    Example:
        >>> import dst_analyze, torch
        >>> masked = dst_analyze.mask_model(torch.nn.Linear(4, 8), torch.randn(2, 4))
        >>> (masked(torch.randn(2, 4)).sum() + 1e-4 * masked.sparsity_loss()).backward()
        >>> masked.thresholds.grad.shape
        torch.Size([8])
    """

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[MaskedLayer, ...],
        *,
        estimator: str = "long-tail",
        backend: Backend = "eager",
        threshold_scale: ThresholdScale = "one",
        on_collapse: OnCollapse = "reset",
    ) -> None:
        super().__init__()
        self.model = model
        self._substitution = Substitution(model, [layer.aliases for layer in layers])
        weights = self._weights()
        self.masking = Masks(
            layers,
            weights,
            estimator=estimator,
            backend=backend,
            threshold_scale=threshold_scale,
            on_collapse=on_collapse,
        )
        self.running = Running(self._substitution, self.masking)
        self.constants = nn.ModuleDict()
        dtype = torch.float32  # or wider: half precision cannot hold the small steps of a threshold
        for weight in weights:
            dtype = torch.promote_types(dtype, weight.dtype)
        self.thresholds = nn.Parameter(torch.zeros(layers[-1].stop, dtype=dtype, device=weights[0].device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with its masked weights, as a graph if that is proven to equal the user's code."""
        form = self._forms["train" if self.training else "eval"]
        if isinstance(form, GraphForm):
            tensors = form.tensors(self, args, kwargs)
            if tensors is not None:
                try:
                    output = self.graph_module_of(form).forward(*tensors)
                    return output if form.output.plain else form.output.rebuild(output)
                except (RuntimeError, TypeError, ValueError, IndexError) as error:
                    if isinstance(error, torch.OutOfMemoryError):
                        raise
                # Wrong inputs: the modules raise too, and name the line of the user's code.
        return self.run_modules(*args, **kwargs)

    def run_modules(self, *args: Any, **kwargs: Any) -> Any:
        """Run the user's code with the masked weights in place of its parameters; every form must equal this."""
        with self.running.on(self.masked_weights):
            return self.model(*args, **kwargs)

    def masked_weights(self) -> Sequence[torch.Tensor]:
        """Return the masked weight P of every layer, in network order."""
        masked: Sequence[torch.Tensor] = self.masking(self.thresholds, self._weights())
        return masked

    def effective_thresholds(self) -> torch.Tensor:
        """Return the thresholds times their units: what magnitudes are compared to."""
        return self.masking.effective_thresholds(self.thresholds)

    def sparsity_loss(self) -> torch.Tensor:
        """Return L_s = Σ exp(−t) over all thresholds; the objective is loss + α · L_s."""
        return torch.exp(-self.thresholds).sum()

    def add_sparsity_gradient(self, alpha: float) -> None:
        """Add the gradient of α · L_s to the thresholds' gradient, in place of `sparsity_loss`.

        Call it between backward and step. It adds −α · exp(−t), equal to the bit to autograd's gradient of
        ``alpha * masked.sparsity_loss()``.
        """
        thresholds = self.thresholds
        gradient, own = thresholds.detach().neg().exp_().mul_(alpha), thresholds.grad
        if own is None:
            thresholds.grad = gradient.neg_()
        else:
            own.detach().sub_(gradient)

    def remaining(self) -> dict[str, float]:
        """Return each layer's remaining ratio, by name, in network order."""
        pairs = zip(self.layers, self._remaining_counts(), self._weights(), strict=True)
        return {layer.name: kept / weight.numel() for layer, kept, weight in pairs}

    def model_remaining(self) -> float:
        """Return the share of all masked weights that remains."""
        return sum(self._remaining_counts()) / sum(weight.numel() for weight in self._weights())

    def masks(self) -> dict[str, torch.Tensor]:
        """Return each layer's mask by name, in the shape of its weight."""
        return self.masking.boolean(self.thresholds, self._weights())

    def viewed_masks(self) -> Iterator[torch.Tensor]:
        """Yield the masks in network order as zeros and ones, each in its layout's view."""
        return self.masking.viewed(self.thresholds, self._weights())

    def layer_weights(self) -> dict[str, torch.Tensor]:
        """Return each layer's weight by name, unmasked."""
        return {layer.name: weight for layer, weight in zip(self.layers, self._weights(), strict=True)}

    @torch.no_grad()
    def layer_thresholds(self) -> dict[str, torch.Tensor]:
        """Return each layer's thresholds by name, times their units.

        With ``threshold_scale="one"`` these are views of the flat parameter: writing to them sets the thresholds.
        """
        return {layer.name: self.masking.of_layer(layer, self.thresholds) for layer in self.layers}

    def reset_collapsed(self) -> list[str]:
        """Reset or hold the thresholds of collapsed layers, and return the layers' names.

        A layer whose mask keeps at most 1 % counts as collapsed; recurrent layers are exempt, as in the paper. Forward
        passes in training mode do this automatically (`auto_reset`); a model under torch.compile needs the call before
        each step.
        """
        return self.masking.collapse.set_back(self.thresholds, self._remaining_counts())

    def set_back_collapsed(self) -> None:
        """Do what `reset_collapsed` does without naming the layers, which would wait for a GPU."""
        self.masking.set_back_collapsed(self.thresholds, self._weights())

    @torch.no_grad()
    def write_zeros(self) -> None:
        """Write the zeros of the masks into the model's weights."""
        for weight, mask in zip(self._weights(), self.masks().values(), strict=True):
            weight.mul_(mask)

    @torch.no_grad()
    def unmasked(self) -> nn.Module:
        """Return a model of the original's class, with pruned weights set to zero and no thresholds."""
        plain = deep_copied(self.model)
        for layer, mask in zip(self.layers, self.masks().values(), strict=True):
            plain.get_parameter(layer.aliases[0]).mul_(mask)
        return plain

    @torch.no_grad()
    def typical_magnitudes(self) -> torch.Tensor:
        """Return the mean magnitude of each threshold's weights, in the order of the flat thresholds."""
        return torch.cat(
            [
                layer.per_threshold(weight.abs().reshape(layer.layout.view)).flatten().to(self.thresholds)
                for layer, weight in zip(self.layers, self._weights(), strict=True)
            ]
        )

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        """Return the model's parameters, without the thresholds."""
        return self.model.parameters()

    def threshold_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the thresholds, for an optimizer group without weight decay."""
        yield self.thresholds

    @property
    def layers(self) -> tuple[MaskedLayer, ...]:
        """The masked weights in network order."""
        return self.masking.layers

    @property
    def units(self) -> torch.Tensor | None:
        """The unit of each threshold; None if thresholds are compared to magnitudes as they are."""
        return self.masking.units

    @property
    def resets(self) -> dict[str, int]:
        """How often each layer's thresholds were reset to zero."""
        return self.masking.collapse.resets

    @property
    def holds(self) -> dict[str, int]:
        """How often each layer's thresholds were lowered to hold it."""
        return self.masking.collapse.holds

    @property
    def auto_reset(self) -> bool:
        """True if forward passes in training mode reset or hold collapsed layers."""
        return self.masking.auto_reset

    @auto_reset.setter
    def auto_reset(self, value: bool) -> None:
        self.masking.auto_reset = value

    def extra_repr(self) -> str:
        """Return the counts of layers and thresholds, and the form."""
        return f"layers={len(self.layers)}, thresholds={self.thresholds.numel()}, form={self.form}"

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

    def _weights(self) -> list[torch.Tensor]:
        return self._substitution.current()

    def _remaining_counts(self) -> list[int]:
        """Return how many weights of each layer remain."""
        counts: list[int] = self.masking.count(self.thresholds, self._weights()).tolist()
        return counts


@renamed_arguments(operator="backend", unit="threshold_scale")
def mask_model(
    model: nn.Module | TracedModel,
    example_inputs: Any = None,
    *,
    threshold: Threshold = "vector",
    estimator: str = "long-tail",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    backend: AskedBackend = "auto",
    threshold_scale: ThresholdScale = "one",
    on_collapse: OnCollapse = "reset",
    steps: int | None = None,
    form: AskedForm = "auto",
) -> MaskedModel:
    """Return a masked copy of a model, ready to be trained; the original does not change.

    Args:
        model: Any module, or the `TracedModel` of one.
        example_inputs: A tensor, a tuple of arguments or a dict of keywords; not needed with a `TracedModel`.
        threshold: One per output row ("vector", the paper's), per matrix ("scalar") or per weight ("matrix").
        estimator: "long-tail" (the paper's) or "clipped" straight-through.
        include: Shell patterns of the layers to mask; without any, all layers.
        exclude: Shell patterns of the layers not to mask.
        backend: "compiled" computes masks in loops built by the machine's C compiler, "eager" in torch's operations.
            On a CUDA device, all but "eager" take Triton kernels, or grouped operations without Triton.
            "auto" takes the compiled loops from the cache, or builds them during the first steps; given ``steps``, it
            compiles first if a training of that length repays it, so that the same call always gives the same bits.
        threshold_scale: "one" compares thresholds to magnitudes as they are (the paper's); "layer" multiplies them by
            the mean magnitude that the weights of their layer have now.
        on_collapse: Thresholds of a layer that keeps at most 1 % are "reset" to zero (the paper's), or lowered by a
            tenth to "hold" it there.
        steps: The number of training steps, if known.
        form: "auto" runs the rewritten torch.fx graph if it is proven equal to the model's code to the bit, else that
            code; "graph" requires the graph; "modules" never uses it. `MaskedModel.form` says which it is.

    Returns:
        The masked model, with thresholds of zero, which mask nothing.

    Raises:
        OptionError: An option has an unknown value, a pattern matches no layer, or there is no C compiler for
            ``backend="compiled"``.
        ModelError: No weight is left to mask; or ``form="graph"`` and the graph is not proven equal.

    Example:
        >>> import dst_analyze, torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> masked = dst_analyze.mask_model(model, torch.randn(2, 4))
        >>> masked.remaining()
        {'0': 1.0, '2': 1.0}
    """
    if form not in get_args(AskedForm):
        raise OptionError(f"unknown form {form!r}", hint=f"choose one of {', '.join(get_args(AskedForm))}")
    if isinstance(model, TracedModel):
        traced = model
    else:
        refuse_masked(model)
        traced = trace_model(model, example_inputs, include=include, exclude=exclude)
    masked = masked_in_place(
        replace(traced, model=deep_copy(traced.model)),
        threshold=threshold,
        estimator=estimator,
        backend=backend,
        threshold_scale=threshold_scale,
        on_collapse=on_collapse,
        steps=steps,
    )
    if form == "modules":
        return masked
    choice = masked.find_forms(traced)
    if form == "graph" and not choice.graph:
        raise ModelError(
            f"the model cannot be trained as a graph: {choice.reason}",
            place=choice.place,
            hint='form="auto" trains it as modules, with the same results',
        )
    return masked


def masked_in_place(
    traced: TracedModel,
    *,
    threshold: Threshold,
    estimator: str,
    backend: AskedBackend,
    threshold_scale: ThresholdScale,
    on_collapse: OnCollapse,
    steps: int | None = None,
) -> MaskedModel:
    """Return a masked model around the traced one itself, run as modules; arguments are those of `mask_model`."""
    if threshold_scale not in get_args(ThresholdScale):
        raise OptionError(
            f"unknown threshold scale {threshold_scale!r}", hint=f"choose one of {', '.join(get_args(ThresholdScale))}"
        )
    if on_collapse not in get_args(OnCollapse):
        raise OptionError(
            f"unknown action on collapse {on_collapse!r}", hint=f"choose one of {', '.join(get_args(OnCollapse))}"
        )
    if estimator not in ESTIMATORS:
        raise OptionError(f"unknown estimator {estimator!r}", hint=f"choose one of {', '.join(ESTIMATORS)}")
    if backend not in get_args(AskedBackend):
        raise OptionError(f"unknown backend {backend!r}", hint=f"choose one of {', '.join(get_args(AskedBackend))}")
    if not traced.layers:
        raise ModelError(
            f"nothing in the model is left to mask: {_why_nothing(traced)}",
            hint="`dst-analyze inspect` lists what was skipped and why",
        )
    return MaskedModel(
        traced.model,
        flat_layout(traced.layers, threshold),
        estimator=estimator,
        backend=_chosen_backend(backend, sum(layer.params for layer in traced.layers), steps),
        threshold_scale=threshold_scale,
        on_collapse=on_collapse,
    )


def _chosen_backend(asked: AskedBackend, weights: int, steps: int | None) -> Backend:
    """Return the loops to compute masks with."""
    if asked == "auto" and steps is None:
        return "when-ready"
    wanted = asked == "compiled" or (asked == "auto" and repays(weights, steps or 0))
    if wanted and compiled_kernels() is not None:
        return "compiled"
    if asked == "compiled":
        raise OptionError(
            "--backend compiled: no working C compiler was found",
            hint="install one (gcc or clang), or use --backend eager, which gives the same results",
        )
    return "eager" if asked == "eager" else "eager-on-cpu"


def _why_nothing(traced: TracedModel) -> str:
    if any(skipped.cause in (SkipCause.NOT_INCLUDED, SkipCause.EXCLUDED) for skipped in traced.skipped):
        return "--include and --exclude leave no layer"
    quantised = [module for module in traced.model.modules() if ".quantized" in type(module).__module__]
    if quantised:
        return f"it is quantised ({type(quantised[0]).__name__}), mask the model it was made from"
    wrong = next((skipped for skipped in traced.skipped if skipped.cause is SkipCause.DTYPE), None)
    return f"{wrong.name}: {wrong.reason}" if wrong else "no weight reaches a matmul or a convolution"


def refuse_masked(model: nn.Module) -> None:
    """Raise a ModelError if the model, or a part of it, is masked already."""
    for name, module in model.named_modules():
        if isinstance(module, MaskedModel):
            raise ModelError(
                "the model is masked already", place=name or type(model).__name__, hint="pass masked.unmasked() instead"
            )

"""`attach`: masks and thresholds upon a model that somebody's own loop trains, in place, and gone afterwards.

The model stays the same object with the same parameters and `state_dict`. While it is attached, the methods that run
it compute with masked weights, and each step of its optimizer is followed by one of the thresholds.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from dst_analyze.errors import ModelError
from dst_analyze.masking.collapse import OnCollapse
from dst_analyze.masking.layer import Threshold
from dst_analyze.masking.masked import AskedBackend, MaskedModel, masked_in_place
from dst_analyze.masking.masks import ThresholdScale
from dst_analyze.masking.training.optimizer_steps import Optimizers, OptimizerSteps
from dst_analyze.masking.training.threshold_training import ThresholdTraining
from dst_analyze.model.tracing.trace import TracedModel, trace_model

_ATTACHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class StepTraining(Protocol):
    """What becomes of the gradients that thresholds collect: they are trained, or only looked at."""

    @property
    def steps(self) -> int:
        """How many steps have been taken."""

    def weights(self) -> Sequence[torch.Tensor]:
        """Return what the model computes with in place of its weights."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Do the thresholds' part of a step."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


class Observer(Protocol):
    """What looks at a model while it is attached."""

    def on_step(self, step: int) -> None:
        """Look at it after a step."""

    def end(self, attached: AttachedMasks) -> None:
        """Look at it for the last time, its masks still in place."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""


class AttachedMasks:
    """Masks upon a model; leave its ``with`` block, or call `detach`, to have the model back as it was.

    Attributes:
        model: The model, without what torch.compile or DDP has put around it.
        masked: Its layers, masks and thresholds.
        written: True if leaving the block writes the zeros of the masks into the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        masked: MaskedModel,
        training: StepTraining,
        optimizers: Optimizers | None,
        *,
        methods: Sequence[str] = (),
        written: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self.model, self.masked, self.training, self.written = model, masked, training, written
        self._observer = observer
        self._compiled = False
        self.optimizer_steps = 0
        weights = masked.layer_weights().values()
        self._following = OptimizerSteps((w for w in weights if isinstance(w, nn.Parameter)), optimizers, self._step)
        self._entries = [EntryPoint(self, name) for name in ("forward", *methods)]
        _ATTACHED.add(model)

    def __enter__(self) -> AttachedMasks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            if kind is None and not self.training.steps:
                raise self._untrained()
            if kind is None and self._observer is not None:
                self._observer.end(self)
        finally:
            self.detach(write_zeros=self.written and kind is None)

    def detach(self, *, write_zeros: bool = True) -> None:
        """Give the model back: the zeros written into its weights, or its weights untouched."""
        if self.model not in _ATTACHED:
            return
        _ATTACHED.discard(self.model)
        self._following.stop()
        for entry in self._entries:
            entry.remove()
        if write_zeros:
            self.masked.write_zeros()

    def run(self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a method of the model with masked weights, unless it runs within another one that does."""
        masked = self.masked
        if masked.running.now:
            return method(*args, **kwargs)
        if masked.masking.training is not self.model.training:
            masked.masking.training = self.model.training
        if torch.compiler.is_compiling():
            self._compiled = True
        elif self.model.training:
            self._start_anew()
        with masked.running.on(self.training.weights):
            return method(*args, **kwargs)

    def remaining(self) -> dict[str, float]:
        """Return each layer's remaining ratio, by name."""
        return self.masked.remaining()

    def model_remaining(self) -> float:
        """Return the share of all masked weights that remains."""
        return self.masked.model_remaining()

    def masks(self) -> dict[str, torch.Tensor]:
        """Return each layer's mask, in the shape of its weight."""
        return self.masked.masks()

    def sparsity_loss(self) -> torch.Tensor:
        """Return L_s = Σ exp(−t). The loop need not add it: the regulariser acts in the optimizer's steps."""
        return self.masked.sparsity_loss()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside those of the model and its optimizer."""
        observed = None if self._observer is None else self._observer.state_dict()
        return {"training": self.training.state_dict(), "observed": observed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; the model's and the optimizer's own are loaded as ever."""
        self.training.load_state_dict(state["training"])
        if self._observer is not None:
            self._observer.load_state_dict(state["observed"])

    def _start_anew(self) -> None:
        """Drop what thresholds have collected if the loop has dropped the weights' gradients without a step."""
        thresholds = self.masked.thresholds
        if thresholds.grad is not None and all(w.grad is None for w in self.masked.layer_weights().values()):
            thresholds.grad = None

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer_steps += 1
        before = self.training.steps
        self.training.after_step(optimizer)
        if self._compiled:
            self.masked.set_back_collapsed()
        if self._observer is not None and self.training.steps > before:
            self._observer.on_step(self.training.steps)

    def _untrained(self) -> ModelError:
        if not self.optimizer_steps:
            return ModelError(
                "no optimizer took a step inside the block, so nothing was pruned",
                place="attach()",
                hint="train inside the block, with an optimizer made from this model's parameters",
            )
        return ModelError(
            "the optimizer took steps, but none of them had gradients that came through the masks",
            place="attach()",
            hint="the loop must call the model itself, or name the method that it calls: attach(..., methods=['...'])",
        )


class EntryPoint:
    """A method of an attached model that computes with masked weights; in a copy of the model it is a plain one."""

    def __init__(self, attached: AttachedMasks, name: str) -> None:
        self.attached, self.name = attached, name
        model = attached.model
        self._own = model.__dict__.get(name)  # accelerate and others set a forward upon the instance
        self.original = getattr(model, name)
        functools.update_wrapper(self, self.original, updated=())
        model.__dict__[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the method, with masked weights as long as masks are attached."""
        if self.attached.model not in _ATTACHED:
            return self.original(*args, **kwargs)
        return self.attached.run(self.original, args, kwargs)

    def remove(self) -> None:
        """Put back what was there, unless something else stands there by now."""
        fields = self.attached.model.__dict__
        if fields.get(self.name) is not self:
            return
        del fields[self.name]
        if self._own is not None:
            fields[self.name] = self._own

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        model = memo.get(id(self.attached.model))
        if model is None:
            return self
        return copy.deepcopy(self._own, memo) if self._own is not None else plain_method(model, self.name)

    def __reduce__(self) -> Any:
        return plain_method, (self.attached.model, self.name)


def plain_method(model: nn.Module, name: str) -> types.MethodType:
    """Return a model's method as its class defines it."""
    return types.MethodType(getattr(type(model), name), model)


def attach(
    model: nn.Module,
    example_inputs: Any,
    optimizer: Optimizers | None = None,
    *,
    alpha: float,
    clock: float = 1.0,
    threshold: Threshold = "vector",
    estimator: str = "long-tail",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    backend: AskedBackend = "auto",
    threshold_scale: ThresholdScale = "one",
    on_collapse: OnCollapse = "reset",
    methods: Sequence[str] = (),
    write_zeros: bool = True,
) -> AttachedMasks:
    """Mask a model in place and train its thresholds while your own loop trains the weights.

    Nothing in the loop changes: the regulariser acts in the optimizer's steps, and the learning rate is followed
    through its schedule. Gradient accumulation, clipping, gradient scalers, autocast, torch.compile,
    gradient checkpointing and DDP work.

    Args:
        model: The model that the loop trains; it may be compiled or inside DDP.
        example_inputs: A tensor, a tuple of arguments or a dict of keywords.
        optimizer: The optimizer of its weights, or several; without one, it is found by its first step.
        alpha: Strength of the regulariser, taken literally: a `Study` takes the paper's.
        clock: The thresholds' learning rate over the weights'; above 1 their steps are bounded.
        threshold: One per output row ("vector", the paper's), per matrix ("scalar") or per weight ("matrix").
        estimator: "long-tail" (the paper's) or "clipped" straight-through.
        include: Shell patterns: only layers of such names are masked.
        exclude: Shell patterns: layers of such names are not masked.
        backend: How masked weights are computed, as in `mask_model`.
        threshold_scale: What thresholds count in, as in `mask_model`.
        on_collapse: What becomes of layers that keep at most 1 %, as in `mask_model`.
        methods: Methods beside ``forward`` that the loop calls, such as a LightningModule's ``training_step``.
        write_zeros: Leaving the block writes the zeros of the masks into the weights.

    Returns:
        A context manager; leaving it gives the model back.

    Raises:
        ModelError: The model is attached already, has nothing to mask, is sharded, or the optimizer is of another.

    Example:
        >>> import torch, dst_analyze as dst
        >>> model, x = torch.nn.Linear(8, 4), torch.randn(16, 8)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with dst.attach(model, x[:2], optimizer, alpha=1e-3) as masks:
        ...     for _ in range(5):
        ...         optimizer.zero_grad()
        ...         model(x).square().mean().backward()
        ...         optimizer.step()
        ...     kept = masks.remaining()
    """
    plain = attachable(model)
    traced = trace_model(plain, example_inputs, include=include, exclude=exclude)
    masked = masked_in_place(
        traced,
        threshold=threshold,
        estimator=estimator,
        backend=backend,
        threshold_scale=threshold_scale,
        on_collapse=on_collapse,
    )
    training = ThresholdTraining(masked, alpha, clock=clock)
    return AttachedMasks(plain, masked, training, optimizer, methods=methods, written=write_zeros)


def attachable(model: nn.Module) -> nn.Module:
    """Return the model itself, without what torch.compile or DDP has put around it, if masks can be attached to it."""
    plain = model
    while True:
        if isinstance(plain, nn.DataParallel):
            raise ModelError(
                "nn.DataParallel copies the model in every step, and masks would not be copied",
                place="model",
                hint="torch recommends DistributedDataParallel in its place, and that works",
            )
        inner = getattr(plain, "_orig_mod", None)
        if inner is None and isinstance(plain, nn.parallel.DistributedDataParallel):
            inner = plain.module
        if not isinstance(inner, nn.Module):
            break
        plain = inner
    if any(module in _ATTACHED for module in plain.modules()):
        raise ModelError("masks are attached to this model already", place="model", hint="leave the other block first")
    if any(hasattr(parameter, "placements") or hasattr(parameter, "_sharded_size") for parameter in plain.parameters()):
        raise ModelError(
            "the weights are sharded over processes (FSDP), and masks need whole rows",
            place="model",
            hint="train it with DistributedDataParallel",
        )
    return plain


def same_layers(traced: TracedModel, model: nn.Module) -> bool:
    """True if a trace of another copy of this model holds for it: all its weights are there, in the same shapes."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}
    return all(
        shapes.get(layer.parameter) == tuple(traced.model.get_parameter(layer.parameter).shape)
        for layer in traced.layers
    )

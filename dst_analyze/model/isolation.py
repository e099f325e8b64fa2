"""Isolation of a user's model: deep copies, and restored modes, random numbers and settings."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from dst_analyze.errors import ModelError
from dst_analyze.model.copying import deep_copied
from dst_analyze.model.meta_values import MetaValues, is_meta


@contextmanager
def preserved(model: nn.Module | None = None) -> Iterator[None]:
    """Restore modes, random numbers and settings on exit; without a model, all but the modes."""
    with ExitStack() as stack:
        if model is not None:
            stack.enter_context(preserved_modes(model))
        stack.enter_context(preserved_randomness())
        stack.enter_context(preserved_settings())
        yield


@contextmanager
def preserved_modes(model: nn.Module) -> Iterator[None]:
    """Restore the training flag of every submodule on exit.

    `model.train()` would lose the flags that a user set module by module.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


M = TypeVar("M", bound=nn.Module)


def in_mode(model: M, training: bool) -> M:
    """Put a user's model in a mode and return it: a `train` of its own may forget to."""
    model.train(training)
    return model


@contextmanager
def preserved_buffers(model: nn.Module) -> Iterator[None]:
    """Restore all buffers on exit, since some modules write to them even in eval mode."""
    kept = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, buffers in kept:
            module._buffers.clear()
            module._buffers.update(buffers)
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Restore every random generator on exit: torch's on each device in use, Python's, NumPy's."""
    cpu, python = torch.get_rng_state(), random.getstate()
    # Reading the state would initialize CUDA.
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        random.setstate(python)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore grad mode and default dtype on exit."""
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_grad_enabled(grad)
        torch.set_default_dtype(dtype)


@contextmanager
def quiet_inspection(model: nn.Module | None = None) -> Iterator[None]:
    """Run a model for inspection: without warnings, compiled code and attention's fast path.

    Warnings would appear once per run, and training shows them anyway. Compiled code and the fast path (one fused
    operation in eval mode) hide the operations that inspection looks for. A model on `meta`, if given, may read what
    follows from sizes alone.
    """
    known = MetaValues() if model is not None and is_meta(model) else nullcontext()
    stance = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), stance, known:
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def deep_copy(model: nn.Module) -> nn.Module:
    """Return a deep copy of a model; raise `ModelError` if it cannot be copied."""
    refuse_lazy(model)
    try:
        return deep_copied(model)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            hint="modules must survive copy.deepcopy",
        ) from error


def refuse_lazy(model: nn.Module) -> None:
    """Raise `ModelError` if a lazy module has no shape yet."""
    lazy = [name for name, p in model.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise ModelError(
            f"the model has parameters without a shape yet: {', '.join(lazy[:3])}{' ...' if len(lazy) > 3 else ''}",
            hint="lazy modules get their shape from a first forward pass: run the model once before you pass it",
        )

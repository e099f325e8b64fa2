"""Running a model with masked weights, also the parts that gradient checkpointing runs again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.utils.checkpoint as checkpoint

from dst_analyze.masking.masks import Masks
from dst_analyze.masking.parameter_swap import Substitution

Weights = Callable[[], Sequence[torch.Tensor]]
Entered = Callable[[], AbstractContextManager[None]]


class Running:
    """Calls of a model that computes with masked weights; ``now`` is true within one."""

    def __init__(self, substitution: Substitution, masking: Masks) -> None:
        self._substitution, self._masking = substitution, masking
        self.now = False

    @contextmanager
    def on(self, weights: Weights) -> Iterator[None]:
        """Put masked weights in place of the model's inside the block; ``weights`` computes them."""
        given, before = weights(), self.now
        self.now = True
        try:
            with self._substitution.of(given), self._recomputed(given, weights):
                yield
        finally:
            self.now = before

    def _recomputed(self, given: Sequence[torch.Tensor], weights: Weights) -> AbstractContextManager[None]:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling():  # compiled graphs have the weights as inputs
            return nullcontext()
        # Without "reentrant", the graph that is made again gives values alone; with it, gradients flow through it.
        return recomputed_within(lambda: self._again(lambda: given), lambda: self._again(weights))

    @contextmanager
    def _again(self, weights: Weights) -> Iterator[None]:
        """Put masked weights in place for what is run again, unless they are there; nothing is reset by that."""
        if self.now:
            yield
            return
        resets = self._masking.auto_reset
        self.now, self._masking.auto_reset = True, False
        try:
            with self._substitution.of(weights()):
                yield
        finally:
            self.now, self._masking.auto_reset = False, resets


@contextmanager
def recomputed_within(values: Entered, gradients: Entered) -> Iterator[None]:
    """Let all that is checkpointed inside the block be run again within a context.

    torch's own parameter for that, ``context_fn``, is given where `checkpoint` is called: in the user's code, or in
    that of the package that the model is from.

    Args:
        values: The context for ``use_reentrant=False``.
        gradients: The context for ``use_reentrant=True``.
    """
    module: Any = checkpoint
    before = module._checkpoint_without_reentrant_generator, module.CheckpointFunction
    _CONTEXTS.append((values, gradients))
    module._checkpoint_without_reentrant_generator, module.CheckpointFunction = _without_reentrant, _Reentrant
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator, module.CheckpointFunction = before
        _CONTEXTS.pop()


_CONTEXTS: list[tuple[Entered, Entered]] = []
_generator = checkpoint._checkpoint_without_reentrant_generator


def _without_reentrant(again: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _generator(_within(_CONTEXTS[-1][0], again), *args, **kwargs)


class _Reentrant(checkpoint.CheckpointFunction):
    """torch's own; only what is run again differs. Made once, as making such a class is slow."""

    @classmethod
    def apply(cls, again: Callable[..., Any], *args: Any) -> Any:
        return _function.apply(_within(_CONTEXTS[-1][1], again), *args)


_function = checkpoint.CheckpointFunction


def _within(context: Entered, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return run

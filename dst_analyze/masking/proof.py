"""The proof that a masked model's graph does the same as its modules, to the bit.

A copy of the masked model is run and trained for a step or two in each form: with the same random numbers, at two batch
sizes, with weights close to the model's and thresholds that prune. Outputs are compared, gradients of weights,
thresholds and inputs, buffers, plain attributes of modules, and how many random numbers were drawn.
"""

from __future__ import annotations

import hashlib
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dst_analyze.masking.kernels.choice import Backend
from dst_analyze.masking.masked_weight import EAGER
from dst_analyze.model.copying import deep_copied
from dst_analyze.model.graph.calls import CallShape, OutputShape
from dst_analyze.model.graph.packed_graph import PackedGraph
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.isolation import preserved
from dst_analyze.model.tracing.trace import Mode

if TYPE_CHECKING:
    from dst_analyze.masking.masked import MaskedModel

_SEED = 20200426
_NOISE = 65_537  # random numbers, repeated as needed: drawing a billion would take longer than the proof

Run = Callable[[Inputs], Any]


class Observed(NamedTuple):
    """A value that both forms of a model must share."""

    what: str
    value: Any
    is_attribute: bool = False  # set by forward; other differences may follow from it


class MismatchError(Exception):
    """Raised if the graph does not do the same as the modules."""


def prove_equal(
    masked: MaskedModel, mode: Mode, packed: PackedGraph, calls: CallShape, example: Inputs
) -> tuple[CallShape, OutputShape]:
    """Return the form of the calls that the graph can take, and that of the model's outputs.

    Raises:
        MismatchError: Graph and modules differ.
        UnsupportedCallError: The model returns an object that no graph returns.
    """
    example = example.to(masked.thresholds.device)
    other = None if packed.fixed_sizes else _other_batch(example)
    batches = [example] if other is None else [example, other]
    outputs: list[Any] = []
    # The proof holds for any loops that compute the masks, but they must not change during it.
    backend: Backend = "eager" if masked.masking.kernels(masked.thresholds.device) is EAGER else "compiled"
    with preserved(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = _copy(masked, mode, backend)
        drawn = _python_randomness()

        def run_modules(inputs: Inputs) -> Any:
            outputs.append(inputs.call(own.run_modules))
            return outputs[-1]

        expected = _observe(own, mode, batches, run_modules)
        if drawn != _python_randomness():
            raise MismatchError("the model draws random numbers from Python or numpy, which a graph would build in")
        shape = OutputShape.of(outputs[0])
        outputs.clear()
        own = _copy(masked, mode, backend)  # a new one, since training changed the first
        graph = own.make_graph(mode, packed)

        def run_graph(inputs: Inputs) -> Any:
            tensors = calls.flatten(inputs.args, inputs.kwargs)
            if tensors is None:
                raise MismatchError("the graph cannot take the call")
            return shape.rebuild(graph.forward(*tensors))

        found = _observe(own, mode, batches, run_graph)
    if len(expected) != len(found):
        raise MismatchError("the graph differs from the modules in what it returns")
    differing = [theirs for theirs, ours in zip(expected, found, strict=True) if theirs != ours]
    if differing:
        first = next((one for one in differing if one.is_attribute), differing[0])
        raise MismatchError(f"the graph differs from the modules in {first.what}")
    if len(batches) == 1 and not packed.fixed_sizes:  # the model runs at this batch size only
        calls = replace(calls, batch=-1, any_size=False)
    return calls, shape


def _copy(masked: MaskedModel, mode: Mode, backend: Backend) -> MaskedModel:
    """Return a half-pruned copy with slightly changed weights, so that no zero hides an error."""
    _seed()
    own = deep_copied(masked)
    own.masking.backend = backend
    own.train(mode == "train")
    noise = torch.randn(_NOISE)
    with torch.no_grad():
        for parameter in own.model.parameters():
            if parameter.is_floating_point() and (count := parameter.numel()):
                size = float(parameter.detach().float().abs().mean())
                beside = noise.repeat(1 + count // _NOISE)[:count].view(parameter.shape)
                parameter.add_(beside.to(parameter), alpha=0.1 * size + 0.01)
        magnitudes = own.typical_magnitudes()
        own.thresholds.copy_(0.5 * (magnitudes if own.units is None else magnitudes / own.units))
    return own


def _observe(own: MaskedModel, mode: Mode, batches: list[Inputs], run: Run) -> list[Observed]:
    """Run and train a copy, and return a record of all that is compared.

    A batch size that the model refuses is removed from ``batches``.
    """
    seen = list[Observed]()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.01)
    for inputs in list(batches):
        first = inputs is batches[0]
        leaves = inputs.map(lambda t: t.detach().clone().requires_grad_(t.is_floating_point() or t.is_complex()))
        try:
            results = tree_leaves(run(leaves.map(lambda t: t.clone())))  # no leaves: a model may write into its inputs
        except (MemoryError, MismatchError):
            raise
        except Exception:
            if first:
                raise
            batches[:] = batches[:1]
            continue
        seen += [Observed(f"output {at}", _digest(leaf)) for at, leaf in enumerate(results)]
        if mode == "eval" and not first:
            break
        loss = _loss(results)
        optimizer.zero_grad()
        if loss is not None:
            loss.backward()
        seen += [Observed(f"the gradient of {name}", _digest(p.grad)) for name, p in own.named_parameters()]
        seen += [Observed(f"the gradient of input {at}", _digest(t.grad)) for at, t in enumerate(leaves.tensors())]
        optimizer.step()
    if mode == "eval":  # as in evaluation: torch may use other kernels without gradients
        with torch.no_grad():
            results = tree_leaves(run(batches[0].map(lambda t: t.clone())))
        seen += [Observed(f"output {at} without gradients", _digest(leaf)) for at, leaf in enumerate(results)]
    seen += [Observed(f"buffer {name}", _digest(buffer)) for name, buffer in own.model.named_buffers()]
    seen += [
        Observed(f"the attribute {name}, which forward sets", value, is_attribute=True)
        for name, value in _attributes(own.model)
    ]
    seen.append(Observed("the random numbers it draws", _digest(torch.get_rng_state())))
    return seen


def _seed() -> None:
    torch.manual_seed(_SEED)
    random.seed(_SEED)
    np.random.seed(_SEED)


def _python_randomness() -> tuple[Any, ...]:
    """Return the states of Python's and numpy's generators."""
    return random.getstate(), repr(np.random.get_state(legacy=False))


def _other_batch(inputs: Inputs) -> Inputs | None:
    """Return inputs of twice the batch size; None if they have no batch axis."""
    size = inputs.batch_size
    if not any(tensor.ndim and tensor.shape[0] == size for tensor in inputs.tensors()):
        return None
    return inputs.map(lambda t: torch.cat([t, t.flip(0)]) if t.ndim and t.shape[0] == size else t)


def _loss(results: Sequence[Any]) -> torch.Tensor | None:
    """Return a weighted sum of all outputs with different weights; None if none can be differentiated."""
    loss: torch.Tensor | None = None
    for leaf in results:
        if not isinstance(leaf, torch.Tensor) or not leaf.requires_grad or not leaf.numel():
            continue
        values = torch.view_as_real(leaf) if leaf.is_complex() else leaf
        weights = torch.linspace(-1, 1, values.numel(), device=values.device).view(values.shape)
        part = (values.float() * weights).sum() / math.sqrt(values.numel())
        loss = part if loss is None else loss + part
    return loss


def _digest(value: Any) -> Any:
    """Return a tensor's shape, dtype and hash; for other values their repr."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    value = value.detach()
    if value.layout is not torch.strided:
        value = value.to_dense()
    flat = value.cpu().contiguous().flatten()
    data = flat.view(torch.uint8) if flat.numel() else flat.to(torch.uint8)
    return tuple(value.shape), str(value.dtype), hashlib.sha256(data.numpy()).hexdigest()


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the plain attributes of all modules, such as counters and flags, which a forward may set."""
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, bool | int | float | str) and key != "training":
                yield f"{name}.{key}".lstrip("."), value

"""`register_masked`: users' layer types that are masked, or are one node of the graph.

The audit recognises a weight by the matmul or convolution that it reaches. A layer that computes in another way
(element by element, or in compiled code) is registered here; a function is registered with `register_weight_op`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.tracing.axes import RowLayout
from dst_analyze.model.user_errors import describe_value


@dataclass(frozen=True)
class RegisteredWeight:
    """A masked parameter of a registered type: the axes that number its outputs, inputs and matrices."""

    parameter: str
    rows: tuple[int, ...]
    inputs: tuple[int, ...]
    blocks: tuple[int, ...]
    recurrent: bool

    def of(self, module: nn.Module) -> nn.Parameter | None:
        """Return the parameter of a module; None if it is None there, or computed (parametrized)."""
        if not hasattr(module, self.parameter):
            raise ModelError(
                f"a {type(module).__name__} has no parameter {self.parameter!r}",
                place=f"register_masked({type(module).__name__}, {self.parameter!r})",
                hint=f"it has {', '.join(name for name, _ in module.named_parameters(recurse=False)) or 'none'}",
            )
        return module._parameters.get(self.parameter)

    def layout(self, shape: Sequence[int], kind: str) -> RowLayout:
        """Return the layout of a weight of this shape."""
        axes = (*self.rows, *self.inputs, *self.blocks)
        if not all(-len(shape) <= axis < len(shape) for axis in axes):
            raise ModelError(
                f"{self.parameter} of {kind} has {len(shape)} axes, not {max(axes) + 1}",
                place=f"register_masked({kind}, {self.parameter!r})",
                hint="rows=0 says that its first axis numbers the output neurons",
            )
        rows, inputs, blocks = (
            tuple(sorted(axis % len(shape) for axis in axes)) for axes in (self.rows, self.inputs, self.blocks)
        )
        return RowLayout(tuple(shape), rows, blocks, inputs)


_MASKED: dict[type[nn.Module], dict[str, RegisteredWeight]] = {}
_WHOLE: set[type[nn.Module]] = set()


def register_masked(
    module_type: type[nn.Module],
    parameter: str = "weight",
    *,
    rows: int | Sequence[int] = 0,
    inputs: int | Sequence[int] = (),
    blocks: int | Sequence[int] = (),
    recurrent: bool = False,
) -> None:
    """Mask a parameter of a layer type, whatever the layer computes with it.

    Call it once per parameter, where worker processes run it too: in the model's file, in a module that it imports, or
    in an entry point (docs/how-to/extending.md).

    Args:
        module_type: The layer's class.
        parameter: The parameter's name in the layer.
        rows: Axes that number output neurons; each neuron gets a threshold.
        inputs: Axes that number the input channels that the weight reads.
        blocks: Axes that number separate matrices, for ``threshold="scalar"``.
        recurrent: True if the thresholds are not reset when the layer collapses.

    Raises:
        OptionError: ``module_type`` is not a class of nn.Module, or ``rows`` is empty.

    Example:
        >>> import dst_analyze, torch
        >>> class Distance(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.weight = torch.nn.Parameter(torch.randn(8, 4))
        ...     def forward(self, x):
        ...         return -(x[:, None] - self.weight).abs().sum(-1)
        >>> dst_analyze.register_masked(Distance, rows=0, inputs=1)
        >>> traced = dst_analyze.trace_model(Distance(), torch.randn(2, 4))
        >>> [layer.name for layer in traced.layers]
        ['weight']
    """
    given: object = module_type
    if not (isinstance(given, type) and issubclass(given, nn.Module)):
        raise OptionError(
            f"a layer type is a class of nn.Module, not {describe_value(given)}",
            place="register_masked",
            hint="give the layer's class: register_masked(MyLayer)",
        )
    weight = RegisteredWeight(parameter, _axes(rows), _axes(inputs), _axes(blocks), recurrent)
    if not weight.rows:
        raise OptionError(
            "a masked weight has at least one axis of rows",
            place=f"register_masked({module_type.__name__}, {parameter!r})",
            hint="rows=0 for one threshold per entry of the first axis",
        )
    _MASKED.setdefault(module_type, {})[parameter] = weight


def _axes(given: int | Sequence[int]) -> tuple[int, ...]:
    return (given,) if isinstance(given, int) else tuple(given)


def registered_weights(module: nn.Module) -> tuple[RegisteredWeight, ...]:
    """Return the masked parameters registered for a module's type or its nearest base class."""
    known = next((_MASKED[kind] for kind in type(module).__mro__ if kind in _MASKED), {})
    return tuple(known.values())


def keep_whole(module_type: type[nn.Module]) -> None:
    """Keep modules of this type as one node of the graph, since a rule is known for the whole module."""
    _WHOLE.add(module_type)


def is_whole(module: nn.Module) -> bool:
    """True if modules of this type are one node of the graph."""
    return not _WHOLE.isdisjoint(type(module).__mro__)

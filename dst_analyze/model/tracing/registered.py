"""Layer types that a user has taught the tool: which of their parameters are masked, and which stay whole in the graph.

The audit recognises a weight by the matmul or convolution it reaches. A layer that computes in another way (element by
element, in an extension of its own) is registered instead; `register_weight_op` is for a function in its place.
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
    """A parameter of a registered type, by the axes that number its output neurons, input channels and matrices."""

    parameter: str
    rows: tuple[int, ...]
    inputs: tuple[int, ...]
    blocks: tuple[int, ...]
    recurrent: bool

    def of(self, module: nn.Module) -> nn.Parameter | None:
        """The parameter in a module of the type; None where the module does without it, or computes it."""
        if not hasattr(module, self.parameter):
            raise ModelError(
                f"a {type(module).__name__} has no parameter {self.parameter!r}",
                place=f"register_masked({type(module).__name__}, {self.parameter!r})",
                hint=f"it has {', '.join(name for name, _ in module.named_parameters(recurse=False)) or 'none'}",
            )
        return module._parameters.get(self.parameter)

    def layout(self, shape: Sequence[int], kind: str) -> RowLayout:
        """How a weight of this shape is seen as rows."""
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
    """Have a parameter of your own layer type masked, whatever the layer computes with it.

    ``rows``: the axes that number output neurons, each of which gets a threshold. ``inputs``: those that number the
    input channels it reads. ``blocks``: those that hold separate matrices, for ``threshold="scalar"``. ``recurrent``:
    thresholds are not reset when the layer collapses. Call it once per parameter, where workers will see it too: in
    the model's own file, in a module it imports, or in an entry point (docs/extending.md).
    """
    given: object = module_type
    if not (isinstance(given, type) and issubclass(given, nn.Module)):
        raise OptionError(f"a layer type is a class of nn.Module, not {describe_value(given)}", place="register_masked")
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
    """What is registered for a module's type, or for the nearest type it is derived from."""
    known = next((_MASKED[kind] for kind in type(module).__mro__ if kind in _MASKED), {})
    return tuple(known.values())


def keep_whole(module_type: type[nn.Module]) -> None:
    """Show modules of this type as one node of the graph: somebody knows what they do as a whole."""
    _WHOLE.add(module_type)


def is_whole(module: nn.Module) -> bool:
    """True if modules of this type are one node of the graph."""
    return not _WHOLE.isdisjoint(type(module).__mro__)

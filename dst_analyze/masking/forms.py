"""The two forms of a masked model: the rewritten graph if proven equal, and the user's modules.

Proven means equal to the bit in outputs, gradients (weights, thresholds, inputs), buffers and random numbers drawn: in
the mode that it is used in, at two batch sizes, before and after an optimizer step, with masks that prune. A call that
the proof does not cover (other arguments, hooks added later, another kind of autocast) runs through the modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from dst_analyze.masking.fx_pass import has_hooks, inlined_modules
from dst_analyze.masking.proof import MismatchError, prove_equal
from dst_analyze.model.graph.calls import CallShape, OutputShape, UnsupportedCallError
from dst_analyze.model.graph.packed_graph import PackedGraph
from dst_analyze.model.graph.torch_calls import autocast_state
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.tracing.trace import Mode, NoGraph
from dst_analyze.model.user_errors import describe_error, place_of

if TYPE_CHECKING:
    from dst_analyze.masking.masked import MaskedModel

Form = Literal["graph", "modules"]

_MOST_PROOFS = 6  # of one graph, for other devices, dtypes or sizes; after that, calls run through the modules


@dataclass(frozen=True)
class FormChoice:
    """The form in which a masked model runs in each mode, and why it is not a graph.

    Attributes:
        train: Form in training mode.
        eval: Form in eval mode.
        reason: Why it is not the graph, in training mode if possible; empty if both modes run as graphs.
        place: Where in the user's code the reason is, if known.
    """

    train: Form
    eval: Form
    reason: str = ""
    place: str = ""

    @property
    def graph(self) -> bool:
        """True if both modes run as graphs."""
        return self.train == self.eval == "graph"

    def __str__(self) -> str:
        form = self.train if self.train == self.eval else f"{self.train} in training, {self.eval} in eval mode"
        place = f" ({self.place})" if self.place else ""
        return f"{form}: {self.reason}{place}" if self.reason else form


@dataclass
class GraphForm:
    """A graph that may replace the modules in one mode, and for which calls that is proven so far."""

    mode: Mode
    packed: PackedGraph
    example: Inputs
    calls: CallShape
    output: OutputShape
    proven: dict[tuple[Any, ...], bool] = field(default_factory=dict)

    def tensors(self, masked: MaskedModel, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return a call's tensors as the graph takes them; None if a proof for this call fails."""
        tensors = self.calls.flatten(args, kwargs)
        if tensors is None:
            return None
        training = self.mode == "train"
        if torch.compiler.is_compiling():
            return tensors
        for module in masked.inlined(self):
            if module.training is not training or has_hooks(module):
                return None
        key = self.surroundings(masked, tensors)
        if key not in self.proven:
            inputs = Inputs(args, kwargs) if self.packed.fixed_sizes else self.example
            self.proven[key] = len(self.proven) < _MOST_PROOFS and self._holds(masked, inputs)
        return tensors if self.proven[key] else None

    def surroundings(self, masked: MaskedModel, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Return what a proof holds for: device, dtype, autocast, and inputs' sizes if they matter."""
        sizes = tuple(tuple(tensor.shape) for tensor in tensors) if self.packed.fixed_sizes else ()
        return (masked.thresholds.device, masked.thresholds.dtype, *autocast_state(), *sizes)

    def _holds(self, masked: MaskedModel, inputs: Inputs) -> bool:
        try:
            prove_equal(masked, self.mode, self.packed, self.calls, inputs)
        except MemoryError:
            raise
        except Exception:
            return False
        return True


def find_form(
    masked: MaskedModel, mode: Mode, found: PackedGraph | NoGraph | None, example: Inputs
) -> GraphForm | NoGraph:
    """Return the proven `GraphForm` of a mode, or a `NoGraph` that says why there is none."""
    if found is None:
        return NoGraph("it was not traced in this mode")
    if isinstance(found, NoGraph):
        return found
    if masked.thresholds.is_meta:
        return NoGraph("weights without values (meta) prove nothing")
    try:
        calls = CallShape.of(example, any_size=found.rung == 1)
        for module in inlined_modules(found, masked.model):
            if has_hooks(module):
                raise UnsupportedCallError(f"hooks on a {type(module).__name__}")
        calls, output = prove_equal(masked, mode, found, calls, example)
    except (MismatchError, UnsupportedCallError) as error:
        return NoGraph(str(error))
    except MemoryError:
        raise
    except Exception as error:
        return NoGraph(f"the proof fails: {describe_error(error)}", place_of(error))
    form = GraphForm(mode, found, example, calls, output)
    form.proven[form.surroundings(masked, example.tensors())] = True
    return form

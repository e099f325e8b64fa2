"""The graphs that a masked model can run as: found, proven, built on first use, never copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from torch import fx, nn

from dst_analyze.errors import ModelError
from dst_analyze.masking.forms import FormChoice, GraphForm, find_form
from dst_analyze.masking.fx_pass import inlined_modules, rewrite_graph
from dst_analyze.masking.masks import Masks
from dst_analyze.model.graph.packed_graph import PackedGraph
from dst_analyze.model.tracing.trace import Mode, NoGraph, TracedModel

if TYPE_CHECKING:
    from dst_analyze.masking.masked import MaskedModel

_NOT_WANTED = NoGraph('form="modules" was asked for')
_MADE_ON_DEMAND = ("_graph_modules", "_inlined")  # never copied or pickled: a copy builds them again


class GraphForms(nn.Module):
    """The part of a `MaskedModel` that holds its graphs, one for training and one for eval mode."""

    model: nn.Module
    masking: Masks
    thresholds: nn.Parameter
    constants: nn.ModuleDict  # of the graphs, by mode

    def __init__(self) -> None:
        super().__init__()
        self._forms: dict[Mode, GraphForm | NoGraph] = {"train": _NOT_WANTED, "eval": _NOT_WANTED}
        self._graph_modules: dict[Mode, fx.GraphModule] = {}
        self._inlined: dict[Mode, list[nn.Module]] = {}

    def uses_graph(self, *args: Any, **kwargs: Any) -> bool:
        """True if a call with these arguments runs as a graph in the current mode."""
        form = self._forms["train" if self.training else "eval"]
        return isinstance(form, GraphForm) and form.tensors(self._masked, args, kwargs) is not None

    @property
    def form(self) -> FormChoice:
        """The form in which it runs in each mode, as a graph or as modules, and why."""
        train, eval_ = self._forms["train"], self._forms["eval"]
        why = next((form for form in (train, eval_) if isinstance(form, NoGraph)), None)
        return FormChoice(
            "graph" if isinstance(train, GraphForm) else "modules",
            "graph" if isinstance(eval_, GraphForm) else "modules",
            why.reason if why else "",
            why.place if why else "",
        )

    @property
    def graph_module(self) -> fx.GraphModule:
        """The rewritten graph of the current mode; it shares parameters, buffers and modules with this model.

        Called with the tensors of a call in order, it returns plain tuples, lists and dicts.

        Raises:
            ModelError: The model has no graph in this mode; the error says why.
        """
        form = self._forms["train" if self.training else "eval"]
        if isinstance(form, NoGraph):
            raise ModelError(
                f"the masked model has no graph in {'training' if self.training else 'eval'} mode: {form.reason}",
                place=form.place,
                hint="call the masked model itself, which runs as modules",
            )
        return self.graph_module_of(form)

    def graph_module_of(self, form: GraphForm) -> fx.GraphModule:
        """Return the rewritten graph of a form, built on first use."""
        module = self._graph_modules.get(form.mode)
        if module is None:
            other = next((f for f in self._forms.values() if isinstance(f, GraphForm) and f is not form), None)
            if other and other.packed is form.packed and other.mode in self._graph_modules:
                module = self._graph_modules[other.mode]
            else:
                module = self.make_graph(form.mode, form.packed)
            self._graph_modules[form.mode] = module
            self._inlined[form.mode] = inlined_modules(form.packed, self.model)
        return module

    def make_graph(self, mode: Mode, packed: PackedGraph) -> fx.GraphModule:
        """Rewrite a graph of this model so that it computes with the masked weights."""
        constants = self._constants(mode, packed)
        return rewrite_graph(packed, self.model, self.masking.layers, self.thresholds, self.masking, constants)

    def inlined(self, form: GraphForm) -> list[nn.Module]:
        """Return the modules whose code the graph of a form replaces."""
        self.graph_module_of(form)
        return self._inlined[form.mode]

    def find_forms(self, traced: TracedModel) -> FormChoice:
        """Use the graphs of a trace, mode by mode, where they are proven equal to the modules."""
        for mode in ("train", "eval"):
            self._forms[mode] = find_form(self._masked, mode, traced.mode_graphs.get(mode), traced.inputs)
        self._build_graphs()
        return self.form

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **{name: {} for name in _MADE_ON_DEMAND}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._build_graphs()

    def _build_graphs(self) -> None:
        """Build the graphs now rather than in the first call, which torch.compile may trace."""
        for form in self._forms.values():
            if isinstance(form, GraphForm):
                self.graph_module_of(form)

    def _constants(self, mode: Mode, packed: PackedGraph) -> nn.Module:
        name = f"of_{mode}"  # nn.ModuleDict has methods `train` and `eval`
        if name not in self.constants:
            holder = nn.Module()
            for key, tensor in packed.constants.items():
                holder.register_buffer(key, tensor.to(self.thresholds.device), persistent=False)
            self.constants[name] = holder
        return self.constants[name]

    @property
    def _masked(self) -> MaskedModel:
        return cast("MaskedModel", self)

"""The graph rungs of the tracing ladder, each rule on a module written for it, and a few real models."""

from __future__ import annotations

import copy
import functools
import gc
import operator
import resource
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import fx, nn
from torch.nn.utils import rnn

from dst_analyze.model.graph.graph_proof import GraphLimit
from dst_analyze.model.graph.trace_graph import GraphTrace, trace_graph
from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.loading.torchvision_compat import make_importable, torchvision_module


def trace(model: nn.Module, *args: Any, **kwargs: Any) -> GraphTrace:
    return trace_graph(model, Inputs(args, kwargs))


def graph_of(result: GraphTrace) -> fx.Graph:
    assert result.graph_module is not None, result.notes
    return result.graph_module.graph


def targets(result: GraphTrace, op: str) -> list[Any]:
    return [node.target for node in graph_of(result).nodes if node.op == op]


def placeholders(result: GraphTrace) -> list[str]:
    return [str(name) for name in targets(result, "placeholder")]


def hidden(model: nn.Module, result: GraphTrace) -> set[str]:
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - result.parameters


def line_of(function: Callable[..., Any], offset: int) -> str:
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


class Branch(nn.Module):
    """Control flow on a shape, which plain symbolic tracing cannot follow."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = inner
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] > 4:
            x = self.first(x)
        return self.last(self.inner(x))


class Apply(nn.Module):
    """A function and a raw parameter."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) @ self.weight


# --- rung 1 -----------------------------------------------------------------------------------------------------


def test_a_plain_model_is_traced_symbolically() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(3, 8)
    result = trace(model, x)
    assert (result.rung, result.opaque, result.notes) == (1, (), ())
    assert targets(result, "call_module") == ["0", "1", "2"]
    assert hidden(model, result) == set()
    assert result.graph_module is not None
    torch.testing.assert_close(result.graph_module(x), model(x))


def test_nodes_know_the_shapes_of_their_results() -> None:
    result = trace(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), torch.randn(3, 8))
    shapes = [tuple(node.meta["tensor_meta"].shape) for node in graph_of(result).nodes if node.op == "call_module"]
    assert shapes == [(3, 16), (3, 16)]


def test_raw_and_tied_parameters_are_visible_under_every_name() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8, bias=False)
            self.b = nn.Linear(8, 8, bias=False)
            self.b.weight = self.a.weight
            self.unused = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.b.weight)

    result = trace(Tied(), torch.randn(2, 8))
    assert result.parameters == {"a.weight", "b.weight"}


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, *tokens: torch.Tensor, scale: float = 1.0, **rest: torch.Tensor) -> torch.Tensor:
        return self.linear(tokens[0] + rest["mask"]) * scale


def test_a_root_with_args_and_kwargs_gets_named_placeholders() -> None:
    result = trace(Keywords(), torch.randn(2, 8), scale=3.0, mask=torch.randn(2, 8))
    assert (result.rung, placeholders(result)) == (1, ["tokens_0", "mask"])
    assert targets(result, "call_module") == ["linear"]


def test_several_nested_inputs_and_outputs() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, batch: dict[str, Any], pair: tuple[Any, ...], flip: bool = False) -> dict[str, Any]:
            x = self.linear(batch["image"]) + pair[1][0]
            return {"logits": -x if flip else x, "parts": (x + 1, [pair[0]])}

    model, image, a, b = Nested(), torch.randn(2, 8), torch.randn(2, 8), torch.randn(8)
    inputs = Inputs(({"image": image, "for": a}, (a, [b])), {"flip": True})
    result = trace_graph(model, inputs)
    assert (result.rung, placeholders(result)) == (1, ["batch_image", "batch_for", "pair_0", "pair_1_0"])
    assert result.graph_module is not None
    torch.testing.assert_close(result.graph_module(*inputs.tensors()), inputs.call(model))


def test_names_that_are_no_identifiers_are_changed() -> None:
    class Odd(nn.Module):
        def forward(self, **kwargs: torch.Tensor) -> torch.Tensor:
            return kwargs["class"] + kwargs["a-b"] + kwargs["a_b"]

    one = torch.ones(2, 3)
    assert placeholders(trace(Odd(), **{"class": one, "a-b": one, "a_b": one})) == ["input_class", "a_b", "a_b_1"]


@dataclass
class Report:
    logits: Any
    loss: Any = None
    cache: Any = None


Pair = namedtuple("Pair", ["main", "extra"])


class Cache:
    pass


@pytest.mark.parametrize(
    ("make", "plain"),
    [
        (lambda x: Report(x), {"logits"}),
        (lambda x: Pair(x, None), {"main"}),
        (lambda x: Report(x, cache=Cache()), {"logits"}),
    ],
)
def test_exotic_outputs_become_dicts_without_nones(make: Callable[[Any], Any], plain: set[str]) -> None:
    class Exotic(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return make(x * 2)

    result = trace(Exotic(), torch.ones(2, 3))
    assert result.rung == 1
    assert result.graph_module is not None
    assert set(result.graph_module(torch.ones(2, 3))) == plain
    assert any("Cache" in note for note in result.notes) == isinstance(make(0), Report) * bool(
        getattr(make(0), "cache", 0)
    )


def test_hooks_belong_to_the_model() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    model.register_forward_hook(lambda module, args, output: output * 2)
    model[0].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    x = torch.randn(2, 8)
    result = trace(model, x)
    assert result.rung == 1
    assert result.graph_module is not None
    torch.testing.assert_close(result.graph_module(x), model(x))


def test_forward_may_be_any_callable() -> None:
    class Double(nn.Module):
        forward = functools.partial(torch.mul, 2)

    result = trace(Double(), torch.randn(2, 8))
    assert (result.rung, placeholders(result)) == (1, ["input_0"])


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_backward_hooks_do_not_stop_the_tracer() -> None:
    """torch looks for a tensor in what a hooked module returns, for ever if it is a proxy."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    called = []
    model[0].register_backward_hook(lambda *given: called.append(given))
    assert trace(model, torch.randn(2, 4)).rung == 1
    model(torch.randn(2, 4)).sum().backward()
    assert len(called) == 1


# --- leaves -----------------------------------------------------------------------------------------------------


class Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) if self.training else x


class NormAct(nn.BatchNorm1d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(super().forward(x))


class Standardised(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


class Renamed(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(width, width)


class Core(nn.Module):
    """No parameters and a dropout, but the place where three tensors meet."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.1, self.training) @ v


class Leaves(nn.Module):
    def __init__(self, wrap: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.noise, self.norm, self.own, self.renamed, self.core = (
            Noise(),
            NormAct(8),
            Standardised(8, 8),
            Renamed(8),
            Core(),
        )
        self.attention = nn.MultiheadAttention(8, 2)
        self.recurrent = nn.GRU(8, 8)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.wrap(self.renamed(self.own(self.norm(self.noise(x)))))
        x = self.core(x, x, x)
        return self.recurrent(self.attention(x, x, x)[0])[0]


def shape_branch(x: torch.Tensor) -> torch.Tensor:
    return x if x.shape[0] else -x


@pytest.mark.parametrize(("wrap", "rung"), [(torch.neg, 1), (shape_branch, 2)])
def test_leaves_are_the_same_on_both_rungs(wrap: Callable[[torch.Tensor], torch.Tensor], rung: int) -> None:
    model = Leaves(wrap)
    result = trace(model, torch.randn(3, 8))
    assert result.rung == rung, result.notes
    assert targets(result, "call_module") == ["noise", "norm", "renamed", "attention", "recurrent"]
    assert "own.weight" in targets(result, "get_attr")
    assert hidden(model, result) == set()


def test_stochastic_leaves_still_switch_in_the_graph() -> None:
    x = torch.randn(4, 8)
    module = trace(nn.Sequential(Noise(), nn.Dropout(0.5)), x).graph_module
    assert module is not None
    torch.testing.assert_close(module(x), x)
    module.train()
    assert not torch.equal(module(x), x)


def test_the_training_flag_is_read_in_eval_mode() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.auxiliary = nn.Linear(8, 2), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return (self.main(x), self.auxiliary(x)) if self.training else self.main(x)

    model = Heads().train()
    result = trace(model, torch.randn(2, 8))
    assert targets(result, "call_module") == ["main"]
    assert hidden(model, result) == {"auxiliary.weight", "auxiliary.bias"}


def test_torch_transformer_layers_are_traced_inside() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1, enable_nested_tensor=False)
    result = trace(model, torch.randn(2, 5, 8))
    assert {"layers.0.self_attn", "layers.0.linear1", "layers.0.linear2"} <= set(targets(result, "call_module"))
    assert result.opaque == ()
    assert hidden(model, result) == set()


def test_parametrized_weights_show_what_they_are_made_of() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    result = trace(model, torch.randn(2, 8))
    assert {"0.parametrizations.weight.original0", "0.parametrizations.weight.original1"} <= set(
        targets(result, "get_attr")
    )
    assert hidden(model, result) == set()


# --- rung 2 -----------------------------------------------------------------------------------------------------


def test_control_flow_on_shapes_is_answered_by_the_example_and_noted() -> None:
    model = Branch(nn.ReLU())
    x = torch.randn(3, 8)
    result = trace(model, x)
    assert (result.rung, result.opaque) == (2, ())
    assert f"built in from the example: {line_of(Branch.forward, 1)}: 8 > 4 is True" in result.notes
    assert any(note.startswith("rung 1: TraceError") and line_of(Branch.forward, 1) in note for note in result.notes)
    assert hidden(model, result) == set()
    assert result.graph_module is not None
    torch.testing.assert_close(result.graph_module(x), model(x))


def test_each_answer_is_noted_once_and_the_notes_are_capped() -> None:
    def ask(x: torch.Tensor) -> torch.Tensor:
        for index in range(50):
            if x.shape[0] == index:
                return -x
            assert x.shape[0] != 60
        return x

    notes = [note for note in trace(Branch(Apply(ask)), torch.randn(55, 8)).notes if note.startswith("built in")]
    assert len(notes) == 21
    assert "more values" in notes[-1]


def test_sizes_stay_symbolic() -> None:
    def heads(x: torch.Tensor) -> torch.Tensor:
        batch, width = x.shape
        x = x.view(batch, 2, width // 2).transpose(0, 1)
        return x.reshape(2, batch * (width // 2)).view(2, batch, -1).transpose(0, 1).reshape(x.size(1), -1)

    result = trace(Branch(Apply(heads)), torch.randn(3, 8))
    assert (result.rung, result.opaque) == (2, ())
    assert result.graph_module is not None
    assert result.graph_module(torch.randn(5, 8)).shape == (5, 8)
    assert not any(note.startswith("holds for batch") for note in result.notes)
    assert not result.limits


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_a_graph_for_one_batch_size_says_so(batch: int) -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row * index for index, row in enumerate(x)])

    result = trace(Branch(Apply(rows)), torch.randn(batch, 8))
    assert result.rung == 2
    assert any(note.startswith(f"holds for batch size {batch} only") for note in result.notes)
    assert result.limits == {GraphLimit.ONE_BATCH_SIZE}


CONSTANT = torch.arange(8)


def test_einops_caches_do_not_fix_sizes() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(6, 24)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = rearrange(self.qkv(x), "b n (h d) -> (b h) n d", h=4)
            return rearrange(x, "(b h) n d -> b n (h d)", h=4)

    model, x = Heads(), torch.randn(2, 5, 6)
    model(x)
    trace = trace_graph(model, Inputs((x,)))
    assert trace.graph_module is not None
    assert not [note for note in trace.notes if note.startswith("holds for batch size")]
    for shape in ((3, 5, 6), (2, 7, 6)):
        other = torch.randn(shape)
        torch.testing.assert_close(trace.graph_module(other), model(other))
    assert " 1 * " not in trace.graph_module.code


def test_methods_that_torch_writes_in_python_are_methods() -> None:
    found = trace(Branch(Apply(lambda x: x.unflatten(1, (2, 4)).flatten(1))), torch.randn(3, 8))
    assert found.rung == 2
    assert "unflatten" in targets(found, "call_method")


class FromNowhere(nn.Module):
    """A scale that torch does not show the making of."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.make, self.one, self.two = make, nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x) if len(x) else x
        return self.two(x * self.make(x))


def test_a_constant_made_by_an_old_constructor_is_one() -> None:
    found = trace(FromNowhere(lambda _: torch.sqrt(torch.FloatTensor([0.5]))), torch.randn(3, 4))
    assert (found.rung, found.opaque) == (2, ())
    assert any("made by a call that torch does not show is a constant" in note for note in found.notes)


@pytest.mark.parametrize("ask", [np.max, np.sum, np.mean, lambda values: values.ravel()[0]])
def test_a_tensor_from_a_hidden_call_on_the_input_is_no_constant(ask: Callable[[Any], Any]) -> None:
    model = FromNowhere(lambda x: torch.FloatTensor([float(ask(x.detach().numpy()))]))
    found = trace(model, torch.randn(3, 4))
    assert found.graph_module is None
    assert "does not show" in found.opaque[0].reason


def test_nor_is_one_that_has_survived_a_collection_of_garbage() -> None:
    def make(x: torch.Tensor) -> torch.Tensor:
        found = torch.FloatTensor([float(np.max(x.detach().numpy()))])
        gc.collect()
        return found

    assert "does not show" in trace(FromNowhere(make), torch.randn(3, 4)).opaque[0].reason


def test_tensors_from_outside_are_constants() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(CONSTANT).mean(0) * CONSTANT

    model = Branch(Positions())
    result = trace(model, torch.randn(3, 8))
    assert (result.rung, result.opaque, hidden(model, result)) == (2, (), set())
    assert result.graph_module is not None
    assert result.graph_module.get_buffer("_tensor_constant0") is not CONSTANT


def test_results_with_names_and_sizes_by_keyword() -> None:
    def top(x: torch.Tensor) -> torch.Tensor:
        values, _ = x.sort(dim=1)
        return values.view(x.size(dim=0), -1) + x.max(dim=1).values[:, None]

    result = trace(Branch(Apply(top)), torch.randn(3, 8))
    assert (result.rung, result.opaque) == (2, ())
    assert not any(note.startswith("holds") for note in result.notes)


@pytest.mark.parametrize("ask", [int, float, bool, torch.Tensor.item, torch.Tensor.tolist])
def test_contents_built_into_the_graph_are_noted(ask: Callable[[torch.Tensor], Any]) -> None:
    def ignore(x: torch.Tensor) -> torch.Tensor:
        ask(x[0, 0])
        return x

    result = trace(Branch(Apply(ignore)), torch.randn(3, 8))
    assert any(f"{line_of(ignore, 1)}: " in note and "of a tensor is" in note for note in result.notes)


def test_autocast_inside_a_module_keeps_it_whole() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ x.T @ x).float()

    result = trace(Branch(Apply(half)), torch.randn(3, 8))
    assert [(opaque.name, opaque.place) for opaque in result.opaque] == [("inner", line_of(half, 2))]
    assert "autocast" in result.opaque[0].reason


def mean_item(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def through_numpy(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * 2)


def through_vmap(x: torch.Tensor) -> torch.Tensor:
    return torch.vmap(torch.sin)(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (mean_item, "UntraceableError: item asks for the contents of a tensor"),
        (through_numpy, "UntraceableError: a tensor [3, 8] made by a call that torch does not show"),
        (through_vmap, "UntraceableError: a tensor [8] made by a call that torch does not show"),
    ],
)
def test_a_submodule_that_cannot_be_traced_becomes_a_leaf(function: Callable[..., Any], reason: str) -> None:
    torch.manual_seed(0)  # by bad luck a sum may be the same for other weights
    model = Branch(nn.Sequential(nn.Linear(8, 8), Apply(function)))
    x = torch.randn(3, 8)
    result = trace(model, x)
    assert result.rung == 2
    assert [(opaque.name, opaque.reason) for opaque in result.opaque] == [("inner.1", reason)]
    assert result.opaque[0].place.startswith(f"{__file__}:")
    assert targets(result, "call_module") == ["first", "inner.0", "inner.1", "last"]
    assert hidden(model, result) == {"inner.1.weight"}
    assert result.graph_module is not None
    torch.testing.assert_close(result.graph_module(-x), model(-x))


def test_the_place_of_an_opaque_leaf_is_the_line_that_stopped_the_trace() -> None:
    result = trace(Branch(Apply(mean_item)), torch.randn(3, 8))
    assert result.opaque[0].place == line_of(mean_item, 1)


def test_a_leaf_that_cannot_be_called_as_one_takes_its_parent_with_it() -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor, cache: Cache) -> torch.Tensor:
            return through_numpy(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x + 1, Cache())

    result = trace(Branch(Outer()), torch.randn(3, 8))
    assert [(opaque.name, opaque.place) for opaque in result.opaque] == [("inner", line_of(Outer.forward, 1))]
    assert targets(result, "call_module") == ["first", "inner", "last"]


def test_an_opaque_leaf_replaces_those_inside_it() -> None:
    class Numpy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return through_numpy(x)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Numpy()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return through_numpy(self.inner(x))

    x = torch.randn(3, 8)
    (alone,) = trace(Branch(Numpy()), x).opaque
    assert (alone.name, alone.place) == ("inner", line_of(Numpy.forward, 0))
    assert [opaque.name for opaque in trace(Branch(Both()), x).opaque] == ["inner"]


def test_state_of_a_rolled_back_leaf_is_fresh() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8))
            self.cache: dict[str, torch.Tensor] = {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if "square" not in self.cache:
                self.cache["square"] = self.weight**2
            return through_numpy(x) * self.cache["square"]

    model = Branch(Remembers())
    x = torch.randn(3, 8)
    result = trace(model, x)
    assert [opaque.name for opaque in result.opaque] == ["inner"]
    assert result.graph_module is not None
    assert result.graph_module.get_submodule("inner").cache == {}
    with torch.no_grad():
        torch.testing.assert_close(result.graph_module(x), model(x))


def test_writing_in_place_is_recorded() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(x.shape[0], 8)
        y[:, ::2] = x[:, ::2]
        y += 1
        return y.mul_(2)

    result = trace(Branch(Apply(write)), torch.randn(3, 8))
    assert (result.rung, result.opaque) == (2, ())
    assert {operator.setitem, operator.iadd, operator.imul} <= set(targets(result, "call_function"))
    assert result.graph_module is not None
    once = result.graph_module(torch.ones(2, 8))
    torch.testing.assert_close(result.graph_module(torch.ones(2, 8)), once)


def test_dropout_and_its_input_are_two_nodes() -> None:
    """In eval mode dropout returns the very tensor it was given."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.drop(x)

    result = trace(Branch(Residual()), torch.randn(3, 8))
    assert result.rung == 2
    (add,) = (node for node in graph_of(result).nodes if node.target is operator.add)
    assert [node.target for node in add.all_input_nodes] == ["first", "inner.drop"]


def test_random_numbers_are_drawn_when_the_graph_runs() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(8)

    module = trace(Branch(Apply(noisy)), torch.randn(3, 8)).graph_module
    assert module is not None
    x = torch.randn(3, 8)
    assert not torch.equal(module(x), module(x))


def test_packed_sequences() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = nn.LSTM(8, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            steps = x[:, None].expand(-1, 4, -1)
            packed = rnn.pack_padded_sequence(steps, torch.full((len(x),), 4), batch_first=True)
            return rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0][:, -1]

    model = Branch(Packed())
    result = trace(model, torch.randn(3, 8))
    assert (result.rung, result.opaque) == (2, ())
    assert hidden(model, result) == set()


def test_weights_computed_on_the_fly_are_followed() -> None:
    class Generated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code, self.layer = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(self.layer, {"weight": torch.tanh(self.code)}, x)

    result = trace(Branch(Generated()), torch.randn(3, 8))
    assert (result.rung, result.opaque) == (2, ())
    assert "inner.code" in result.parameters
    assert "inner.layer.weight" not in result.parameters


def doubled_by_script(x: torch.Tensor) -> torch.Tensor:
    return x.reshape([x.size(0), -1]) * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_functions_are_traced_inside() -> None:
    scripted = torch.jit.script(doubled_by_script)
    result = trace(Branch(Apply(lambda x: scripted(x))), torch.randn(3, 8))
    assert (result.rung, result.opaque) == (2, ())
    assert "reshape" in targets(result, "call_method")
    assert not any(note.startswith("holds") for note in result.notes)


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated")
def test_scripted_modules_are_opaque() -> None:
    model = Branch(torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU())))
    result = trace(model, torch.randn(3, 8))
    assert [opaque.name for opaque in result.opaque] == ["inner"]
    assert hidden(model, result) == {"inner.0.weight", "inner.0.bias"}


def test_functions_wrapped_for_fx_are_traced_inside() -> None:
    result = trace(Hidden(), torch.randn(3, 8))
    assert result.rung == 2
    assert "rung 1: does not look inside wrapped_by_its_author" in result.notes
    assert wrapped_by_its_author not in targets(result, "call_function")
    assert result.parameters == {"weight"}


def wrapped_by_its_author(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x if x.shape[0] > 1 else -x, weight)


fx.wrap("wrapped_by_its_author")


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return wrapped_by_its_author(x, self.weight)


# --- rung 3 and the proof ---------------------------------------------------------------------------------------


def test_a_root_that_cannot_be_traced_has_no_graph_and_a_reason() -> None:
    result = trace(Apply(through_numpy), torch.randn(3, 8))
    assert (result.rung, result.graph_module, result.parameters) == (3, None, frozenset())
    (root,) = result.opaque
    assert root.name == ""
    assert root.reason == "UntraceableError: a tensor [3, 8] made by a call that torch does not show"
    assert root.place == line_of(Apply.forward, 1)


def test_a_model_that_does_not_run_has_its_own_error_for_a_reason() -> None:
    def refuse(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("two\n   lines")

    result = trace(Apply(refuse), torch.randn(3, 8))
    assert result.rung == 3
    assert [(o.reason, o.place) for o in result.opaque] == [("ValueError: two lines", line_of(refuse, 1))]


def test_endless_recursion_is_a_reason_too() -> None:
    def again(x: torch.Tensor) -> torch.Tensor:
        return again(x)

    assert trace(Apply(again), torch.randn(3, 8)).opaque[0].reason.startswith("RecursionError")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_keyboard_interrupt_and_memory_error_are_passed_on(error: type[BaseException]) -> None:
    def stop(x: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(error):
        trace(Branch(Apply(stop)), torch.randn(3, 8))


def test_a_model_that_cannot_be_copied() -> None:
    model = nn.Linear(8, 8)
    model.handle = (item for item in ())  # type: ignore[assignment]
    result = trace(model, torch.randn(3, 8))
    assert result.rung == 3
    assert "cannot be copied" in result.opaque[0].reason


def test_a_dependence_on_contents_is_found() -> None:
    """The example says one branch, its mirror image the other: a graph of one branch is not the model."""

    def either(x: torch.Tensor) -> torch.Tensor:
        return x if x[0, 0] > x[-1, -1] else x * 3

    x = torch.linspace(-1, 1, 24).view(3, 8)
    model = nn.Sequential(Apply(either), nn.Linear(8, 8))
    result = trace(model, x)
    assert result.rung == 2
    assert "holds for the example's values only" in result.notes
    assert GraphLimit.EXAMPLE_VALUES in result.limits
    assert any(f"{line_of(either, 1)}: __bool__ of a tensor" in note for note in result.notes)


def test_a_zero_head_does_not_hide_a_wrong_graph() -> None:
    """Symbolically this bakes in a value it must not: only with other weights the head lets it through."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.head = nn.Linear(8, 8)
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += isinstance(x, torch.Tensor)  # a proxy is none
            return self.head(x * (1 + self.calls))

    result = trace(Stateful(), torch.randn(3, 8))
    assert result.rung == 2
    assert any("rung 1: _MismatchError: output 0 differs" in note for note in result.notes)


def test_an_output_without_values_is_no_proof() -> None:
    class Zero(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0

    assert "checked on shapes only" in trace(Zero(), torch.randn(3, 8)).notes[0]


def test_no_graph_of_contents_without_anything_to_check_it_by() -> None:
    class Detector(nn.Module):
        """Finds nothing in this example."""

        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keep = self.score(x)[:, 0] > 1e6
            return x[keep] if keep.any() else x[:0]

    result = trace(Detector(), torch.randn(3, 8))
    assert result.rung == 3
    assert any("nothing to check the graph by" in note for note in result.notes)


# --- what must not change ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("meddles_with_weights", "rung"), [(False, 2), (True, 3)])
def test_the_original_is_untouched(meddles_with_weights: bool, rung: int) -> None:
    class Meddler(nn.Module):
        """Writes to everything it can reach."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.frozen, self.drop = nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Dropout()
            self.register_buffer("count", torch.zeros(()))
            self.cache: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            if meddles_with_weights:
                self.norm.weight.data.mul_(2)
            self.cache.append(x)
            x.add_(1)
            torch.set_grad_enabled(True)
            return self.drop(self.frozen(self.norm(x))) + torch.rand(8)

    model, x = Branch(Meddler()).train(), torch.randn(3, 8)
    model.inner.frozen.eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    example, rng = x.clone(), torch.get_rng_state()
    call = nn.Module.__call__
    assert trace(model, x).rung == rung
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(x, example)
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.is_grad_enabled()
    assert model.inner.cache == []
    assert nn.Module.__call__ is call


def test_the_example_is_untouched_by_a_root_that_writes_into_it() -> None:
    class Shift(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1) if x.shape[0] else x

    x = torch.zeros(3, 8)
    assert trace(Shift(), x).rung == 2
    assert not x.any()


@pytest.mark.parametrize("inner", [nn.ReLU(), Apply(mean_item)], ids=["traced", "opaque"])
def test_the_graph_has_the_models_weights_but_not_its_tensors(inner: nn.Module) -> None:
    model = Branch(inner)
    module = trace(model, torch.randn(3, 8)).graph_module
    assert module is not None
    own = dict(module.named_parameters())
    assert {"first.weight", "last.weight"} <= set(own)
    for name, parameter in model.named_parameters():
        if name in own:
            assert torch.equal(own[name], parameter)
            assert own[name] is not parameter
    assert not module.training


def test_a_billion_parameters_on_meta() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8192, 8192, device="meta") for _ in range(15))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers if x.shape[-1] == 8192 else ():
                x = torch.relu(layer(x))
            return x

    model = Wide()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = trace(model, torch.empty(2, 8192, device="meta"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes
    assert (result.rung, hidden(model, result)) == (2, set())
    assert "checked on shapes only (meta)" in result.notes
    assert GraphLimit.SHAPES_ONLY in result.limits
    assert result.graph_module is not None
    assert result.graph_module(torch.empty(4, 8192, device="meta")).shape == (4, 8192)


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_other_precisions(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
    assert trace(model, torch.randn(3, 8, dtype=dtype)).rung == 1
    assert trace(Branch(nn.Identity()).to(dtype), torch.randn(3, 8, dtype=dtype)).rung == 2


# --- models nobody here wrote -----------------------------------------------------------------------------------


def test_torchvision_resnet18() -> None:
    model = torchvision_module().models.resnet18()
    result = trace(model, torch.randn(2, 3, 64, 64))
    assert (result.rung, result.opaque, result.notes) == (1, (), ())
    assert hidden(model, result) == set()
    assert "layer4.1.conv2" in targets(result, "call_module")


def test_timm_nfnet_shows_its_standardised_weights() -> None:
    make_importable()
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_nfnet")
    result = trace(model, torch.randn(2, 3, 64, 64))
    assert result.opaque == ()
    assert hidden(model, result) == set()
    assert "stem.conv1.weight" in targets(result, "get_attr")


def test_tiny_bert() -> None:
    make_importable()
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    model = transformers.BertForSequenceClassification(config)
    tokens = torch.randint(5, 90, (2, 12))
    result = trace(model, input_ids=tokens, attention_mask=torch.ones_like(tokens))
    assert (result.rung, result.opaque, placeholders(result)) == (2, (), ["input_ids", "attention_mask"])
    assert hidden(model, result) == set()
    assert not any(note.startswith("holds") for note in result.notes)
    assert Path(
        next(note for note in result.notes if note.startswith("built in")).split(": ")[1].split(":")[0]
    ).exists()

"""Source of slim models: it builds the same model, is readable, and no name becomes code."""

from __future__ import annotations

import ast
import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from channels import CASES, Case
from channels_as_written import ALL_CASES
from einops import rearrange
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from dst_analyze import couple_channels
from dst_analyze.model.loading.load import load_model
from dst_analyze.model.loading.torchvision_compat import torchvision_module
from dst_analyze.model.tracing.trace import TracedModel, trace_model
from dst_analyze.slimming.source.literals import SourceError, literal, wrapped
from dst_analyze.slimming.source.write import source_of_model, write_source
from dst_analyze.slimming.surgery.build import slim


def slimmed(traced: TracedModel, seed: int = 0) -> Any:
    coupling, rng = couple_channels(traced), random.Random(seed)
    removal = {g.name: rng.sample(range(g.width), min(g.width // 2, g.width - g.floor)) for g in coupling.removable}
    return slim(traced, removal, coupling=coupling)


def imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("slim_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_outputs(one: nn.Module, other: nn.Module, inputs: list[torch.Tensor]) -> bool:
    outputs = []
    for model in (one, other):
        torch.manual_seed(3)
        outputs.append([leaf for leaf in tree_leaves(model(*inputs)) if isinstance(leaf, torch.Tensor)])
    return len(outputs[0]) > 0 and all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))


@pytest.mark.parametrize("case", ALL_CASES.values(), ids=ALL_CASES.keys())
def test_the_file_builds_the_same_model(case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    traced = trace_model(case.build(), case.inputs())
    small = slimmed(traced)
    file = imported(write_source(small, tmp_path / "slim_model.py"))
    again = file.build_model()
    assert list(again.state_dict()) == list(small.state_dict())
    assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in small.parameters())
    for mode in (False, True):
        assert same_outputs(small.train(mode), again.train(mode), traced.inputs.tensors())
    example = file.example_inputs()
    assert [tuple(t.shape) for t in example] == [tuple(t.shape) for t in traced.inputs.tensors()]
    assert tree_leaves(file.build_model(None)(*example))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_real_models(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    traced = trace_model(torchvision_module().models.get_model(name, num_classes=7), torch.randn(2, 3, 64, 64))
    small = slimmed(traced)
    path = write_source(small, tmp_path / f"{name}.py")
    again = imported(path).build_model()
    assert same_outputs(small.eval(), again.eval(), traced.inputs.tensors())
    text = path.read_text()
    if name == "resnet18":
        assert "self.conv1 = nn.Conv2d(3, 32, 7, stride=2, padding=3, bias=False)  # was out_channels=64\n" in text
        assert "        self.layer1 = nn.Sequential(*(BasicBlock(32) for _ in range(2)))  # was conv1_in=64\n" in text
        assert "        out = self.bn1(out)\n" in text  # as its own source has it
    assert max(map(len, text.splitlines())) <= 120


def test_the_file_is_formatted_and_clean(tmp_path: Path) -> None:
    for name in ("transformer", "attention-einsum", "concatenation", "lstm", "packed", "einops-heads-in-the-batch"):
        traced = trace_model(ALL_CASES[name].build(), ALL_CASES[name].inputs())
        write_source(slimmed(traced), tmp_path / f"{name.replace('-', '_')}.py")
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "E,F,W,I"], ["format", "--check"]):
        done = subprocess.run(
            [*ruff, *command, "--isolated", "--no-cache", "--line-length", "120", str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_file_is_a_model_file_for_this_tool(tmp_path: Path) -> None:
    traced = trace_model(CASES["residual"].build(), CASES["residual"].inputs())
    path = write_source(slimmed(traced), tmp_path / "slim_model.py")
    loaded = load_model(str(path))
    assert loaded.example_inputs is not None
    assert trace_model(loaded.model, loaded.example_inputs()).rung == 1


def test_a_variable_never_has_the_name_of_a_function_that_is_called(tmp_path: Path) -> None:
    graph = fx.Graph()
    x = graph.placeholder("rearrange")
    turned = graph.call_function(rearrange, (x, "b c -> c b"))
    graph.output((turned, graph.call_function(rearrange, (x, "b c -> b c"))))
    module = fx.GraphModule(nn.Module(), graph)
    again = imported(write_source(module, tmp_path / "slim_model.py")).build_model()
    assert same_outputs(module, again, [torch.randn(2, 3)])


def test_the_lengths_of_the_example_are_those_of_the_file(tmp_path: Path) -> None:
    traced = trace_model(ALL_CASES["packed"].build(), ALL_CASES["packed"].inputs())
    path = write_source(slimmed(traced), tmp_path / "slim_model.py")
    assert imported(path).example_inputs()[1].tolist() == [3, 5]
    loaded = load_model(str(path))
    assert loaded.example_inputs is not None
    assert trace_model(loaded.model, loaded.example_inputs()).rung == 2


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    traced = trace_model(CASES["embedding-tied"].build(), CASES["embedding-tied"].inputs())
    again = imported(write_source(slimmed(traced), tmp_path / "m.py")).build_model()
    assert again.head.weight is again.embed.weight


def test_frozen_parameters_stay_frozen(tmp_path: Path) -> None:
    model = CASES["chain"].build()
    model[0].weight.requires_grad_(False)
    again = imported(write_source(slimmed(trace_model(model, torch.randn(2, 5))), tmp_path / "m.py")).build_model()
    assert not again.get_submodule("0").weight.requires_grad
    assert again.get_submodule("2").weight.requires_grad


class Odd(nn.Module):
    """Parts under names that are no names in Python."""

    NAMES = ("import os; exit()", "a b", "f(x)", "__init__x", "ünïcode", "0", "x #")

    def __init__(self) -> None:
        super().__init__()
        self.box = nn.Module()
        for name in self.NAMES:
            self.add_module(name, nn.Linear(6, 6))
        for name in (*self.NAMES, "self", "torch"):
            self.box.add_module(name, nn.Linear(6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self, self.box):
            for name, layer in part.named_children():
                x = torch.relu(layer(x)) if name != "box" else x
        return x


def _names_in(path: Path) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}


def test_names_never_become_code(tmp_path: Path) -> None:
    torch.manual_seed(0)
    traced = trace_model(Odd(), torch.randn(2, 6))
    small = slimmed(traced)
    path = write_source(small, tmp_path / "m.py")
    again = imported(path).build_model()
    assert list(again.state_dict()) == list(small.state_dict())
    assert same_outputs(small.eval(), again.eval(), traced.inputs.tensors())
    assert not _names_in(path) & {"os", "exit", "f"}


def test_quotes_and_line_breaks_in_names_stay_inside_strings(tmp_path: Path) -> None:
    """torch.fx writes such names into code of its own as they are, so this graph is built by hand and never called."""
    names = ('x"); exit()  #', "'''", "tail\\", '"""')
    graph = fx.Graph()
    node = graph.placeholder("x")
    for name in names:
        node = graph.call_module(name, (node,))
    graph.output(node)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fx.GraphModule, "recompile", lambda self: None)
        module = fx.GraphModule({name: nn.Linear(6, 6) for name in names}, graph, class_name='Odd"""; exit()')
        path = write_source(module, tmp_path / "m.py")
    file = imported(path)
    again = file.build_model()
    assert list(again.state_dict()) == list(module.state_dict())
    assert again(torch.randn(2, 6)).shape == (2, 6)
    assert "exit" not in _names_in(path)


def test_only_plain_values_have_a_literal() -> None:
    assert literal((1, 2.5, "a'\"\n", None, float("inf"))) == """(1, 2.5, 'a\\'"\\n', None, float("inf"))"""
    assert eval(literal("\u2028\\")) == "\u2028\\"
    with pytest.raises(SourceError, match="type object"):
        literal(object())


def test_long_lines_break_between_arguments_not_inside_strings() -> None:
    text = "x = f(" + ", ".join(f'"a, ({i}"' for i in range(40)) + ")"
    broken = wrapped(text, "")
    assert "\n" in broken
    assert ast.dump(ast.parse(broken)) == ast.dump(ast.parse(text))


def test_a_layer_that_does_not_say_how_it_was_built_is_refused() -> None:
    class Own(nn.BatchNorm1d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    traced = trace_model(nn.Sequential(nn.Linear(5, 8), Own(8), nn.Linear(8, 4)), torch.randn(3, 5))
    with pytest.raises(SourceError, match="Own"):
        source_of_model(slimmed(traced))


class NormAct(nn.BatchNorm2d):
    """A norm with an activation in it, which an argument chose that no attribute keeps."""

    def __init__(self, num_features: int, kind: type[nn.Module] = nn.ReLU) -> None:
        super().__init__(num_features)
        self.act = kind()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        active: torch.Tensor = self.act(super().forward(x))
        return active


def test_parts_of_a_third_party_layer_are_written(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), NormAct(16, nn.Hardswish), nn.Conv2d(16, 16, 3), NormAct(16), nn.Conv2d(16, 4, 3)
    )
    small = slimmed(trace_model(model, torch.randn(2, 3, 9, 9)))
    path = write_source(small, tmp_path / "slim_model.py")
    text = path.read_text()
    assert "with_parts(NormAct(8), act=nn.Hardswish())" in text
    assert "with_parts(NormAct(8), act=nn.ReLU())" not in text  # it is one by itself
    assert same_outputs(small.eval(), imported(path).build_model().eval(), [torch.randn(2, 3, 9, 9)])

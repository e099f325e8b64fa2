"""Layer types of one's own: registered in a program, in a model file, or by a package's entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from slim_checks import zero_removed
from torch import nn
from torch.nn import functional as F

import dst_analyze
from dst_analyze import (
    couple_channels,
    load_model,
    mask_model,
    register_channel_rule,
    register_masked,
    run_sweep,
    trace_model,
    write_source,
)
from dst_analyze.channels.rule_call import Call, LabelledTensor
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.slimming.surgery.build import slim

ROOT = Path(__file__).parents[2]

LAYERS = """
    import torch
    from torch import nn

    class Distance(nn.Module):
        '''Minus the distance between its input and each row of its weight: no matmul anywhere.'''

        def __init__(self, in_features, out_features):
            super().__init__()
            self.in_features, self.out_features = in_features, out_features
            self.weight = nn.Parameter(torch.randn(out_features, in_features) / 3)

        def forward(self, x):
            return -(x.unsqueeze(-2) - self.weight).abs().sum(-1)
"""
MODEL = """
    import torch
    from torch import nn
    from dst_analyze import register_channel_rule, register_masked
    from distances import Distance

    def fit(module):
        module.out_features, module.in_features = module.weight.shape

    register_masked(Distance, rows=0, inputs=1)
    register_channel_rule(Distance, nn.Linear, fit=fit)

    def build_model():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), Distance(16, 12), nn.ReLU(), nn.Linear(12, 10))

    def example_inputs():
        return torch.zeros(2, 1, 8, 8)
"""
TINY = {"alphas": (1e-3, 1e-2), "steps": 4, "batch_size": 16}


def distance() -> type[nn.Module]:
    """A type of its own for every test, as what is registered stays."""

    class Distance(nn.Module):
        def __init__(self, n_in: int, n_out: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(n_out, n_in) / 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -(x.unsqueeze(-2) - self.weight).abs().sum(-1)

    return Distance


def net(kind: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), kind(16, 12), nn.ReLU(), nn.Linear(12, 4))  # type: ignore[call-arg]


def x() -> torch.Tensor:
    return torch.randn(3, 8)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "distances.py").write_text(dedent(LAYERS))
    (tmp_path / "m.py").write_text(dedent(MODEL))
    return tmp_path


# --- register_masked -----------------------------------------------------------------------------------------------


def test_a_layer_without_a_matmul_is_skipped_until_it_is_registered() -> None:
    kind = distance()
    before = trace_model(net(kind), x())
    assert [layer.name for layer in before.layers] == ["0", "3"]
    assert [skipped.name for skipped in before.skipped] == ["1.weight"]
    register_masked(kind, rows=0, inputs=1)
    traced = trace_model(net(kind), x())
    assert [layer.name for layer in traced.layers] == ["0", "1", "3"]
    assert traced.skipped == ()
    layer = traced.layers[1]
    assert (layer.kind, layer.op, layer.shape) == ("Distance", "Distance", (12, 16))
    assert (layer.layout.rows, layer.layout.inputs) == ((0,), (1,))
    assert (layer.macs, layer.macs_note, layer.output_shape) == (12 * 16, "closed form", (3, 12))
    assert traced.macs == before.macs + 12 * 16
    assert traced.coverage.weights == 1.0


def test_a_registered_layer_trains_masked() -> None:
    kind = distance()
    register_masked(kind)
    model = net(kind)
    masked = mask_model(model, x())
    data = x()
    assert torch.equal(masked(data), model(data))
    assert masked.layer_thresholds()["1"].shape == (12, 1)
    (masked(data).sum() + masked.sparsity_loss()).backward()
    assert masked.thresholds.grad is not None
    assert masked.thresholds.grad[16:28].abs().min() > 0
    with torch.no_grad():
        masked.layer_thresholds()["1"][:6] = 10
    assert masked.remaining()["1"] == 0.5
    assert torch.equal(masked.eval()(data), masked.unmasked()(data))


def test_a_registration_overrides_the_audit() -> None:
    class Sideways(nn.Module):
        """Looks like a linear layer of 6 neurons; its author knows that it has 8, one per column."""

        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(6, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, self.kernel)

    assert trace_model(nn.Sequential(Sideways()), x()).layers[0].layout.rows == (0,)
    register_masked(Sideways, "kernel", rows=-1)
    (layer,) = trace_model(nn.Sequential(Sideways()), x()).layers
    assert layer.layout.rows == (1,)
    assert (layer.kind, layer.macs, layer.macs_note) == ("Sideways", 48, "")  # torch counts a matmul itself


def test_derived_types_are_registered_too_and_several_parameters_one_by_one() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(4, 8)), nn.Parameter(torch.ones(8, 4))
            self.bias = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, None] * self.a).sum(-1) + (x[:, :, None] * self.b).sum(1)

    class Derived(Pair):
        pass

    register_masked(Pair, "a")
    register_masked(Pair, "b", rows=1)
    register_masked(Pair, "bias")  # None here: nothing to mask
    layers = trace_model(nn.Sequential(Derived()), x()).layers
    assert {layer.name: layer.layout.rows for layer in layers} == {"0.a": (0,), "0.b": (1,)}


def test_invalid_registrations_are_refused_with_the_place() -> None:
    kind = distance()
    with pytest.raises(OptionError, match=r"a class of nn\.Module, not a Linear"):
        register_masked(nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="at least one axis of rows"):
        register_masked(kind, rows=())
    register_masked(kind, "wieght")
    with pytest.raises(ModelError, match="a Distance has no parameter 'wieght'") as error:
        trace_model(net(kind), x())
    assert error.value.hint == "it has weight"
    other = distance()
    register_masked(other, rows=2)
    with pytest.raises(ModelError, match="weight of Distance has 2 axes, not 3"):
        trace_model(net(other), x())


# --- register_channel_rule -----------------------------------------------------------------------------------------


def test_a_layer_with_a_rule_is_one_node_and_is_narrowed() -> None:
    kind = distance()
    fitted: list[nn.Module] = []
    register_masked(kind, inputs=1)
    register_channel_rule(kind, nn.Linear, fit=fitted.append)
    traced = trace_model(net(kind), x())
    assert traced.graph_module is not None
    assert [str(node.target) for node in traced.graph_module.graph.nodes if node.op == "call_module"] == list("0123")
    coupling = couple_channels(traced)
    assert [(g.name, g.layers("produces"), g.layers("reads")) for g in coupling.removable] == [
        ("0", ("0",), ("1",)),
        ("1", ("1",), ("3",)),
    ]
    removal = {"0": [0, 5], "1": [3]}
    small, data = slim(traced, removal), x()
    assert tuple(small.get_parameter("1.weight").shape) == (11, 14)
    assert torch.allclose(small(data), zero_removed(traced, removal)(data), atol=1e-5)
    assert sum(module is small.get_submodule("1") for module in fitted) == 1


def test_a_users_rule_for_an_elementwise_layer() -> None:
    class Softsign2(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.detach().numpy())  # a detour that nobody can follow

    model = nn.Sequential(nn.Linear(8, 6), Softsign2(), nn.Linear(6, 4))
    assert couple_channels(trace_model(model, x())).removable == ()
    register_channel_rule(Softsign2, lambda call: call.out(call.x.families))
    assert [group.name for group in couple_channels(trace_model(model, x())).removable] == ["0"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda call: 1 / 0, "the channel rule for Distance raised ZeroDivisionError"),
        (lambda call: None, "the channel rule for Distance returned None, where the result has shapes"),
        (lambda call: LabelledTensor((1,)), r"returned \[\(1,\)\], where the result has shapes \[\(2, 12\)\]"),
        (nn.Module, "there is no channel rule for Module"),
    ],
)
def test_a_rule_that_fails_is_named(rule: Any, message: str) -> None:
    kind = distance()
    register_channel_rule(kind, rule)
    with pytest.raises((ModelError, OptionError), match=message):
        couple_channels(trace_model(net(kind), x()))


def test_a_users_rule_registered_first_is_not_replaced_by_a_built_in_one() -> None:
    code = """
        import torch
        from torch import nn
        from dst_analyze import register_channel_rule, trace_model
        def frozen(call):
            call.freeze(call.x.families, "because I say so")
            return call.out([])
        register_channel_rule("relu", frozen)
        register_channel_rule(nn.Tanh, frozen)
        from dst_analyze import couple_channels
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c, self.tanh = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5), nn.Tanh()
            def forward(self, x):
                return self.c(self.tanh(self.b(torch.relu(self.a(x)))))
        print([f.reason.split(" (")[0] for f in couple_channels(trace_model(Net(), torch.randn(2, 5))).frozen])
    """
    done = python(dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("because I say so") == 2


def test_the_source_of_a_slim_model_imports_the_type(here: Path) -> None:
    loaded = load_model("m.py")
    traced = trace_model(loaded.model, torch.zeros(2, 1, 8, 8))
    write_source(slim(traced, {"1": [0, 1], "2": [4]}), "slim.py")
    text = Path("slim.py").read_text()
    assert "from distances import Distance" in text
    assert "Distance(14, 11)" in text
    assert load_model("slim.py").model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_a_type_in_the_model_file_itself_cannot_be_imported_by_other_files(here: Path) -> None:
    together = dedent(LAYERS) + dedent(MODEL).replace("from distances import Distance\n", "")
    Path("m.py").write_text(together)
    traced = trace_model(load_model("m.py").model, torch.zeros(2, 1, 8, 8))
    with pytest.raises(ModelError, match="Distance is defined in the model file") as error:
        write_source(slim(traced, {"1": [0]}), "slim.py")
    assert "a separate module beside the model file" in error.value.hint


def test_call_and_labelled_tensor_have_all_a_rule_needs() -> None:
    """What docs/how-to/extending.md speaks of."""
    for name in ("x", "acts", "get", "parameter", "out", "freeze", "space", "module"):
        assert name in dir(Call) or name in Call.__dataclass_fields__
    assert {"shape", "families"} <= set(LabelledTensor.__dataclass_fields__)


# --- workers -------------------------------------------------------------------------------------------------------


def layers_trained(record: dst_analyze.SweepRecord) -> set[str]:
    return set(record.frame["layer"])


def test_local_workers_mask_what_the_model_file_registers(here: Path) -> None:
    alone = run_sweep("m.py", out="alone", **TINY)
    workers = run_sweep("m.py", out="workers", jobs=2, **TINY)
    assert workers.complete
    assert layers_trained(workers) == {"1", "2", "4"}
    assert workers.frame.equals(alone.frame)


UNSENDABLE = """
    class Data(torch.utils.data.Dataset):
        def __init__(self):
            self.refuses = lambda: None
        def __len__(self):
            return 64
        def __getitem__(self, i):
            return torch.full((1, 8, 8), i / 64), i % 10

    def train_data():
        return Data()
"""


def test_workers_that_plan_again_mask_the_same(here: Path) -> None:
    Path("m.py").write_text(dedent(MODEL) + dedent(UNSENDABLE))
    heard: list[Any] = []
    record = run_sweep("m.py", out="run", jobs=2, listener=heard.append, **TINY)
    assert any("each worker loads its own" in getattr(event, "text", "") for event in heard)
    assert record.complete
    assert layers_trained(record) == {"1", "2", "4"}


def test_a_registration_that_workers_cannot_see_is_noticed(here: Path) -> None:
    """Registered by the program that starts the sweep, not by the model's file."""
    plain = "\n".join(line for line in dedent(MODEL).splitlines() if not line.startswith("register"))
    Path("m.py").write_text(plain + dedent(UNSENDABLE))
    code = """
        import sys; sys.path.insert(0, ".")
        from distances import Distance
        from dst_analyze import register_masked, run_sweep
        if __name__ == "__main__":
            register_masked(Distance)
            record = run_sweep("m.py", out="run", jobs=2, alphas=(1e-3,), steps=2, batch_size=16)
            print(record.complete, {trial.reason for trial in record.trials})
    """
    Path("script.py").write_text(dedent(code))
    done = python("script.py")
    assert "True" not in done.stdout
    assert "finds other layers to mask than the sweep: 2" in done.stdout + done.stderr


# Ray starts its daemons with pipes and sockets that it leaves to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:subprocess .* is still running:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ray_workers_mask_what_the_model_file_registers(here: Path) -> None:
    pytest.importorskip("ray")
    record = run_sweep("m.py", out="run", engine="ray", jobs=1, alphas=(1e-3,), steps=2, batch_size=16)
    assert record.complete
    assert layers_trained(record) == {"1", "2", "4"}


# --- entry points --------------------------------------------------------------------------------------------------


def python(code: str, *more: str) -> subprocess.CompletedProcess[str]:
    given = [code] if code.endswith(".py") else ["-c", code]
    path = os.pathsep.join([str(ROOT), *more])
    environment = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run([sys.executable, *given], capture_output=True, text=True, env=environment, timeout=300)


def package(folder: Path, name: str, code: str, entry: str) -> None:
    """A package as pip installs it: its module, and its metadata beside it."""
    (folder / f"{name}.py").write_text(dedent(code))
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[dst_analyze.extensions]\n{entry}\n")


def test_extensions_of_packages_are_loaded_and_broken_ones_named(here: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    register = "from dst_analyze import register_masked\nfrom distances import Distance\n"
    package(site, "by_import", register + "register_masked(Distance)\n", "distances = by_import")
    package(site, "by_call", "def register():\n    open('called', 'a').write('x')\n", "counting = by_call:register")
    package(site, "broken", "import no_such_module\n", "broken-one = broken")
    package(site, "leaving", "import sys\nsys.exit(3)\n", "leaving = leaving")
    Path("m.py").write_text("\n".join(line for line in dedent(MODEL).splitlines() if not line.startswith("register")))
    inspect = "from dst_analyze.cli.main import main; raise SystemExit(main(['inspect', 'm.py', '--json']))"
    done = python(inspect, str(site), str(here))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [layer["name"] for layer in found["layers"]] == ["1", "2", "4"]
    told = "the extension 'broken-one' of broken is left out: ModuleNotFoundError: No module named 'no_such_module'"
    assert told in found["notes"]
    assert "the extension 'leaving' of leaving is left out: SystemExit: 3" in found["notes"]
    assert done.stderr.count(told) == 1
    assert "Traceback" not in done.stderr
    assert Path("called").read_text() == "x"  # once, though the model was traced on meta and perhaps again


def test_extensions_are_not_loaded_before_they_are_needed(here: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    package(site, "slow", "print('loaded')\n", "slow = slow")
    done = python("from dst_analyze.cli.main import main; raise SystemExit(main(['--help']))", str(site))
    assert done.returncode == 0
    assert "loaded" not in done.stdout

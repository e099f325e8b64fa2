"""Baselines: correct on nets where the answer is known, saved and shown."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dst_analyze import read_run
from dst_analyze.analysis import analyze
from dst_analyze.baselines import measure as measuring
from dst_analyze.baselines.agreement import compare_methods, read_method_comparison
from dst_analyze.baselines.measure import baselines_of, largest_kept, measure
from dst_analyze.baselines.values import METHODS, SETTINGS, Baselines, Measurement, methods_of
from dst_analyze.cli.main import main
from dst_analyze.errors import DstError, OptionError
from dst_analyze.ranking.load import rank_run
from dst_analyze.run.files.paths import BASELINES
from dst_analyze.sweep.planning.plan import plan_sweep

RUN = ("example:demo", "--steps", "30", "--alphas", "1e-3,1e-2", "--seeds", "2", "--out", "run")


class Useless(nn.Module):
    """Its second layer is multiplied by nothing: whatever is pruned there, the loss stays."""

    def __init__(self):
        super().__init__()
        self.needed, self.useless, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x):
        hidden = torch.relu(self.needed(x))
        return self.head(hidden + 0.0 * self.useless(hidden))


def task_of(model, **options):
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())
    return plan_sweep(model, (data, data), **{"alphas": [1e-3, 1e-2], "steps": 40, "lr": 0.1, **options}).task


def test_a_layer_that_nothing_reads_is_the_least_sensitive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = measure(task_of(Useless), METHODS, [0, 1])
    assert found.methods == METHODS
    assert [m.setting for m in found.of("sensitivity") if m.seed == 1] == list(SETTINGS["sensitivity"])
    for measurement in found.of("sensitivity"):
        assert measurement.values["useless"] == pytest.approx(0, abs=1e-6)
        assert measurement.values["useless"] < measurement.values["head"]
    assert (found.steps, found.samples, found.seeds("magnitude")) == (40, 256, 2)


def test_magnitude_leaves_the_share_asked_for_where_the_large_weights_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = task_of(Useless)
    for measurement in measure(task, ["magnitude"], [0]).measured:
        sizes = {layer.name: layer.params for layer in task.traced.layers}
        left = sum(measurement.values[name] * size for name, size in sizes.items()) / sum(sizes.values())
        assert left == pytest.approx(measurement.setting, abs=1 / sum(sizes.values()) + 1e-9)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 6), st.floats(0.01, 1), st.integers(0, 1000), st.booleans()
)  # fmt: skip
def test_pruning_keeps_the_largest_and_puts_everything_back(rows, columns, share, seed, transposed):
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    weight = nn.Parameter(values.T if transposed else values.clone())
    before = weight.detach().clone()
    with largest_kept(weight, share):
        kept = weight.detach() != 0
        assert int(kept.sum()) == max(1, round(share * weight.numel()))
        assert torch.equal(weight.detach()[kept], before[kept])
        if not kept.all():
            assert before[kept].abs().min() >= before[~kept].abs().max()
    assert torch.equal(weight.detach(), before)


def test_a_dense_model_that_diverges_leaves_nothing_to_measure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DstError, match="diverged with every seed"):
        measure(task_of(Useless, lr=1e30), METHODS, [0])


@pytest.mark.parametrize("text", ["magnitude,other", "", "uniform"])
def test_unknown_methods_are_refused(text):
    with pytest.raises(OptionError, match="no ranking method") as error:
        methods_of(text)
    assert error.value.hint == "choose from magnitude, sensitivity"


def test_methods_are_parsed_in_their_order():
    assert methods_of(None) == ()
    assert methods_of("sensitivity, magnitude") == METHODS


@pytest.fixture(scope="module")
def run(tmp_path_factory, inline_module):
    """A real run with baselines, made by the command."""
    inline_module.chdir(tmp_path_factory.mktemp("baselines"))
    assert main([*RUN, "--baselines", "magnitude,sensitivity", "--quiet"]) == 0
    return read_run("run")


def test_the_command_keeps_and_shows_them(run, capsys, monkeypatch):
    found = Baselines.model_validate_json((run.folder / BASELINES).read_text())
    assert len(found.measured) == 2 * sum(map(len, SETTINGS.values()))
    page = (run.folder / "report.html").read_text()
    assert "Compared with other ranking methods" in page
    assert "--baselines magnitude,sensitivity" in page
    compared = read_method_comparison(run, rank_run(run))
    assert [way.name for way in compared.methods] == ["sweep", *METHODS, "initialisation", "size", "depth"]
    assert [way.steps for way in compared.methods] == [4 * 30, 2 * 30, 2 * 30, 0, 0, 0]
    assert [way.settings for way in compared.methods] == [2, 4, 3, 1, 1, 1]
    tau = compared.tau.to_numpy()
    np.testing.assert_allclose(np.diag(tau), 1)
    np.testing.assert_allclose(tau, tau.T)
    assert compared.verdict in page
    # Asked once more they are read, not measured.
    monkeypatch.setattr(measuring, "measure", lambda *args: pytest.fail("measured again"))
    assert main([*RUN, "--resume", "--baselines", "sensitivity", "-v"]) == 0
    assert "tau to the sweep" in capsys.readouterr().out
    assert main(["report", "run"]) == 0
    assert (run.folder / "report.html").read_text() == page


def test_an_unknown_method_is_refused_before_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*RUN, "--baselines", "taylor"]) == 2
    assert "hint: choose from magnitude, sensitivity" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_notebook_has_them_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = analyze("example:demo", alphas=(1e-3, 1e-2), steps=20, out="run", progress=False)
    compared = found.baselines(["magnitude"])
    assert repr(compared) == f"MethodComparison({compared.verdict!r})"
    shown = compared._repr_html_()
    assert "tau to magnitude" in shown
    assert "tau to sensitivity" not in shown
    assert set(compared.table["layer"]) == set(found.record.layers["layer"])
    assert json.loads((tmp_path / "run" / BASELINES).read_text())["steps"] == 20
    assert baselines_of(found.task, found.record, ["magnitude"]).methods == ("magnitude",)
    assert baselines_of(found.task, found.record, ["sensitivity"]).methods == METHODS  # what was there is not lost


@given(st.permutations(range(5)))
@settings(max_examples=20, deadline=None)
def test_the_same_order_agrees_wholly_and_its_reverse_not_at_all(run, order):
    ranking = rank_run(run)
    table = ranking.table.set_index("layer")
    layers = list(table.index)

    def like(values, method, setting):
        return Measurement(method=method, setting=setting, seed=0, values=dict(zip(layers, values, strict=True)))

    redundancy = table["redundancy"].to_numpy()
    same, any_order = np.exp(-redundancy) / 10, [float(place) for place in order]
    found = Baselines(
        steps=1,
        samples=1,
        measured=(
            like(same, "magnitude", 0.5),
            like(same / 2, "magnitude", 0.2),
            like(any_order, "sensitivity", 0.5),
            like([-value for value in any_order], "sensitivity", 0.2),
        ),
    )
    compared = compare_methods(run, ranking, found)
    assert compared.tau.at["sweep", "magnitude"] == pytest.approx(1)
    assert compared.methods[1].itself == pytest.approx(1)
    named = {layer: methods for layer, methods in compared.disagreements.items() if "sensitivity" in methods}
    ranked = compared.table.set_index("layer")
    far = (ranked["sensitivity"] - ranked["sweep"]).abs() >= 2  # of five layers
    assert set(named) == set(ranked.index[far])
    assert not any("magnitude" in methods for methods in compared.disagreements.values())
    assert compared.methods[2].itself == pytest.approx(0)
    assert np.isnan(compared.tau.at["sweep", "sensitivity"])
    assert "ranks all layers the same" in compared.verdict

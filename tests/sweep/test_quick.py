"""A quick run: one dense training, its smallest weights pruned at once, and no sweep."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from torch import nn

from dst_analyze import analyze, rank_layers, read_masks, read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import OptionError
from dst_analyze.run.config import QUICK_STRENGTHS, SweepConfig

pytestmark = pytest.mark.usefixtures("inline")


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 4))


def data(count=400):
    x = torch.randn(count, 16, generator=torch.Generator().manual_seed(0))
    return x, (x[:, :4]).argmax(1)


@pytest.fixture(scope="module")
def found(tmp_path_factory, inline_module):
    out = tmp_path_factory.mktemp("quick") / "run"
    return analyze(net, (data(), data(200)), quick=True, steps=60, seeds=2, out=out)


def test_each_seed_is_trained_once_and_then_pruned_to_every_strength(found):
    record = found.record
    assert record.alphas == QUICK_STRENGTHS
    assert len(record.trials) == 1 + 2 * len(QUICK_STRENGTHS)
    assert {trial.steps for trial in record.trials} == {0}
    assert record.manifest.warm_up == 120  # what the dense trial of a sweep has with its warm-up
    for strength in QUICK_STRENGTHS:
        assert record.remaining(strength) == pytest.approx(1 - strength, abs=0.002)


def test_the_masks_keep_the_largest_weights_of_all_layers_together(found):
    masks = {alpha: read_masks(found.record.folder / f"trials/alpha={alpha!r},seed=0") for alpha in QUICK_STRENGTHS}
    for weaker, stronger in itertools.pairwise(QUICK_STRENGTHS):
        for name, mask in masks[stronger].items():
            assert not np.any(mask & ~masks[weaker][name]), "a weight that was pruned came back"
    by_layer = found.record.frame.query("alpha == 0.9 and seed == 0").set_index("layer")["remaining"]
    for name, mask in masks[0.9].items():
        assert by_layer[name] == pytest.approx(mask.mean())


def test_the_run_is_read_ranked_slimmed_and_reported_as_one_without_a_sweep(found):
    ranking = rank_layers(read_run(found.record.folder))
    assert ranking == found.ranking
    plan = found.suggest_widths()
    assert plan.target is not None
    assert plan.target.basis == "pruning"
    assert "magnitude pruning" in plan.target.clause
    page = found.report().read_text()
    first = page.index("No sweep was run.")
    assert first < page.index('class="headline"')
    assert "Nothing was trained after the 120 steps" in page
    for untrue in ("Dynamic Sparse Training (Liu", "thresholds&#39; clock", "when training may prune"):
        assert untrue not in page
    verdict = json.loads((found.record.folder / "verdict.json").read_text())
    assert verdict["warnings"][0].startswith("No sweep was run")


def test_jobs_and_resuming_change_nothing(found, tmp_path):
    again = analyze(net, (data(), data(200)), quick=True, steps=60, seeds=2, out=tmp_path / "run", jobs=2)
    assert again.ranking == found.ranking
    lost = tmp_path / "run/trials/alpha=0.9,seed=1"
    for file in lost.iterdir():
        file.unlink()
    lost.rmdir()
    resumed = analyze(net, (data(), data(200)), quick=True, steps=60, seeds=2, out=tmp_path / "run", resume=True)
    assert resumed.ranking == found.ranking


@pytest.mark.parametrize(
    "asked",
    [
        {"alphas": (1e-5,)}, {"target_remaining": (0.5,)}, {"until_stable": True}, {"control": "shuffled-labels"},
        {"threshold_clock": 2.0}, {"warm_up": 0},
    ],
    ids=lambda asked: next(iter(asked)),
)  # fmt: skip
def test_options_of_a_sweep_are_refused(asked):
    with pytest.raises(OptionError, match="--quick"):
        SweepConfig.checked(model="m.py", quick=True, **asked)


def test_a_sweep_has_the_digest_that_it_had_before_quick_runs_came():
    config = SweepConfig.checked(model="m.py")
    assert "quick" not in config.model_dump()
    assert config.digest != SweepConfig.checked(model="m.py", quick=True).digest


def test_the_command_says_first_that_no_sweep_was_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["example:demo", "--quick", "--steps", "40", "--out", "run"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("no sweep    one training")
    assert "no sweep was run" in said.out  # how sure
    assert "the trained model and 5 pruned ones" in said.err
    assert main(["example:demo", "--quick", "--dry-run"]) == 0
    assert "no sweep" in capsys.readouterr().out
    assert main(["example:demo", "--quick", "--fast-dev-run"]) == 0


def test_a_loop_of_the_users_own_is_refused_with_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(
        "from torch import nn, zeros\nmodel = nn.Linear(4, 2)\ndef example_inputs(): return zeros(1, 4)\n"
        "def fit(model): raise AssertionError('it is not trained')\ndef evaluate(model): return 1.0\n"
    )
    assert main(["m.py", "--quick"]) == 2
    assert "leave --quick out" in capsys.readouterr().err

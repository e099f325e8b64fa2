"""Alphas in the paper's scale: the factor, where it is recorded, and its effect on a trial."""

import json
import math
from dataclasses import replace

import pytest
import torch
from runs import made_run
from torch import nn

from dst_analyze import read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import FolderError, OptionError
from dst_analyze.report.page import write_report
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.files.atomic_io import sums_of
from dst_analyze.run.files.paths import HEADER
from dst_analyze.run.record import TrialKey
from dst_analyze.sweep.planning.estimates.forecast import PAPER_TRAVEL, Travel
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.planning.preflight import gradient_noise
from dst_analyze.sweep.planning.reload import reload_task
from dst_analyze.sweep.run_sweep import run_sweep
from dst_analyze.sweep.training.train import evaluate

X, Y = torch.randn(96, 12), torch.randint(0, 3, (96,))
FILE = """
import torch
from torch import nn
def build_model():
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
def train_data():
    torch.manual_seed(0)
    return torch.randn(96, 12), torch.randint(0, 3, (96,))
"""


def mlp(scale=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[2].weight.mul_(scale)
    return model


def test_a_trial_trains_with_the_alpha_times_the_factor(tmp_path):
    """The same numbers as with the effective alpha taken literally, under the names of the alpha that was given."""
    given = run_sweep(mlp(), (X, Y), alphas=[1e-6, 1e-5], steps=40, out=tmp_path / "given")
    factor = given.config.factor
    recipe = plan_sweep(mlp(), (X, Y), steps=40, out=tmp_path / "none").task.recipe
    assert factor == pytest.approx(PAPER_TRAVEL / Travel(recipe).per_unit, rel=0.01)
    literal = run_sweep(
        mlp(), (X, Y), alphas=[1e-6 * factor, 1e-5 * factor], alpha_scale=1, steps=40, out=tmp_path / "literal"
    )
    assert given.alphas == (1e-6, 1e-5)
    assert (given.folder / "trials" / "alpha=1e-06,seed=0").is_dir()
    assert given.frame["remaining"].tolist() == literal.frame["remaining"].tolist()
    assert [t.score for t in given.trials] == [t.score for t in literal.trials]


def test_factor_and_effective_alphas_stand_in_the_run_folder_and_under_facts(tmp_path):
    record = run_sweep(mlp(), (X, Y), alphas=[1e-6, 1e-5], steps=40, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["alphas"] == [1e-6, 1e-5]
    assert config["alpha_factor"] == record.config.factor > 1
    assert config["effective_alphas"] == pytest.approx([1e-6 * record.config.factor, 1e-5 * record.config.factor])
    page = write_report(tmp_path / "run").read_text()
    assert f"{record.config.factor:.3g} times the alphas given (1e-6 as" in page
    assert "trained as the other trials are" in page


@pytest.mark.parametrize("options", [{"alpha_scale": 1}, {"recipe": "paper"}])
def test_literal_alphas(tmp_path, options):
    plan = plan_sweep(mlp(), (X, Y), alphas=[1e-3], steps=20, out=tmp_path / "run", **options)
    assert plan.task.config.factor == 1
    assert plan.task.effective_alpha(TrialKey(1e-3, 0)) == 1e-3
    assert plan.task.effective_alpha(TrialKey(None, 0)) == 0
    scaled = plan_sweep(mlp(), (X, Y), alphas=[1e-3], steps=20, out=tmp_path / "run", **options | {"alpha_scale": 7})
    assert scaled.task.effective_alpha(TrialKey(1e-3, 0)) == pytest.approx(7e-3)


def test_a_scale_that_is_no_factor_is_refused():
    for wrong in (0, -1, math.nan):
        with pytest.raises(OptionError) as refused:
            SweepConfig.checked(model="m", alpha_scale=wrong)
        assert "--alpha-scale" in refused.value.place


def test_what_planning_adds_names_no_folder():
    config = SweepConfig.checked(model="m", alphas=[1e-6])
    assert config.scaled(28).digest == config.digest
    assert config.scaled(28).as_asked == config
    assert SweepConfig.checked(model="m", alphas=[1e-6], alpha_scale=1).digest != config.digest


def test_folders_from_before_there_was_a_scale_are_literal(tmp_path):
    record = made_run(tmp_path / "run", ["a", "b"])
    assert record.config.alpha_factor is None
    assert record.config.factor == 1
    assert "literal: trials are trained with the alphas as given" in write_report(tmp_path / "run").read_text()
    assert "--alpha-scale 1" in write_report(tmp_path / "run").read_text()


def test_an_old_run_is_not_continued_in_another_scale(tmp_path):
    options = {"alphas": [1e-6, 1e-5], "steps": 10, "out": tmp_path / "run"}
    run_sweep(mlp(), (X, Y), **options)
    path, new = tmp_path / "run" / "config.json", ("alpha_factor", "effective_alphas", "alpha_scale")
    path.write_text(json.dumps({k: value for k, value in json.loads(path.read_text()).items() if k not in new}))
    files = {name: (tmp_path / "run" / name).read_bytes() for name in (*HEADER, "graph.json")}
    (tmp_path / "run" / "SHA256SUMS").write_bytes(sums_of(files))
    assert read_run(tmp_path / "run").config.factor == 1
    with pytest.raises(FolderError, match="before alphas had a scale"):
        run_sweep(mlp(), (X, Y), **options)


def test_the_suggestions_task_has_the_factor_of_its_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    args = ["m.py", "--alphas", "1e-6,1e-5", "--steps", "12", "--jobs", "1", "--optimizer", "adamw", "--out", "run"]
    assert main([*args, "--quiet"]) == 0
    record = read_run(tmp_path / "run")
    assert record.manifest.gradient_noise is not None
    assert reload_task(record).config.factor == record.config.factor


# --- Adam ------------------------------------------------------------------------------------------------------------


def test_the_noise_is_that_of_the_losss_gradient_on_thresholds(tmp_path):
    def planned(**options):
        return plan_sweep(mlp(), (X, Y), alphas=[1e-6], steps=200, out=tmp_path / "run", **options).task

    assert gradient_noise(planned(), mlp()) is None  # SGD divides by nothing
    small = planned(optimizer="adam")
    noise = gradient_noise(small, mlp())
    assert 1e-6 < noise < 1
    assert noise == gradient_noise(small, mlp())  # the same numbers are drawn each time
    recipe = small.recipe
    assert small.config.factor == pytest.approx(PAPER_TRAVEL * noise / recipe.rates.sum(), rel=0.01)

    def louder(outputs, batch):
        return 10 * nn.functional.cross_entropy(outputs, batch[1])

    # Adam takes the same steps, and its gradients are ten times as large.
    assert gradient_noise(replace(small, loss=louder), mlp()) == pytest.approx(10 * noise, rel=0.05)


def test_a_model_whose_loss_does_not_move_thresholds_still_gets_a_factor(tmp_path):
    data = torch.zeros(32, 12), torch.zeros(32, dtype=torch.int64)
    plan = plan_sweep(mlp(), data, alphas=[1e-6], steps=20, optimizer="adamw", out=tmp_path / "run")
    assert math.isfinite(plan.task.config.factor)
    assert plan.task.config.factor > 0


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores_come_with_their_standard_error(tmp_path):
    task = plan_sweep(mlp(), (X, Y), alphas=[1e-6], steps=4, batch_size=8, out=tmp_path / "run").task
    model = mlp()
    found = evaluate(model, task.test_data.once(), task.objective(model), task.device)
    right = (model(X).argmax(1) == Y).double().mean().item()
    assert found.score == pytest.approx(right)
    assert found.error == pytest.approx(math.sqrt(right * (1 - right) / len(Y)))
    target = torch.randn(96, 3)
    task = plan_sweep(mlp(), (X, target), alphas=[1e-6], steps=4, batch_size=8, out=tmp_path / "run").task
    found = evaluate(model, task.test_data.once(), task.objective(model), task.device)
    each = (model(X) - target).square().mean(1)
    assert found.loss == found.score == pytest.approx(each.mean().item(), rel=1e-5)
    assert found.error == pytest.approx(each.std().item() / math.sqrt(96), rel=0.5)  # from twelve batches
    one = evaluate(model, [(X, target)], task.objective(model), task.device)
    assert one.error is None

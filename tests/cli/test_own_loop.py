"""A model file that trains itself: ``fit(model)`` and ``evaluate(model)``, through the real command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Completed, run_here

import dst_analyze as dst

FILE = """
import torch
from torch import nn

X = torch.randn(192, 12, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()


def build_model():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))


def example_inputs():
    return X[:2]


def fit(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(40):
        picked = torch.randint(0, len(X), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X[picked]), Y[picked]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()


def evaluate(model):
    with torch.no_grad():
        return (model(X).argmax(1) == Y).float().mean()
"""


def run(folder: Path, *arguments: str, file: str = FILE) -> Completed:
    (folder / "mine.py").write_text(file)
    return run_here(folder, "mine.py", *arguments)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A run of the real command in a process of its own, with real workers, and what it printed."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(FILE)
    command = [sys.executable, "-m", "dst_analyze", "mine.py", "--alphas", "1e-6,1e-5", "--out", "run"]
    proof = ["--jobs", "2", "--verify", "--verify-seeds", "1"]
    done = subprocess.run([*command, *proof], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_the_file_trains_scores_and_proves(swept):
    folder, done = swept
    assert "trains first without pruning" in done.stderr
    assert "it takes 40 steps" in done.stderr
    record = dst.read_run(folder / "run")
    assert [trial.alpha for trial in record.trials] == [None, 1e-6, 1e-5]
    assert {trial.steps for trial in record.trials} == {40}
    assert record.manifest.data.description == "those of fit() and evaluate() of mine.py"
    assert record.remaining(1e-5) < record.remaining(1e-6) < 1
    assert record.dense.score > 0.5
    assert (folder / "run" / "slim_model.py").exists()
    proof = json.loads((folder / "run" / "verification.json").read_text())
    assert all(score > 0.3 for entry in proof["entries"] for score in entry["scores"])
    assert "slim model  run/slim_model.py" in done.stdout


def test_a_run_is_finished_without_training_again_what_is_there(swept, inline):
    folder, _ = swept
    before = {p: p.read_bytes() for p in (folder / "run" / "trials").rglob("*") if p.is_file()}
    lost = folder / "run" / "trials" / "alpha=1e-05,seed=0"
    for part in lost.iterdir():
        part.unlink()
    lost.rmdir()
    done = run(folder, "--alphas", "1e-6,1e-5", "--out", "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert "trains first without pruning" not in done.stderr
    after = {p: p.read_bytes() for p in (folder / "run" / "trials").rglob("*") if p.is_file()}
    timing = {path for path in before if path.name == "timing.json"}
    assert {p: after[p] for p in before if p not in timing} == {p: before[p] for p in before if p not in timing}


@pytest.mark.parametrize("option", ["--steps 10", "--lr 0.1", "--batch-size 8", "--data digits", "--epochs 2"])
def test_options_that_its_loop_would_ignore_are_refused(tmp_path, inline, option):
    done = run(tmp_path, "--alphas", "1e-6,1e-5", "--out", "run", *option.split())
    assert done.returncode == 2
    assert f"{option.split()[0]} has no effect: fit(model) of the model file trains" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("def evaluate", "def other"), "there is a fit(model) but no evaluate(model)"),
        (("return (model(X)", "return {'accuracy': 1}\n        return (model(X)"), "returned a dict with accuracy"),
        (("return (model(X)", "return {'score': 93.5, 'share': True}\n        return (model(X)"), "no share between 0"),
        (("optimizer.step()", "pass"), "no optimizer took a step"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_reason(tmp_path, inline, change, error):
    done = run(tmp_path, "--alphas", "1e-6,1e-5", "--out", "run", file=FILE.replace(*change))
    assert done.returncode == 2
    assert error in done.stderr
    assert "hint:" in done.stderr


def test_a_helper_of_that_name_is_no_hook(tmp_path):
    for other in ("def fit(model, loader)", "def fit(layer)"):
        (tmp_path / "helper.py").write_text(FILE.replace("def fit(model)", other))
        assert dst.load_model(tmp_path / "helper.py").fit is None
    assert dst.load_model(tmp_path / "helper.py").evaluate is not None

"""Weights that a user brings: read, fitted, refused where they are not the model's, started from by every trial."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dst_analyze.cli.main import main
from dst_analyze.errors import ModelError, OptionError
from dst_analyze.model.loading.weights import put_weights, read_weights
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_sweep
from dst_analyze.sweep.training.magnitudes import Magnitudes

FILE = """
import torch
from torch import nn

X, Y = torch.randn(64, 8), torch.randint(0, 4, (64,))

def build_model(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))

def train_data():
    return X, Y
"""


def net(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    torch.manual_seed(7)
    trained = net()
    with torch.no_grad():
        trained[0].weight.mul_(3)
    torch.save(trained.state_dict(), "w.pt")
    return trained


SAVED = {
    "alone.pt": lambda state: state,
    "checkpoint.pth": lambda state: {"epoch": 3, "state_dict": state},
    "trainer.ckpt": lambda state: {"model": {"state_dict": state}, "optimizer": {"lr": 0.1}},
    "parallel.pt": lambda state: {f"module.{name}": value for name, value in state.items()},
}


@pytest.mark.parametrize("name", SAVED)
def test_weights_are_found_in_what_scripts_save(here, tmp_path, name):
    torch.save(SAVED[name](here.state_dict()), tmp_path / name)
    model = net()
    put_weights(model, read_weights(tmp_path / name), name)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), here.parameters(), strict=True))


def test_safetensors_give_the_same_weights(here, tmp_path):
    save_file(here.state_dict(), tmp_path / "w.safetensors")
    plans = [plan_sweep("m.py", alphas=[1e-3], steps=4, weights=file) for file in ("w.pt", "w.safetensors")]
    one, other = (plan.task.config.weights_sha256 for plan in plans)
    assert one == other is not None
    assert plan_sweep("m.py", alphas=[1e-3], steps=4).task.config.weights_sha256 is None


def test_every_trial_starts_from_them_without_a_warm_up(here):
    options = {"alphas": [1e-3], "seeds": 2, "steps": 40, "lr": 1e-6, "weights": "w.pt"}
    record = run_sweep("m.py", **options)
    assert record.manifest.warm_up == 0
    last = record.frame[record.frame["step"] == 40]
    initial = Magnitudes({"0": here[0].weight, "2": here[2].weight})
    for _, trial in last.groupby("seed"):
        kept = np.average(trial["remaining"], weights=[128, 64])
        assert trial.set_index("layer")["null"].to_dict() == pytest.approx(initial.null(float(kept)), abs=1e-4)
    a, b = (t.loss for t in record.trials if t.alpha == 1e-3)
    assert a == pytest.approx(b, abs=1e-3)  # at this rate two seeds stay where they started, which is the same place
    assert run_sweep("m.py", **options, warm_up=10, out="warm").manifest.warm_up == 10


def test_several_jobs_change_nothing(here):
    options = {"alphas": [1e-3, 1e-2], "steps": 10, "weights": "w.pt"}
    one, two = (run_sweep("m.py", **options, jobs=jobs, out=f"out{jobs}") for jobs in (1, 2))
    assert one.frame.equals(two.frame)


def test_a_run_with_other_weights_is_not_resumed(here, capsys, inline):
    args = ["m.py", "--alphas", "1e-2,3e-2", "--steps", "20", "--jobs", "1", "--weights", "w.pt", "--out", "run"]
    assert main(args) == 0
    assert main(["slim", "run", "--target-params", "0.5"]) == 0
    torch.save(net().state_dict(), "w.pt")
    capsys.readouterr()
    assert main(args) == 2
    assert "weights_sha256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "the weights cannot be read: No such file"),
        (lambda path: path.write_bytes(b"no weights at all"), "the file holds no weights"),
        (lambda path: path.mkdir(), "the weights cannot be read"),
        (lambda path: torch.save([1, 2], path), "the file holds no state dict, but a list"),
        (lambda path: torch.save({"epoch": 3}, path), "the file holds no state dict"),
        (lambda path: torch.save(nn.Linear(2, 2), path), "the file holds no weights"),
        (lambda path: torch.save(net(12).state_dict(), path), r"0.weight is \[12, 8\] in the file, \[16, 8\] in the"),
        (lambda path: torch.save(net()[:2].state_dict(), path), "2.weight is no such tensor in the file"),
        (lambda path: torch.save({**net().state_dict(), "x": torch.ones(1)}, path), r"x is \[1\] in the file, no such"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_training(here, tmp_path, capsys, make, said, inline):
    make(tmp_path / "other.pt")
    with pytest.raises(ModelError, match=said):
        plan_sweep("m.py", alphas=[1e-3], weights="other.pt", out="run")
    assert main(["m.py", "--weights", "other.pt", "--out", "run"]) == 2
    assert "other.pt" in (error := capsys.readouterr().err)
    assert "hint:" in error
    assert not (tmp_path / "run").exists()


def test_weights_for_a_model_in_memory_are_refused(here):
    with pytest.raises(OptionError, match="already holds weights") as refused:
        plan_sweep(net(), (torch.randn(8, 8), torch.zeros(8).long()), weights="w.pt", out="run")
    assert refused.value.place == "--weights"

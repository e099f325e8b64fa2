"""Weights & Biases and MLflow get what a sweep's events say, read back from what they wrote."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from small_sweeps import FILE
from torch import nn

import dst_analyze as dst
from dst_analyze import read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import OptionError
from dst_analyze.integrations.mlflow import log_to_mlflow
from dst_analyze.integrations.tensorboard import drawing
from dst_analyze.integrations.wandb import log_to_wandb
from dst_analyze.run.events import broadcast

# MLflow's own: its file store is in maintenance, its tables ask pandas in a way that pandas is going to change.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The filesystem .* backend:FutureWarning"),
    pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes"),
]
ARGS = ["m.py", "--alphas", "1e-3", "--steps", "8", "--out", "run", "--jobs", "1", "--quiet"]


@pytest.fixture
def place(tmp_path, monkeypatch, inline):
    """A folder with a model file; trackers write here, and ask nobody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_DIR", str(tmp_path)), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return tmp_path


def rows_of(record):
    """Of a table of layers, what the record says should stand in it."""
    return {(t.alpha, t.seed, layer) for t in record.trials if t.alpha is not None for layer in record.layers["layer"]}


def logged_to(uri):
    """The only run in a file store, and its client."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return client, run


def table_in(client, run, name):
    (path,) = Path(client.download_artifacts(run.info.run_id, name)).parent.glob(name)
    found = json.loads(path.read_text())
    return [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]


def test_mlflow_gets_curves_tables_and_the_report(place):
    uri = f"file:{place / 'store'}"
    assert main([*ARGS, "--mlflow", uri]) == 0
    record = read_run(place / "run")
    client, run = logged_to(uri)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["steps"] == "8"
    curves = {f"{name}/{kind}" for name in ("alpha 1e-3 seed 0",) for kind in ("loss", "remaining")}
    assert set(run.data.metrics) == curves | {"dense seed 0/loss"}  # and not one for each layer
    points = client.get_metric_history(run.info.run_id, "alpha 1e-3 seed 0/remaining")
    expected = record.steps[record.steps["alpha"] == 1e-3]
    assert [(p.step, p.value) for p in points] == list(zip(expected["step"], expected["remaining"], strict=True))
    layers = table_in(client, run, "layers.json")
    assert {(row["alpha"], row["seed"], row["layer"]) for row in layers} == rows_of(record)
    trials = table_in(client, run, "trials.json")
    assert [row["score"] for row in trials] == [trial.score for trial in record.trials]
    assert "report.html" in [file.path for file in client.list_artifacts(run.info.run_id)]
    assert "mlflow" not in (place / "run" / "run.toml").read_text()


def test_weights_and_biases_gets_them_too(place):
    assert main([*ARGS, "--wandb", "redundancy"]) == 0
    record = read_run(place / "run")
    (folder,) = place.glob("wandb/offline-run-*")
    tables = {path.name.partition("_")[0]: json.loads(path.read_text()) for path in folder.rglob("*.table.json")}
    assert set(tables) == {"trials", "layers"}
    at = [tables["layers"]["columns"].index(name) for name in ("alpha", "seed", "layer")]
    assert {tuple(row[i] for i in at) for row in tables["layers"]["data"]} == rows_of(record)
    score = tables["trials"]["columns"].index("score")
    assert [row[score] for row in tables["trials"]["data"]] == [trial.score for trial in record.trials]
    (kept,) = folder.glob("*.wandb")
    written = kept.read_bytes()
    for name in (b"redundancy", b"alpha 1e-3 seed 0/remaining", b"dense seed 0/loss", b"report.html"):
        assert name in written
    assert b"layers/one" not in written


def test_they_listen_to_a_study(place):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 8, generator=generator), torch.randint(0, 4, (64,), generator=generator)
    uri = f"file:{place / 'store'}"
    with log_to_mlflow(uri, "mine") as listener, drawing() as drawn:
        study = dst.Study("run", (1e-5,), listener=broadcast(listener, drawn))
        for trial in study:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with trial.attach(model, x[:2], optimizer):
                for _ in range(6):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(x), y)
                    trial.log(loss.item())
                    loss.backward()
                    optimizer.step()
            trial.tell(loss.item(), higher_is_better=False)
        study.report()
    assert {file.name for file in (place / "run" / "tensorboard").iterdir()} == {
        t.key.name for t in study.record.trials
    }
    client, run = logged_to(uri)
    assert client.get_experiment(run.info.experiment_id).name == "mine"
    assert "alpha 1e-5 seed 0/remaining" in run.data.metrics
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "layers.json",
        "report.html",
        "trials.json",
    }


def test_what_cannot_be_logged_to_is_named_before_training(place, monkeypatch):
    with pytest.raises(OptionError, match="MLflow cannot use nowhere://here"), log_to_mlflow("nowhere://here"):
        pass
    for module, name, tracker in (("wandb", "wandb", log_to_wandb), ("mlflow", "mlflow", log_to_mlflow)):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(OptionError, match="is not installed") as missing, tracker("x"):
            pass
        assert missing.value.hint == f"pip install 'dst-analyze[{name}]'"
    assert not os.path.exists("run")

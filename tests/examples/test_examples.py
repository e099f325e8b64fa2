"""The examples that come along: each is read as it is, and trained from model to report, some of them narrower."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click
import pytest
import torch

from dst_analyze.analysis import analyze
from dst_analyze.cli.main import commands, main
from dst_analyze.cli.model_args import parse_model_args
from dst_analyze.errors import ModelError
from dst_analyze.model.loading.bundled import import_example, names
from dst_analyze.model.loading.load import load_model
from dst_analyze.model.loading.torchvision_compat import make_importable
from dst_analyze.run.reader import read_run
from dst_analyze.sweep.run_sweep import run_sweep

make_importable()  # before Lightning and transformers look for torchvision

# Layers and parameters as the paper, or the net's own paper, counts them; and arguments that make a trial quick.
EXPECTED: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "char-gru": (5, 165_144, ("hidden=8",)),
    "demo": (5, 57_482, ()),
    "hf-text-classification": (14, 20_484, ("hidden=16", "layers=1")),
    "lenet-300-100": (3, 266_610, ()),
    "lenet-5-caffe": (4, 431_080, ()),
    "lightning-mnist": (4, 54_314, ("width=4",)),
    "lstm-a": (5, 214_282, ("hidden=16",)),
    "lstm-b": (5, 821_770, ("hidden=16",)),
    "mlp-mixer": (18, 306_826, ("width=16", "depth=1")),
    "mobilenet-v2": (53, 2_236_682, ("width=0.125",)),
    "resnet-20": (22, 272_474, ("width=4", "blocks=1")),
    "resnet-50": (54, 25_557_032, ("width=4", "depths=(1,1,1,1)", "classes=10")),
    "resnet-56": (58, 855_770, ("width=2", "blocks=2")),
    "small-vit": (18, 311_146, ("width=12", "depth=1")),
    "vgg-16": (15, 14_990_922, ("width=0.0625",)),
    "wide-resnet-16-10": (17, 17_116_634, ("width=1",)),
    "wide-resnet-16-8": (17, 10_961_370, ("width=1",)),
    "wide-resnet-28-8": (29, 23_354_842, ("width=1", "depth=10")),
}

GUESTS = ("hf-text-classification", "lightning-mnist")
"""Examples that another package trains."""


def test_every_example_is_tested_here() -> None:
    assert sorted(EXPECTED) == names()


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_read_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"example:{name}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    layers, params, _ = EXPECTED[name]
    assert (len(found["layers"]), found["params"]) == (layers, params)
    asking = ("small-vit", "hf-text-classification")  # torch's own encoder and BERT ask about their inputs
    assert found["rung"] == (2 if name in asking else 1)
    assert found["coverage"] == {"weights": 1.0, "parameters": 1.0}
    assert found["model"] == name


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in GUESTS])
def test_an_example_is_trained_and_slimmed(name: str, tmp_path: Path) -> None:
    arguments = parse_model_args(EXPECTED[name][2])
    found = analyze(
        f"example:{name}", model_args=arguments, steps=2, alphas=(1e-3,), batch_size=8, out=tmp_path / "run", force=True
    )
    assert found.record.complete
    assert found.record.manifest.data.stand_in == (name not in ("demo", "char-gru"))
    assert len(found.ranking.table) == len(found.traced.layers)
    plan = found.suggest_widths(target_params=0.7, round_to=1, rehearsal=True)  # two steps are no evidence
    assert plan.new_params < plan.params
    assert load_model(tmp_path / "run" / "slim_model.py").model is not None


# What Lightning warns of: its own code, and loaders without workers.
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec", "ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval")
@pytest.mark.parametrize("way", ["main", "fit"])
@pytest.mark.parametrize("name", GUESTS)
def test_an_example_is_trained_by_a_guest(name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a callback in a study (`main`), and by the file's `fit`, which is the command line's way."""
    example = import_example(name).module
    monkeypatch.setattr(example, "EPOCHS", 1)
    if way == "main":
        assert example.main(tmp_path / "run").exists()
        record = read_run(tmp_path / "run")
    else:
        arguments = parse_model_args(EXPECTED[name][2])
        record = run_sweep(f"example:{name}", model_args=arguments, alphas=(1e-5,), out=tmp_path / "run", jobs=1)
    assert record.complete
    assert record.manifest.steps in (23, 32)
    assert record.trials[-1].remaining is not None
    assert record.trials[-1].remaining < 1
    assert all(trial.score is not None and trial.loss is not None for trial in record.trials)


@pytest.mark.parametrize("name", ["lenet-300-100", "lstm-a"])
def test_an_example_runs_from_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], inline: None
) -> None:
    """LSTM-a has biases that shrink with its weights and are no layers: the ranking must not ask for them."""
    tiny = ["--fast-dev-run", "--round-to", "1", "--jobs", "1", "--quiet"]
    small = ["--model-arg", "hidden=16"] if name == "lstm-a" else []
    assert main([f"example:{name}", *tiny, *small, "--out", str(tmp_path / "run")]) == 0
    assert "a test run of a few steps: nothing here is a result" in capsys.readouterr().out
    there = {file.name for file in (tmp_path / "run-fast-dev-run").iterdir()}
    assert {"report.html", "plan.json", "slim_model.py"} <= there


@pytest.mark.parametrize("name", EXPECTED)
def test_the_command_in_its_file_is_one_the_program_takes(name: str) -> None:
    about = import_example(name).module.__doc__ or ""
    lines = [line.strip() for line in about.splitlines() if line.startswith("    dst-analyze ")]
    for line in lines:
        _, *words = shlex.split(line)
        context = commands.commands["analyze"].make_context("dst-analyze", words)
        assert context.params["model"] == f"example:{name}"
    assert lines or name == "demo"


@pytest.mark.parametrize(
    ("name", "kind", "rate"),
    [
        ("lenet-300-100", torch.optim.SGD, 0.01),
        ("lenet-5-caffe", torch.optim.SGD, 0.01),
        ("lstm-a", torch.optim.Adam, 0.001),
        ("lstm-b", torch.optim.Adam, 0.001),
        ("vgg-16", torch.optim.SGD, 0.1),
        ("wide-resnet-16-8", torch.optim.SGD, 0.1),
        ("wide-resnet-28-8", torch.optim.SGD, 0.1),
        ("resnet-50", torch.optim.SGD, 0.1),
    ],
)
def test_the_papers_nets_train_with_the_papers_optimizer(
    name: str, kind: type[torch.optim.Optimizer], rate: float
) -> None:
    loaded = load_model(f"example:{name}", device="meta")
    assert loaded.optimizer is not None
    optimizer = loaded.optimizer(loaded.model.parameters())
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["lr"] == rate
    assert optimizer.param_groups[0].get("momentum", 0.9) == 0.9


def test_resnet_50_takes_torchvisions_weights() -> None:
    theirs = load_model("torchvision:resnet50", device="meta").model.state_dict()
    ours = load_model("example:resnet-50", device="meta").model.state_dict()
    assert {name: t.shape for name, t in ours.items()} == {name: t.shape for name, t in theirs.items()}


def test_the_list_tells_name_purpose_size_and_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list-examples"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in names():
        assert f"example:{name} " in text
    assert (
        "LeNet-300-100: three linear layers for handwritten digits, the paper's smallest net. 267k parameters." in text
    )
    assert "11.0M parameters (depth=16, width=8)." in text


def test_a_misspelt_example_is_told_what_is_close(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModelError, match="There is no example 'lenet300'") as error:
        load_model("example:lenet300")
    assert error.value.hint == "did you mean lenet-300-100?"
    assert main(["inspect", "example:"]) == 2
    assert "`dst-analyze --list-examples` shows them" in capsys.readouterr().err


def test_help_speaks_of_the_examples() -> None:
    context = click.Context(commands, info_name="dst-analyze")
    assert "--list-examples" in commands.get_help(context)

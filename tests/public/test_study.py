"""`Study`: a sweep that a loop of the user's trains, in a run folder like any other."""

from __future__ import annotations

import gc
import math
import shutil
import subprocess
import sys
import textwrap
from itertools import islice
from pathlib import Path

import pytest
import torch
from commands import run_here
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import dst_analyze as dst
from dst_analyze.cli.main import main
from dst_analyze.errors import DstError, FolderError, ModelError, OptionError
from dst_analyze.run.files.paths import trial_folder
from dst_analyze.sweep.data.batches import TensorBatches
from dst_analyze.sweep.training.recipe import SCHEDULES

ALPHAS = (1e-6, 1e-5)
STEPS = 60

generator = torch.Generator().manual_seed(0)
X = torch.randn(256, 12, generator=generator)
Y = (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))


def train(model, seed, *, logged=None, steps=STEPS, optimizer=None):
    """The tool's own loop, as a user would write it."""
    torch.manual_seed(seed)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = LambdaLR(optimizer, lambda step: SCHEDULES["step"][0](min(step / steps, 1.0)))
    for x, y in islice(TensorBatches((X, Y), 64).stream(seed), steps):
        loss = nn.functional.cross_entropy(model(x), y)
        if logged:
            logged.log(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def accuracy(model):
    with torch.no_grad():
        return float((model(X).argmax(1) == Y).float().mean())


def run_all(study, **options):
    """Train every trial that the study asks for; returns what they were."""
    asked = []
    for trial in study:
        asked.append((trial.role, trial.seed, trial.alpha))
        model = net()
        with trial.attach(model, X[:2]):
            train(model, trial.seed, logged=trial, **options)
        trial.tell(accuracy(model))
    return asked


def test_it_asks_for_the_reference_first_then_each_alpha_and_seed(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS, seeds=2)
    assert run_all(study) == [
        ("first", 0, None),
        ("reference", 0, None),
        ("masked", 0, 1e-6),
        ("warm-up", 1, None),
        ("masked", 1, 1e-6),
        ("masked", 0, 1e-5),
        ("masked", 1, 1e-5),
    ]
    record = study.record
    assert record.manifest.steps == STEPS
    assert record.config.alpha_factor > 1
    assert record.manifest.warm_up == STEPS
    assert "SGD, learning rate 0.0005 to 0.05" in record.manifest.optimizer
    assert study.ranking.table["layer"].tolist()
    assert run_all(dst.Study(tmp_path / "run", ALPHAS, seeds=2)) == []  # it is complete


def test_its_result_is_that_of_a_sweep_to_the_bit(tmp_path):
    """Same model, data, order and recipe: there is one implementation underneath."""
    swept = dst.run_sweep(net(), (X, Y), alphas=ALPHAS, steps=STEPS, device="cpu", out=tmp_path / "sweep", jobs=1)
    study = dst.Study(tmp_path / "study", ALPHAS)
    for trial in study:
        model = net()
        with trial.attach(model, X[:2], write_zeros=trial.alpha is not None):
            train(model, trial.seed, logged=trial)
        share = accuracy(model)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(model(X), Y).item()
        trial.tell(share, loss=loss, error=math.sqrt(share * (1 - share) / len(Y)))
    assert study.record.config.factor == swept.config.factor
    for result in swept.trials:
        one, other = (trial_folder(tmp_path / where, result.key) for where in ("sweep", "study"))
        names = ["record.csv", "masks.safetensors"] if result.alpha else ["record.csv"]
        assert [(one / name).read_bytes() for name in names] == [(other / name).read_bytes() for name in names]
    for one, other in zip(swept.trials, study.record.trials, strict=True):
        assert one.model_dump(exclude={"loss"}) == other.model_dump(exclude={"loss"})
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
    assert study.ranking.table.equals(dst.rank_layers(swept).table)


def test_rank_slim_report_and_compare_take_its_folder(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS, name="mine")
    run_all(study)
    page = study.report()
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    assert "mine" in page.read_text()
    assert (tmp_path / "run" / "plan.json").exists()
    assert "class " in (tmp_path / "run" / "slim_model.py").read_text()
    for command in (["rank", "run"], ["report", "run"], ["compare", "run", "again"]):
        done = run_here(tmp_path, *command)
        assert done.returncode == 0, done.stderr
    refused = run_here(tmp_path, "verify", "run")
    assert refused.returncode == 2
    assert "only its program can rebuild" in refused.stderr


MODEL_FILE = """
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(12, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))
"""
FIT = """
def fit(model):
    torch.manual_seed(0)
    x = torch.randn(64, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()

def evaluate(model):
    x = torch.randn(64, 12)
    return (model(x).argmax(1) == x[:, :4].argmax(1)).float().mean().item()
"""


def test_slim_and_verify_take_a_study_whose_model_is_in_a_file(tmp_path, monkeypatch, capsys, inline):
    monkeypatch.chdir(tmp_path)
    study = dst.Study("run", ALPHAS, name="mine")
    run_all(study)
    study.report()
    assert study.record.config.model == ""
    Path("m.py").write_text(MODEL_FILE.replace("WIDTH", "24"))
    assert main(["slim", "run", "--model", "m.py", "--target-params", "0.4", "--round-to", "1"]) == 0
    assert main(["verify", "run", "--model", "m.py", "--seeds", "1"]) == 2
    assert "define fit(model) and evaluate(model)" in capsys.readouterr().err
    Path("m.py").write_text(MODEL_FILE.replace("WIDTH", "24") + FIT)
    assert main(["verify", "run", "--model", "m.py", "--seeds", "1"]) == 0
    assert "uniform" in capsys.readouterr().out
    Path("m.py").write_text(MODEL_FILE.replace("WIDTH", "25"))
    assert main(["slim", "run", "--model", "m.py"]) == 2
    assert "it is not the model of this run: 0 has" in capsys.readouterr().err


@pytest.mark.parametrize("warm_up", [None, False])
def test_it_goes_on_where_it_was_left(tmp_path, warm_up):
    study = dst.Study(tmp_path / "run", ALPHAS, warm_up=warm_up)
    for trial in study:
        if trial.alpha == 1e-5:
            break  # as if the process had been stopped
        model = net()
        with trial.attach(model, X[:2]):
            train(model, trial.seed)
        trial.tell(accuracy(model))
    again = dst.Study(tmp_path / "run", ALPHAS, warm_up=warm_up)
    assert run_all(again) == [*([] if warm_up is False else [("warm-up", 0, None)]), ("masked", 0, 1e-5)]
    whole = dst.Study(tmp_path / "whole", ALPHAS, warm_up=warm_up)
    run_all(whole)
    assert again.record.trials == whole.record.trials
    assert again.ranking.table.equals(whole.ranking.table)
    assert again.report(net(), X[:2]).exists()


def test_alphas_are_found_where_none_are_given(tmp_path):
    study = dst.Study(tmp_path / "run", alphas="auto", warm_up=False)
    asked = run_all(study)
    assert asked[0] == ("first", 0, None)
    assert ("warm-up", 0, None) not in asked
    assert len([alpha for _, _, alpha in asked if alpha]) >= 3
    assert study.record.manifest.warm_up == 0
    assert len(study.record.alphas) >= 2


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.RMSprop])
def test_the_scale_of_normalised_optimizers_is_measured_in_the_first_training(tmp_path, kind):
    study = dst.Study(tmp_path / "run", ALPHAS)
    for trial in study:
        model = net()
        with trial.attach(model, X[:2]):
            train(model, trial.seed, optimizer=kind(model.parameters(), lr=3e-3), steps=90)
        trial.tell(accuracy(model))
    made = study.record.manifest
    assert 0 < made.gradient_noise < 1
    assert study.record.config.factor == pytest.approx(
        66_000 * made.gradient_noise / sum(3e-3 * SCHEDULES["step"][0](i / 90) for i in range(90)), rel=0.01
    )
    weak, strong = (study.record.remaining(alpha) for alpha in ALPHAS)
    assert strong < weak


def test_watching_does_not_change_the_first_training(tmp_path):
    plain, watched = net(), net()
    train(plain, 0, optimizer=torch.optim.AdamW(plain.parameters(), lr=3e-3))
    for trial in dst.Study(tmp_path / "run", ALPHAS):
        with trial.attach(watched, X[:2]) as masks:
            train(watched, 0, optimizer=torch.optim.AdamW(watched.parameters(), lr=3e-3))
            assert masks.model_remaining() == 1
        break
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))


def test_a_checkpoint_in_the_middle_of_a_trial_goes_on_to_the_bit(tmp_path):
    def learn(masks, model, optimizer, data):
        for x, y in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    def swept(folder, stopped):
        study = dst.Study(tmp_path / folder, ALPHAS)
        for trial in study:
            data = list(islice(TensorBatches((X, Y), 64).stream(trial.seed), STEPS))
            parts = [data[:25], data[25:]] if stopped else [data]
            for number, part in enumerate(parts):
                model = net()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
                masks = trial.attach(model, X[:2], optimizer)
                if number:  # as a new process would
                    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
                    for each, state in zip((model, optimizer, masks), saved, strict=True):
                        each.load_state_dict(state)
                if part is parts[-1]:
                    with masks:
                        learn(masks, model, optimizer, part)
                else:
                    learn(masks, model, optimizer, part)
                    torch.save([each.state_dict() for each in (model, optimizer, masks)], tmp_path / "saved.pt")
                    masks.detach(write_zeros=False)
            trial.tell(accuracy(model))
        return study.record

    whole, broken = swept("whole", False), swept("broken", True)
    assert whole.manifest == broken.manifest
    assert whole.frame.equals(broken.frame)
    assert whole.trials == broken.trials


def test_a_failed_trial_is_left_out(tmp_path):
    study = dst.Study(tmp_path / "run", (1e-6, 3e-6, 1e-5))
    for trial in study:
        if trial.alpha == 1e-5:
            trial.failed("the loss was not finite")
            continue
        model = net()
        with trial.attach(model, X[:2]):
            train(model, trial.seed)
        trial.tell(accuracy(model))
    assert [t.status for t in study.record.trials] == ["done", "done", "done", "diverged"]
    assert study.record.trials[-1].reason == "the loss was not finite"


def trained(trial):
    model = net()
    with trial.attach(model, X[:2]):
        train(model, trial.seed)
    return model


def test_bad_use_is_named_and_what_was_finished_is_kept(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS)
    trials = iter(study)
    first = next(trials)
    with pytest.raises(OptionError, match="nothing was trained"):
        first.tell(0.5)
    trained(first)
    with pytest.raises(OptionError, match="nan is no score"):
        first.tell(math.nan)
    with pytest.raises(OptionError, match="no share between 0 and 1"):
        first.tell(93.5, share=True)
    first.tell(0.9)
    with pytest.raises(OptionError, match="told twice"):
        first.tell(0.9)
    with pytest.raises(OptionError, match="the trial is over"):
        first.attach(net(), X[:2])
    reference = next(trials)
    with pytest.raises(ModelError, match="another one than the study's: 0 has 36 weights"):
        reference.attach(nn.Sequential(nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 4)), X[:2])
    with pytest.raises(ModelError, match="no optimizer took a step"), reference.attach(net(), X[:2]):
        pass
    trained(reference)
    with pytest.raises(OptionError, match="this score is a loss, and the sweep's others are a share"):
        reference.tell(0.1, higher_is_better=False)
    reference.tell(0.9)
    next(trials)
    with pytest.raises(OptionError, match="was not told how alpha 1e-6, seed 0 ended"):
        next(trials)
    with pytest.raises(FolderError, match="not complete"):
        _ = study.ranking
    del trials, reference, first
    gc.collect()
    with pytest.raises(FolderError, match=r"alphas"):
        dst.Study(tmp_path / "run", (1e-3, 1e-2))
    assert run_all(dst.Study(tmp_path / "run", ALPHAS))[0] == ("warm-up", 0, None)


def test_a_schedule_that_never_leaves_zero_is_named(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS)
    with pytest.raises(ModelError, match="the optimizer took 1 step at a learning rate of 0"):  # noqa: PT012
        for trial in study:
            model = net()
            with trial.attach(model, X[:2]):
                train(model, 0, optimizer=torch.optim.SGD(model.parameters(), lr=0.0), steps=1)
            trial.tell(accuracy(model))


def test_a_folder_of_a_sweep_is_no_study(tmp_path):
    dst.run_sweep(net(), (X, Y), alphas=ALPHAS, steps=5, device="cpu", out=tmp_path / "run", jobs=1)
    with pytest.raises(FolderError, match="another run"):
        dst.Study(tmp_path / "run", ALPHAS)


def test_its_suggestion_is_proven_by_a_loop_of_the_users(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS, warm_up=False)
    run_all(dst.Study(tmp_path / "run", ALPHAS, warm_up=False))
    with pytest.raises(OptionError, match="does not know the model"):
        study.verify(train, accuracy)
    proof = study.verify(lambda model: train(model, 0), accuracy, model=net(), example_inputs=X[:2], seeds=1)
    assert proof.score == "accuracy"
    assert {entry.name for entry in proof.entries} >= {"dense", "slim", "uniform", "random", "fan-in"}
    assert all(entry.scores[0] > 0.4 for entry in proof.entries)
    assert proof.entry("slim").params < proof.entry("dense").params
    assert (tmp_path / "run" / "verification.json").exists()
    assert "Trained from scratch" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(DstError, match="this score is a loss, and the sweep's others are a share"):
        study.verify(lambda model: train(model, 1), lambda model: {"score": 1.0, "higher_is_better": False}, seeds=2)


@pytest.mark.parametrize("seeds", [1, 2])
def test_scores_may_be_any_number(tmp_path, seeds):
    """Points of 100: the first is no share, so a later one below 1 is none either."""
    study = dst.Study(tmp_path / "run", ALPHAS, seeds=seeds, warm_up=False)
    points = {None: 71.0, 1e-6: 70.5, 1e-5: 0.4}
    for trial in study:
        trained(trial)
        trial.tell(points[trial.alpha] + trial.seed)
    assert study.record.manifest.data.score == "score"
    spare = study.ranking.table["spare"]
    said = " ".join(study.ranking.notes)
    if seeds == 1:
        assert spare.isna().all()
        assert "Spare: not known, as one seed does not show how much this score varies" in said
    else:
        assert spare.notna().all()
        assert "Spare: the weights pruned at alpha 1e-6, the strongest alpha at no measurable loss of score" in said
        assert study.ranking.table["spare_words"].str.contains("at a score lower by 70").any()
    assert "score" in study.report().read_text()
    shown = run_here(tmp_path, "rank", "run")
    assert shown.returncode == 0, shown.stderr


def test_two_processes_on_one_study(tmp_path):
    study = dst.Study(tmp_path / "run", ALPHAS)
    trials = iter(study)
    first = next(trials)
    first.tell(accuracy(trained(first)))
    next(trials)  # from here on the folder is written
    script = f"import dst_analyze as dst\ndst.Study({str(tmp_path / 'run')!r}, {ALPHAS})"
    other = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "this run folder is being written by process" in other.stderr

"""Trials and the sweep: what is trained, what is put back, what is refused before training starts."""

import copy
import random

import numpy as np
import pytest
import torch
from small_sweeps import FILE, TEST, TRAIN, mlp
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dst_analyze
from dst_analyze.errors import DataError, FolderError, ModelError, OptionError
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.run.caveats import notes_of
from dst_analyze.run.events import TrialStep
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_sweep
from dst_analyze.sweep.training.objective import Objective


def write(tmp_path, text, name="m.py"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_a_sweep_prunes_and_learns(tmp_path):
    model = mlp()
    before = copy.deepcopy(model.state_dict())
    record = run_sweep(model, (TRAIN, TEST), alphas=[1e-3, 4e-3], steps=200, out=tmp_path / "run")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert model.training
    assert isinstance(record, dst_analyze.SweepRecord)
    assert record.dense.score > 0.85
    assert record.score(1e-3) > 0.85
    assert 0.05 < record.remaining(4e-3) < record.remaining(1e-3) < 0.97
    table = rank_layers(record).remaining()
    assert list(table.index) == ["0", "2"]
    assert (table.loc["0"] < table.loc["2"]).all()
    assert record.frame["step"].max() == 200
    assert 40 <= record.frame["step"].nunique() <= 41


def test_the_same_sweep_gives_the_same_numbers_and_seeds_differ(tmp_path):
    path = write(tmp_path, FILE)
    options = {"alphas": [3e-3], "seeds": 2, "steps": 30}
    torch.manual_seed(1)
    one = run_sweep(path, out=tmp_path / "one", **options)
    torch.manual_seed(2)
    two = run_sweep(path, out=tmp_path / "two", **options)
    assert one.frame.equals(two.frame)
    assert [t.score for t in one.trials] == [t.score for t in two.trials]
    assert one.trials[1].loss != one.trials[2].loss
    first_readings = one.frame[one.frame["step"] == 1].groupby("seed")["remaining"].mean()
    assert first_readings[0] != first_readings[1] or one.trials[1].loss != one.trials[2].loss


def test_random_numbers_and_threads_are_put_back(tmp_path):
    model = mlp()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), torch.get_num_threads()
    run_sweep(model, TRAIN, alphas=[1e-3], steps=3, out=tmp_path / "run")
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()
    assert (state[2] == np.random.get_state()[1]).all()
    assert state[3] == torch.get_num_threads()


def test_without_data_the_digits_stand_in_and_it_is_said(tmp_path):
    path = write(tmp_path, "from torch import nn\nmodel = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n")
    record = run_sweep(path, alphas=[1e-3], epochs=1, out=tmp_path / "run")
    assert record.manifest.data.stand_in
    assert notes_of(record)[0].title == "Stand-in data"
    assert "below 4" in record.manifest.data.description
    assert record.manifest.steps == record.trials[0].steps == 9


def test_a_diverged_trial_is_recorded_and_left_out(tmp_path):
    record = run_sweep(mlp(), TRAIN, alphas=[1e-3], lr=1e12, steps=20, out=tmp_path / "run")
    assert not record.complete
    assert {t.status for t in record.trials} == {"diverged"}
    assert record.frame.empty
    assert record.dense.steps < 20


@pytest.mark.parametrize(
    ("data", "scored_on"),
    [
        (tuple(part.numpy() for part in TRAIN), "train"),
        ((TensorDataset(*TRAIN), TensorDataset(*TEST)), "test"),
        ((DataLoader(TensorDataset(*TRAIN), 32), TEST), "test"),
    ],
)
def test_a_pair_is_train_and_test_unless_it_is_one_of_tensors(tmp_path, data, scored_on):
    assert plan_sweep(mlp(), data, out=tmp_path / "run").manifest.data.scored_on == scored_on


def test_batch_norm_and_a_batch_of_one(tmp_path):
    model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
    data = TRAIN[0][:65], TRAIN[1][:65]
    assert run_sweep(model, data, alphas=[1e-3], epochs=3, out=tmp_path / "run").manifest.steps == 3
    loader = DataLoader(TensorDataset(*data), batch_size=64)
    assert run_sweep(model, loader, alphas=[1e-3], steps=3, out=tmp_path / "loader").complete


def test_controls_learn_nothing_and_leave_the_others_alone(tmp_path):
    options = {"alphas": [1e-4, 1e-3], "steps": 120}
    record = run_sweep(mlp(), (TRAIN, TEST), out=tmp_path / "run", control="shuffled-labels", **options)
    plain = run_sweep(mlp(), (TRAIN, TEST), out=tmp_path / "plain", **options)
    controls = [trial for trial in record.trials if trial.control]
    assert [trial.alpha for trial in controls] == [1e-4, 1e-3]
    assert all(trial.score < 0.3 for trial in controls)
    assert [trial for trial in record.trials if not trial.control] == list(plain.trials)
    assert set(record.frame["control"]) == {True, False}
    assert record.frame[~record.frame["control"]].reset_index(drop=True).equals(plain.frame)
    assert record.remaining(1e-4) == plain.remaining(1e-4)
    assert len(record.steps[record.steps["alpha"].isna()]) == len(plain.steps[plain.steps["alpha"].isna()]) > 0


def test_a_control_takes_targets_from_their_samples_wherever_they_are():
    torch.manual_seed(0)
    x, y = torch.arange(8.0)[:, None], torch.arange(8)
    for batch in ((x, y), {"x": x, "labels": y}):
        inputs = Objective(Takes(), shuffled=True).inputs(batch)
        assert sorted(inputs.tensors()[0].flatten().tolist()) == list(range(8))
        assert inputs.tensors()[0].flatten().tolist() != list(range(8))
        assert all(torch.equal(value, y) for value in inputs.kwargs.values() if value is not inputs.kwargs.get("x"))


class Takes(nn.Module):
    """A model that computes its loss itself, and so takes the labels too."""

    def forward(self, x, labels=None):
        return x


def test_a_model_that_does_not_learn_is_reported(tmp_path):
    still = run_sweep(mlp(), (TRAIN, TEST), alphas=[1e-3], steps=40, lr=1e-7, out=tmp_path / "still")
    assert [note.title for note in notes_of(still)][:1] == ["Before training"]
    assert any(note.title == "Hardly learned" and "2.3" in note.text for note in notes_of(still))
    learned = run_sweep(mlp(), (TRAIN, TEST), alphas=[1e-3], steps=40, out=tmp_path / "learned")
    assert not any(note.title == "Hardly learned" for note in notes_of(learned))


def test_regression_is_scored_by_its_loss(tmp_path):
    model = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 1))
    record = run_sweep(model, (TRAIN[0], TRAIN[1].float()), alphas=[1e-3], steps=5, out=tmp_path / "run", lr=0.01)
    assert record.manifest.data.score == "loss"
    assert record.manifest.data.scored_on == "train"
    assert record.dense.score == record.dense.loss


HOOKS = (
    FILE
    + """
def train_data():
    x, y = _data()
    return {"x": x, "label": y}

def loss(outputs, batch):
    return nn.functional.nll_loss(outputs.log_softmax(1), batch["label"])

def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
"""
)


def test_the_users_loss_optimizer_and_dict_batches_are_used(tmp_path):
    path = write(tmp_path, HOOKS)
    record = run_sweep(path, alphas=[1e-3], steps=40, out=tmp_path / "run")
    assert record.manifest.optimizer.startswith("the optimizer of the model file, learning rate 0.01")
    assert record.manifest.data.score == "accuracy"
    assert record.dense.loss < 1.5
    with pytest.raises(OptionError, match="--lr has no effect"):
        plan_sweep(path, lr=0.1, out=tmp_path / "lr")


class Endless(IterableDataset):
    def __iter__(self):
        while True:
            yield TRAIN[0][0], TRAIN[1][0]


def test_a_sweep_on_a_generator_in_bfloat16_with_adam(tmp_path):
    def batches():
        while True:
            yield TRAIN[0][:32], TRAIN[1][:32]

    options = {"optimizer": "adam", "schedule": "onecycle", "amp": True, "alphas": [1e-3], "steps": 12}
    record = run_sweep(mlp(), (batches(), TEST), out=tmp_path / "run", **options)
    assert record.complete
    assert "12 batches, kept in memory as a generator" in record.manifest.data.description
    assert record.manifest.optimizer.startswith("Adam, learning rate 0.001, rising")
    assert record.manifest.clock == 1
    assert "bfloat16" in record.manifest.device
    plain = run_sweep(mlp(), (batches(), TEST), out=tmp_path / "plain", **{**options, "amp": False})
    assert plain.dense.loss != record.dense.loss
    assert plain.dense.loss == pytest.approx(record.dense.loss, rel=0.05)


def test_an_endless_data_set_is_trained_on_and_scored_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("dst_analyze.sweep.data.batches.SCORED_AT_MOST", 3)
    record = run_sweep(mlp(), Endless(), alphas=[1e-3], steps=3, out=tmp_path / "run")
    assert record.complete
    assert "scored on the first" in record.manifest.data.description


IMAGE_NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)
    def forward(self, x):
        x = self.conv(x).relu()
        return self.out(FLAT)

def example_inputs():
    return torch.zeros(2, 1, 8, 8)
"""


@pytest.mark.parametrize(("flat", "innermost"), [("torch.flatten(x, 1)", True), ("x.view(len(x), -1)", False)])
def test_channels_are_innermost_where_the_model_takes_them_so(tmp_path, flat, innermost):
    """`view` cannot flatten such images: a model that does so gets them as they are, and trains all the same."""
    path = write(tmp_path, IMAGE_NET.replace("FLAT", flat))
    task = plan_sweep(path, "digits", steps=5, out=tmp_path / "plan").task
    assert task.device.channels_last is innermost
    images = task.device.moved(torch.zeros(2, 3, 4, 4))
    assert images.is_contiguous(memory_format=torch.channels_last) is innermost
    record = run_sweep(path, "digits", alphas=[1e-3], steps=5, out=tmp_path / "run", jobs=1)
    assert [trial.status for trial in record.trials] == ["done", "done"]


NAN = TRAIN[0].clone()
NAN[0] = float("nan")


@pytest.mark.parametrize(
    ("data", "options", "kind", "cause"),
    [
        ((TRAIN[0][:, :50], TRAIN[1]), {}, DataError, "training data do not fit"),
        ((NAN, TRAIN[1]), {"batch_size": 512}, DataError, "NaN in 1 of 512 samples"),
        ((TRAIN[0], TRAIN[1] + 90), {}, DataError, "labels run from 90 to 99"),
        (TRAIN[0], {}, DataError, "no loss is known"),
        ((TRAIN, (TEST[0][:, :9], TEST[1])), {}, DataError, "scoring the first test batch"),
        ((TRAIN, DataLoader(TensorDataset(*TEST), batch_size=999, drop_last=True)), {}, DataError, "no batches"),
        (Endless(), {"epochs": 1}, OptionError, "how long an epoch"),
        (TRAIN, {"include": ["nothing*"]}, OptionError, "matches no layer"),
        (TRAIN, {"steps": 0}, OptionError, "steps|greater"),
    ],
)
def test_what_cannot_work_is_refused_before_training(tmp_path, data, options, kind, cause):
    with pytest.raises(kind, match=cause):
        plan_sweep(mlp(), data, out=tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "kind", "cause"),
    [
        (FILE.replace("train_data = _data", "def test_data():\n    return _data()"), DataError, "no train_data"),
        (FILE.replace("train_data = _data", "def train_data():\n    return 1 / 0"), DataError, "ZeroDivisionError"),
        (FILE.replace("train_data = _data", "def train_data():\n    return iter([])"), DataError, "no batches"),
        (FILE + "def loss(outputs, batch):\n    return 0.5\n", DataError, "cannot be differentiated"),
        (FILE + "def loss(outputs, batch):\n    return outputs.nothing\n", ModelError, "AttributeError"),
        (FILE + "def optimizer(parameters):\n    return 'adam'\n", ModelError, "returned str"),
    ],
)
def test_hooks_that_fail_are_named_before_training(tmp_path, text, kind, cause):
    with pytest.raises(kind, match=cause) as error:
        plan_sweep(write(tmp_path, text), out=tmp_path / "run")
    assert "m.py" in error.value.place or error.value.hint
    assert not (tmp_path / "run").exists()


def test_an_interrupted_sweep_keeps_what_was_finished(tmp_path):
    options = {"alphas": [1e-3], "steps": 10}

    def interrupt(event):
        if isinstance(event, TrialStep) and event.trial.alpha is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(mlp(), TRAIN, out=tmp_path / "run", listener=interrupt, **options)
    assert [p.name for p in (tmp_path / "run" / "trials").iterdir()] == ["dense,seed=0"]
    heard = []
    record = run_sweep(mlp(), TRAIN, out=tmp_path / "run", resume=True, listener=heard.append, **options)
    assert record.complete
    assert {event.trial.alpha for event in heard if isinstance(event, TrialStep)} == {1e-3}
    again = run_sweep(mlp(), TRAIN, out=tmp_path / "other", **options)
    assert record.frame.equals(again.frame)


def test_other_data_of_the_same_shape_are_refused(tmp_path):
    run_sweep(mlp(), TRAIN, alphas=[1e-3], steps=3, out=tmp_path / "run")
    with pytest.raises(FolderError, match=r"data\.sha256"):
        run_sweep(mlp(), (TRAIN[0] + 1, TRAIN[1]), alphas=[1e-3], steps=3, out=tmp_path / "run")


def test_a_model_object_is_known_by_its_weights(tmp_path):
    digests = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 10))
        digests.append(plan_sweep(model, TRAIN, out=tmp_path / "run").task.config.digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_module_level_model_of_a_package_is_not_trained_itself(tmp_path, monkeypatch):
    write(tmp_path, "from torch import nn\nmodel = nn.Sequential(nn.Linear(64, 10))\n", "dst_test_package_model.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    record = run_sweep("dst_test_package_model:model", TRAIN, alphas=[1e-3], steps=20, out=tmp_path / "run")
    again = run_sweep("dst_test_package_model:model", TRAIN, alphas=[1e-3], steps=20, out=tmp_path / "again")
    assert record.frame.equals(again.frame)
    assert record.dense.loss == again.dense.loss


def test_public_names_exist():
    for name in dst_analyze.__all__:
        assert getattr(dst_analyze, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dst_analyze.nothing  # noqa: B018
    assert set(dst_analyze.__all__) <= set(dir(dst_analyze))

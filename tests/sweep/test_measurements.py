"""Measurements of a trial, per layer and per model, at regular steps."""

import pandas as pd
import pytest
import torch
from torch import nn

from dst_analyze import read_masks
from dst_analyze.masking.masked import mask_model
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.run.record import READING_COLUMNS, STEP_COLUMNS, TrialKey
from dst_analyze.sweep.run_sweep import run_sweep
from dst_analyze.sweep.training.measurements import READINGS, SCORES, Readings

X, Y = torch.randn(48, 2, 6, 6), torch.randint(0, 3, (48,))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.grouped = nn.Conv2d(4, 6, 1, groups=2)
        self.deep = nn.Conv2d(6, 6, 3, groups=6)
        self.up = nn.ConvTranspose2d(6, 5, 2)
        self.lstm = nn.LSTM(5, 3, batch_first=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = self.up(self.deep(self.grouped(self.conv(x).relu())))
        return self.head(self.lstm(x.flatten(2).transpose(1, 2))[0][:, -1])


def readings_of(masked):
    readings = Readings(TrialKey(1e-3, 0), masked, READINGS, lambda: 0.5, lambda progress: None)
    readings.on_step(1, 2.0)
    frame = readings.layer_frame().set_index("layer")
    return readings, frame


def test_a_fresh_model_has_every_row_and_column():
    masked = mask_model(Net(), X[:2])
    _, frame = readings_of(masked)
    assert list(frame.columns) == [name for name in READING_COLUMNS if name != "layer"]
    assert frame["columns"].to_dict() == {
        "conv": 2, "grouped": 4, "deep": 6, "up": 6, "lstm.weight_ih_l0": 5, "lstm.weight_hh_l0": 3, "head": 3,
    }  # fmt: skip
    assert frame["rows"].to_dict() == {
        "conv": 4, "grouped": 6, "deep": 6, "up": 5, "lstm.weight_ih_l0": 12, "lstm.weight_hh_l0": 12, "head": 3,
    }  # fmt: skip
    assert (frame[["remaining", "null"]] == 1).all(axis=None)


@torch.no_grad()
def test_dead_rows_and_unread_channels_are_counted():
    masked = mask_model(Net(), X[:2])
    weights, thresholds = masked.layer_weights(), masked.layer_thresholds()
    weights["conv"][:, 1] = 0  # the second input channel is not read
    thresholds["conv"].fill_(1e-12)
    weights["grouped"][3:, 0] = 0  # the first channel of the second group
    thresholds["grouped"].fill_(1e-12)
    thresholds["deep"].view(-1)[:2] = 10.0  # two filters, and with them the two channels they read
    weights["up"][4] = 0
    thresholds["up"].fill_(1e-12)
    thresholds["head"].view(-1).copy_(torch.tensor([-1.0, 0.0, 10.0]))
    _, frame = readings_of(masked)
    assert frame["columns"][["conv", "grouped", "deep", "up", "head"]].tolist() == [1, 3, 4, 5, 3]
    assert frame["rows"][["conv", "grouped", "deep", "up", "head"]].tolist() == [4, 6, 4, 5, 2]
    assert frame.loc["conv", "remaining"] == 0.5
    assert frame.loc["head", ["threshold_min", "threshold_median", "threshold_max"]].tolist() == [-1, 0, 10]
    assert frame["remaining"].to_dict() == masked.remaining()


def test_an_operation_with_two_inputs_has_no_columns():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.both = nn.Bilinear(4, 5, 3)

        def forward(self, x):
            return self.both(x, x.repeat(1, 2)[:, :5])

    assert trace_model(Two(), torch.randn(2, 4)).layers[0].layout.inputs == ()
    _, frame = readings_of(mask_model(Two(), torch.randn(2, 4)))
    assert frame["columns"].isna().all()


def test_a_trial_keeps_both_records(tmp_path):
    data = X.flatten(1), Y
    model = nn.Sequential(nn.Linear(72, 16), nn.ReLU(), nn.Linear(16, 3))
    record = run_sweep(model, data, alphas=[1e-2], steps=400, out=tmp_path / "run")
    trial = tmp_path / "run" / "trials" / "alpha=0.01,seed=0"
    layers, steps = pd.read_csv(trial / "record.csv"), pd.read_csv(trial / "steps.csv")
    assert list(steps.columns) == list(STEP_COLUMNS)
    assert list(steps["step"]) == list(range(10, 401, 10))
    assert steps["score"].notna().sum() == SCORES
    assert steps["score"].dropna().between(0, 1).all()
    whole = (
        layers.assign(kept=layers["remaining"] * layers["layer"].map({0: 1152, 2: 48})).groupby("step")["kept"].sum()
    )
    assert (whole / 1200).tolist() == pytest.approx(steps["remaining"].tolist())
    assert record.trials[1].remaining == pytest.approx(steps["remaining"].iloc[-10:].median())
    # The null keeps as much of the model as training did, only elsewhere.
    null = layers.assign(kept=layers["null"] * layers["layer"].map({0: 1152, 2: 48})).groupby("step")["kept"].sum()
    assert (null / 1200).tolist() == pytest.approx(steps["remaining"].tolist(), abs=0.01)
    masks = read_masks(trial / "masks.safetensors")
    assert {name: mask.shape for name, mask in masks.items()} == {"0": (16, 72), "2": (3, 16)}
    last = layers[layers["step"] == 400].set_index("layer")["remaining"]
    assert [mask.mean() for mask in masks.values()] == pytest.approx(last.tolist())
    assert (trial / "masks.safetensors").stat().st_size < 1200
    assert not (tmp_path / "run" / "trials" / "dense,seed=0" / "masks.safetensors").exists()
    dense = pd.read_csv(tmp_path / "run" / "trials" / "dense,seed=0" / "steps.csv")
    assert dense["remaining"].isna().all()
    assert dense["loss"].notna().all()
    assert dense["loss"].iloc[-1] < dense["loss"].iloc[0]


def test_scoring_on_the_way_changes_nothing(tmp_path):
    """Dropout would draw other numbers and batch norm other statistics if a reading left the model in eval mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(72, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    data = X.flatten(1), Y
    frames = []
    for every in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("dst_analyze.sweep.training.measurements.STEPS_BETWEEN_SCORES", every)
            out = tmp_path / str(every)
            frames.append(run_sweep(model, data, alphas=[1e-2], steps=40, out=out).frame)
    assert frames[0].equals(frames[1])

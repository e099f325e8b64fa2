"""Weights trained before they are masked: once for all trials of a seed, and to the same end whoever trains them."""

import pytest
import torch
from torch import nn

from dst_analyze.masking.masked import mask_model
from dst_analyze.sweep.engine import Inline, attempt
from dst_analyze.sweep.errand import Trial
from dst_analyze.sweep.events import TrialFinished
from dst_analyze.sweep.grid import run_plan, run_sweep
from dst_analyze.sweep.magnitudes import Magnitudes
from dst_analyze.sweep.plan import plan_sweep
from dst_analyze.sweep.record import TrialKey
from dst_analyze.sweep.train import train
from dst_analyze.sweep.trial import run_trial, seeded
from dst_analyze.sweep.warm_up import next_wave, origin, packed, restored

X, Y = torch.randn(96, 12), torch.randint(0, 3, (96,))
A, B = 1e-3, 1e-2


class Net(nn.Module):
    """With what else training changes, and with numbers drawn on the way."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.2)
        self.last = nn.Linear(16, 3)
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.last(self.drop(self.norm(self.first(x)).relu()))


def plan_of(tmp_path, **options):
    return plan_sweep(Net, (X, Y), alphas=[A, B], out=tmp_path / "run", **{"steps": 24, **options})


class Watched(Inline):
    """Remembers what was asked of it, and with which weights at hand."""

    def __init__(self):
        self.waves = []

    def run(self, task, errands, emit):
        errands = list(errands)
        self.waves.append(([trial.key for trial in errands], set(task.warmed)))
        yield from super().run(task, errands, emit)


def test_the_dense_trial_comes_first_and_all_others_start_from_it(tmp_path):
    plan, engine = plan_of(tmp_path, seeds=2), Watched()
    run_plan(plan, engine=engine)
    (first, none), (rest, warmed) = engine.waves
    assert first == [TrialKey(None, 0), TrialKey(A, 1)]
    assert none == set()
    assert rest == [TrialKey(A, 0), TrialKey(B, 0), TrialKey(B, 1)]
    assert warmed == {(0, False), (1, False)}


@pytest.mark.parametrize("options", [{}, {"warm_up": 7}, {"seeds": 2, "control": "shuffled-labels"}])
def test_it_makes_no_difference_who_has_trained_the_weights(tmp_path, options):
    plan = plan_of(tmp_path, **options)
    shared = run_plan(plan)
    for trial in shared.trials:
        alone = attempt(plan.task, Trial(trial.key), lambda event: None)  # with the sweep's number of threads
        assert alone.result == trial
        if trial.alpha is not None:
            frame = shared.frame.query("alpha == @trial.alpha and seed == @trial.seed and control == @trial.control")
            assert alone.readings["remaining"].tolist() == frame["remaining"].tolist()


def test_masks_come_to_weights_that_are_trained_and_the_null_to_those_that_are_not(tmp_path):
    plan = plan_of(tmp_path, warm_up=10, lr=0.2)
    output = run_trial(plan.task, TrialKey(A, 0), lambda event: None)
    with seeded(0):
        built = Net()
        fresh = Magnitudes({"first": built.first.weight, "last": built.last.weight})
        start = plan.task.recipe.start(built, 10)
        stream = plan.task.train_data.stream(0)
        train(
            built, stream, plan.task.objective(built), *start, plan.task.device, steps=10, alpha=0.0,
            on_step=lambda step, loss: False,
        )  # fmt: skip
    by_hand = Net()
    assert restored(by_hand, output.warmed)
    assert by_hand.seen == built.seen == 10
    assert all(
        torch.equal(a, b) for a, b in zip(by_hand.state_dict().values(), built.state_dict().values(), strict=True)
    )
    last = output.readings[output.readings["step"] == 24].set_index("layer")
    kept = float((last["remaining"] * [192, 48]).sum() / 240)
    assert last["null"].to_dict() == pytest.approx(fresh.null(kept), abs=1e-4)
    assert output.result.steps == 24
    assert run_trial(plan.task, TrialKey(None, 0), lambda event: None).warmed is None  # it is longer than the warm-up


def test_a_run_of_full_length_and_the_papers_have_none(tmp_path):
    for options in ({"recipe": "paper", "steps": 4}, {"warm_up": 0}):
        plan, engine = plan_of(tmp_path / str(len(options)), **options), Watched()
        assert plan.manifest.warm_up == 0
        run_plan(plan, engine=engine)
        assert [len(keys) for keys, _ in engine.waves] == [3]
        assert run_trial(plan.task, TrialKey(A, 0), lambda event: None).warmed is None


def test_a_sweep_goes_on_without_what_was_lost(tmp_path):
    """Trained weights are kept nowhere: whoever resumes trains them again, to the same numbers."""
    whole = run_sweep(Net, (X, Y), alphas=[A, B], steps=24, out=tmp_path / "whole")

    def stop(event):
        if isinstance(event, TrialFinished) and event.trial.alpha is None:
            raise KeyboardInterrupt

    options = {"alphas": [A, B], "steps": 24, "out": tmp_path / "part"}
    with pytest.raises(KeyboardInterrupt):
        run_sweep(Net, (X, Y), listener=stop, **options)
    resumed = run_sweep(Net, (X, Y), resume=True, **options)
    assert resumed.frame.equals(whole.frame)


def test_a_trial_whose_warm_up_diverges_says_so(tmp_path):
    plan = plan_of(tmp_path, lr=1e20)
    output = run_trial(plan.task, TrialKey(A, 0), lambda event: None)
    assert output.result.status == "diverged"
    assert output.warmed is None
    assert output.readings.empty
    assert not run_plan(plan).complete


def test_tied_weights_and_buffers_travel():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    twin[2].weight = twin[0].weight
    model(torch.randn(8, 4))
    assert restored(twin, packed(model))
    assert torch.equal(twin[1].running_mean, model[1].running_mean)
    assert torch.equal(twin[2].weight, model[0].weight)
    assert not restored(nn.Linear(4, 4), packed(model))
    assert not restored(twin, None)
    assert mask_model(twin, torch.randn(2, 4)).layers


def test_waves():
    dense, keys = TrialKey(None, 0), [TrialKey(a, s, c) for c in (False, True) for a in (A, B) for s in (0, 1)]

    def all_warm(key):
        return True

    def masked_warm(key):
        return key.alpha is not None

    wave = next_wave([dense, *keys], {}, all_warm)
    assert wave == [dense, TrialKey(A, 1), TrialKey(A, 0, True), TrialKey(A, 1, True)]
    assert next_wave([dense, *keys], {}, masked_warm) == [dense, *(key for key in keys if key.alpha == A)]
    assert next_wave(keys, {origin(key): b"" for key in keys}, all_warm) == keys
    assert next_wave(keys[1:], {(0, False): b""}, all_warm)[:3] == [keys[1], keys[2], keys[4]]
    assert next_wave([dense, *keys], {}, lambda key: False) == [dense, *keys]

"""The warm start: trained once for all trials of a seed, with the same result wherever it is trained."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from dst_analyze.masking.masked import mask_model
from dst_analyze.run.events import TrialFinished, WarmUpFinished, WarmUpStarted
from dst_analyze.run.record import TrialKey
from dst_analyze.sweep.engines import resources
from dst_analyze.sweep.engines.engine import InProcessEngine, attempt
from dst_analyze.sweep.engines.jobs import Trial, WarmUp
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_plan, run_sweep
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.train import train
from dst_analyze.sweep.training.trial import run_trial, seeded, train_warm_up
from dst_analyze.sweep.training.warm_start import missing_starts, pack_weights, restore_weights

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


class Watched(InProcessEngine):
    """An engine that records its jobs and the warm-up weights of their task."""

    def __init__(self):
        self.waves = []

    def run(self, task, jobs, emit):
        jobs = list(jobs)
        self.waves.append(([each.start if isinstance(each, WarmUp) else each.key for each in jobs], set(task.warmed)))
        yield from super().run(task, jobs, emit)


def test_weights_are_trained_once_for_each_seed_and_all_trials_start_from_them(tmp_path):
    plan, engine, events = plan_of(tmp_path, seeds=2), Watched(), []
    run_plan(plan, events.append, engine)
    (starts, none), (trials, warmed) = engine.waves
    assert starts == [(0, False), (1, False)]
    assert none == set()
    assert trials == [TrialKey(None, 0), TrialKey(A, 0), TrialKey(A, 1), TrialKey(B, 0), TrialKey(B, 1)]
    assert warmed == {(0, False), (1, False)}
    assert [type(event) for event in events if "WarmUp" in type(event).__name__] == [WarmUpStarted, WarmUpFinished] * 2


def test_the_reference_is_trained_as_the_masked_trials_are(tmp_path):
    """From the same weights, for as many steps, on the same batches: only nothing is pruned."""
    plan = plan_of(tmp_path, lr=0.1)
    assert plan.manifest.reference == "trained alike"
    start = train_warm_up(plan.task, (0, False), lambda step, loss: False).weights
    with seeded(0):
        model = Net()
        assert restore_weights(model, start)
        torch.manual_seed(0)
        stream, objective = plan.task.train_data.stream(0), plan.task.objective(model)
        losses = []
        train(
            model, stream, objective, *plan.task.recipe.start(model), plan.task.device, steps=24,
            on_step=lambda step, loss: losses.append(loss) or False,
        )  # fmt: skip
    dense = run_plan(plan).steps.query("alpha.isna()")
    assert dense["loss"].tolist() == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"warm_up": 7}, {"seeds": 2, "control": "shuffled-labels"}])
def test_results_do_not_depend_on_where_the_warm_up_ran(tmp_path, options):
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
    start = train_warm_up(plan.task, (0, False), lambda step, loss: False).weights
    output = run_trial(plan.task, TrialKey(A, 0), lambda event: None)
    with seeded(0):
        built = Net()
        fresh = Magnitudes({"first": built.first.weight, "last": built.last.weight})
        begun = plan.task.recipe.start(built, 10)
        stream = plan.task.train_data.stream(0)
        train(
            built, stream, plan.task.objective(built), *begun, plan.task.device, steps=10,
            on_step=lambda step, loss: False,
        )  # fmt: skip
    by_hand = Net()
    assert restore_weights(by_hand, start)
    assert by_hand.seen == built.seen == 10
    assert all(
        torch.equal(a, b) for a, b in zip(by_hand.state_dict().values(), built.state_dict().values(), strict=True)
    )
    last = output.readings[output.readings["step"] == 24].set_index("layer")
    kept = float((last["remaining"] * [192, 48]).sum() / 240)
    assert last["null"].to_dict() == pytest.approx(fresh.null(kept), abs=1e-4)
    assert output.result.steps == 24


def test_a_run_of_full_length_and_the_papers_have_none(tmp_path):
    for options in ({"recipe": "paper", "steps": 4}, {"warm_up": 0}):
        plan, engine = plan_of(tmp_path / str(len(options)), **options), Watched()
        assert plan.manifest.warm_up == 0
        run_plan(plan, engine=engine)
        assert [len(keys) for keys, _ in engine.waves] == [3]


def test_a_sweep_goes_on_without_what_was_lost(tmp_path):
    """Warm-up weights are not saved: a resumed sweep trains them again, with the same result."""
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
    assert train_warm_up(plan.task, (0, False), lambda step, loss: False).weights is None
    assert output.readings.empty
    assert not run_plan(plan).complete


def test_tied_weights_and_buffers_travel():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    twin = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    twin[2].weight = twin[0].weight
    model(torch.randn(8, 4))
    assert restore_weights(twin, pack_weights(model))
    assert torch.equal(twin[1].running_mean, model[1].running_mean)
    assert torch.equal(twin[2].weight, model[0].weight)
    assert not restore_weights(nn.Linear(4, 4), pack_weights(model))
    assert not restore_weights(twin, None)
    assert mask_model(twin, torch.randn(2, 4)).layers


def test_missing_starts_are_those_that_are_not_trained_yet():
    keys = [TrialKey(a, s, c) for c in (False, True) for a in (None, A, B) for s in (0, 1)]
    assert missing_starts(keys, {}) == [(0, False), (1, False), (0, True), (1, True)]
    assert missing_starts(keys[1:], {(0, False): b"", (1, True): None}) == [(1, False), (0, True)]
    assert missing_starts([], {}) == []


@pytest.mark.parametrize(("warm_ups", "threads"), [(1, 4), (2, 2), (3, 2)])
def test_a_warm_up_that_all_wait_for_has_all_cores(monkeypatch, warm_ups, threads):
    monkeypatch.setattr(resources, "cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    large = 10**9
    assert resources.threads_per_trial(large, 64) == 2
    assert resources.threads_per_warm_up(large, 64, warm_ups) == threads
    assert resources.threads_per_warm_up(10, 64, warm_ups) == resources.threads_per_trial(10, 64) == 1


def test_the_threads_of_a_warm_up_are_those_of_the_run_wherever_it_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr("dst_analyze.sweep.planning.plan.threads_per_warm_up", lambda *args: 3)
    used = []

    def watched(*args, steps, **options):
        used.append((steps, torch.get_num_threads()))
        return train(*args, steps=steps, **options)

    monkeypatch.setattr("dst_analyze.sweep.training.trial.train", watched)
    plan = plan_of(tmp_path, warm_up=7)
    record = run_plan(plan)
    assert record.manifest.warm_up_threads == 3
    assert used == [(7, 3), (24, 1), (24, 1), (24, 1)]
    used.clear()
    monkeypatch.setattr("dst_analyze.sweep.planning.plan.threads_per_warm_up", lambda *args: 1)  # another machine
    (tmp_path / "run" / "trials" / "alpha=0.001,seed=0" / "trial.json").unlink()
    again = plan_of(tmp_path, warm_up=7, existing="resume")
    assert run_plan(again).manifest.warm_up_threads == 3
    assert used == [(7, 3), (24, 1)]
    used.clear()
    run_trial(replace(plan.task, warmed={}), TrialKey(A, 0), lambda event: None)  # one that has to train its own
    assert used == [(7, 3), (24, 1)]


def test_a_manifest_names_them_only_where_they_are_others(tmp_path):
    run_plan(plan_of(tmp_path))
    assert "warm_up_threads" not in (tmp_path / "run" / "manifest.json").read_text()

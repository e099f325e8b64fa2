"""The recipe: which optimizer with which groups, the schedules, the thresholds' clock and its speed limit."""

import pytest
import torch
from torch import nn

from dst_analyze.errors import ModelError, OptionError
from dst_analyze.masking.masked import mask_model
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import FASTEST, FULL_LENGTH
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.device import Device
from dst_analyze.sweep.training.recipe import LARGEST_SHARE, MOMENTUM, SCHEDULES, Recipe

X, Y = torch.randn(32, 8), torch.randint(0, 4, (32,))


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def recipe(steps=600, **options):
    return Recipe.of(SweepConfig.checked(model="m", **options), steps)


def hooked(hook, steps=600, **options):
    return Recipe.of_hook(SweepConfig.checked(model="m", **options), steps, hook, mlp(), place="m.py")


HOOKS = {
    "adamw": lambda p: torch.optim.AdamW(p, weight_decay=0.1),
    "asgd": lambda p: torch.optim.ASGD(p, lambd=0.1, weight_decay=0.1),
    "rprop": lambda p: torch.optim.Rprop(p),
    "two groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], lr=0.1, weight_decay=1),
}


@pytest.mark.parametrize("name", [*HOOKS, "sgd", "adam", "adamw of ours"])
def test_thresholds_stand_apart_on_their_clock_without_decay(name):
    masked = mask_model(mlp(), X[:2])
    made = (
        hooked(HOOKS[name], threshold_clock=4)
        if name in HOOKS
        else recipe(optimizer=name.removesuffix(" of ours"), weight_decay=0.1, threshold_clock=4)
    )
    optimizer = made.make_optimizer(list(masked.weight_parameters()))
    training = made.train_thresholds(masked, 1e-3)
    training.follow(optimizer)
    nn.functional.cross_entropy(masked(X), Y).backward()
    optimizer.step()
    assert type(training.optimizer) is type(optimizer)
    (own,) = training.optimizer.param_groups
    assert own["params"] == [masked.thresholds]
    assert own.get("weight_decay", 0) == own.get("lambd", 0) == 0
    assert own["lr"] == pytest.approx(4 * optimizer.param_groups[0]["lr"])
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


def test_the_papers_recipe_is_a_set_of_defaults():
    paper, short = recipe(recipe="paper"), recipe()
    assert (paper.lr, paper.clock, paper.momentum) == (0.1, 1, 0.9)
    assert (short.lr, short.clock) == (0.05, FULL_LENGTH / 600)
    assert (paper.warm_up, short.warm_up) == (0, 600)
    assert (paper.threshold_scale, short.threshold_scale) == ("one", "layer")
    assert [SCHEDULES[paper.schedule][0](done) for done in (0.49, 0.5, 0.75)] == pytest.approx([1, 0.1, 0.01])
    asked = recipe(recipe="paper", lr=0.3, threshold_clock=4, warm_up=5)
    assert (asked.lr, asked.clock, asked.warm_up) == (0.3, 4, 5)
    assert recipe(recipe="paper", optimizer="adam").lr == 1e-3
    own = hooked(HOOKS["two groups"], recipe="paper")
    assert (own.lr, own.clock) == (0.3, 1)


def test_the_papers_length_is_160_epochs_unless_another_is_given(tmp_path):
    data = (X.repeat(8, 1), Y.repeat(8))
    lengths = {
        None: 160 * 4,
        "steps": 7,
        "epochs": 3 * 4,
    }
    for option, steps in lengths.items():
        given = {} if option is None else {option: steps if option == "steps" else 3}
        plan = plan_sweep(mlp, data, recipe="paper", out=tmp_path / "run", **given)
        assert plan.task.steps == steps


def test_weight_decay_reaches_the_weights_only():
    masked = mask_model(mlp(), X[:2])
    optimizer, _ = recipe(weight_decay=0.5, lr=1.0, threshold_clock=1).start(masked)
    before = masked.model[0].weight.detach().clone()
    with torch.no_grad():
        masked.thresholds.fill_(0.25)
    for parameter in masked.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(masked.model[0].weight, before / 2)
    assert (masked.thresholds == 0.25).all()


@pytest.mark.parametrize("option", [{"lr": 0.1}, {"optimizer": "adam"}, {"weight_decay": 0.1}])
def test_options_that_the_users_optimizer_would_ignore_are_refused(option):
    with pytest.raises(OptionError, match="has no effect"):
        hooked(HOOKS["adamw"], **option)
    with pytest.raises(ModelError, match="returned NoneType"):
        hooked(lambda parameters: None)


def test_frozen_weights_stay_frozen():
    model = mlp().requires_grad_(False)
    masked = mask_model(model, X[:2])
    optimizer, _ = recipe().start(masked, alpha=1.0)
    nn.functional.cross_entropy(masked(X), Y).backward()
    optimizer.step()
    assert (masked.thresholds != 0).any()
    assert all(map(torch.equal, model.parameters(), masked.weight_parameters()))


def rates(made, steps=None):
    optimizer, schedule = made.start(mlp(), steps)
    seen = []
    for _ in range(steps or made.steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


def test_the_learning_rate_falls_at_half_and_three_quarters():
    assert rates(recipe(8, lr=1.0)) == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])
    assert rates(recipe(1, lr=1.0)) == [1.0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_peaks_at_the_rate_asked_for(schedule):
    seen = rates(recipe(100, lr=0.5, schedule=schedule))
    assert max(seen) == pytest.approx(0.5)
    assert min(seen) > 0
    assert recipe(100, lr=0.5, schedule=schedule, threshold_clock=1).rates == pytest.approx(seen)
    assert SCHEDULES[schedule][1] in recipe(schedule=schedule).describe()


def test_the_clock_makes_up_for_a_short_run():
    assert recipe(FULL_LENGTH * 2).clock == 1
    assert recipe(600).clock == pytest.approx(FULL_LENGTH / 600)
    assert recipe(10).clock == FASTEST
    assert recipe(600, threshold_clock=1).clock == 1
    assert recipe(600, optimizer="adam").clock == 1
    assert hooked(lambda p: torch.optim.SGD(p, lr=0.1), 600).clock == pytest.approx(FULL_LENGTH / 600)


def test_the_warm_up_makes_up_for_a_short_run(tmp_path):
    assert [recipe(steps).warm_up for steps in (1, 600, FULL_LENGTH - 1)] == [1, 600, FULL_LENGTH - 1]
    assert recipe(FULL_LENGTH).warm_up == recipe(2 * FULL_LENGTH).warm_up == 0
    assert recipe(600, warm_up=100).warm_up == 100
    assert recipe(600, weights="trained.pt").warm_up == 0
    assert "starts from weights trained for 600 steps" in recipe(600).describe()
    assert "starts from" not in recipe(600, warm_up=0).describe()
    with pytest.raises(OptionError, match="greater than or equal to 0") as refused:
        plan_sweep(mlp(), (X, Y), alphas=[1e-3], warm_up=-1, out=tmp_path / "run")
    assert "--warm-up" in refused.value.place


def test_a_run_of_full_length_counts_thresholds_as_the_paper_does():
    assert [recipe(steps).threshold_scale for steps in (1, FULL_LENGTH - 1, FULL_LENGTH)] == ["layer", "layer", "one"]
    assert (
        recipe(600, threshold_scale="one").threshold_scale,
        recipe(FULL_LENGTH, threshold_scale="layer").threshold_scale,
    ) == (
        "one",
        "layer",
    )
    assert recipe(recipe="paper", threshold_scale="layer").threshold_scale == "layer"


def test_the_warm_up_has_the_whole_schedule():
    assert rates(recipe(8, lr=1.0), steps=4) == pytest.approx([1, 1, 0.1, 0.01])


@pytest.mark.parametrize("unit", ["one", "layer"])
@pytest.mark.parametrize("threshold", ["vector", "scalar", "matrix"])
def test_a_fast_clock_has_a_speed_limit(threshold, unit):
    masked = mask_model(mlp(), X[:2], threshold=threshold, threshold_scale=unit)
    optimizer, _ = recipe(lr=10.0, threshold_clock=100).start(masked)
    limit = LARGEST_SHARE * masked.typical_magnitudes()
    (nn.functional.cross_entropy(masked(X), Y) + masked.sparsity_loss()).backward()
    optimizer.step()
    assert (masked.effective_thresholds().abs() <= limit * 1.0001).all()
    assert (masked.thresholds > 0).any()
    assert torch.isclose(masked.effective_thresholds(), limit).any()
    rows = masked.layers[0]
    first = mlp()[0].weight.abs()
    expected = {"vector": first.mean(1), "scalar": first.mean()[None], "matrix": first.mean(1).repeat_interleave(8)}
    assert torch.allclose(limit[rows.start : rows.stop], LARGEST_SHARE * expected[threshold])


def test_the_papers_clock_has_no_speed_limit():
    masked = mask_model(mlp(), X[:2])
    optimizer, _ = recipe(lr=10.0, threshold_clock=1).start(masked)
    (nn.functional.cross_entropy(masked(X), Y) + masked.sparsity_loss()).backward()
    gradient = masked.thresholds.grad.clone()
    optimizer.step()
    assert torch.equal(masked.thresholds.detach(), -10 * gradient)


def test_a_recipe_in_words():
    assert recipe().describe().startswith(f"SGD, learning rate 0.05, momentum {MOMENTUM}, times 0.1")
    assert (
        recipe(optimizer="adamw", weight_decay=0.01).describe().startswith("AdamW, learning rate 0.001, weight decay")
    )


def test_devices():
    assert Device.chosen("cpu") == Device("cpu")
    assert Device.chosen("auto").name in ("cuda", "mps", "cpu")
    for name, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if not there:
            with pytest.raises(OptionError, match=f"no {name} device"):
                Device.chosen(name)
    with Device("cpu", amp=True).precision():
        assert mlp()(X).dtype == torch.bfloat16
    moved = Device("meta").moved({"x": (X, "name"), "n": 3})
    assert moved["x"][0].is_meta
    assert moved["x"][1] == "name"

"""What can be said before training: how far thresholds come, and what lies within their reach."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dst_analyze.sweep.forecast import enough_steps, forecast, reach, travel, warning
from dst_analyze.sweep.magnitudes import Magnitudes
from dst_analyze.sweep.plan import plan_sweep
from dst_analyze.sweep.recipe import Recipe
from dst_analyze.sweep.record import SweepConfig


def recipe(steps, **options):
    return Recipe.of(SweepConfig.checked(model="m", **options), steps)


def simulated(made, alpha):
    """One threshold under the regulariser alone, moved by torch's own optimizer."""
    threshold = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = made._optimizer([], [threshold])
    for rate in made.rates:
        optimizer.param_groups[0]["lr"] = float(rate)
        optimizer.zero_grad()
        (alpha * torch.exp(-threshold)).sum().backward()
        optimizer.step()
    return threshold.item()


recipes = st.fixed_dictionaries(
    {
        "lr": st.floats(1e-3, 0.1),
        "schedule": st.sampled_from(["step", "cosine", "onecycle", "constant"]),
        "threshold_clock": st.floats(1, 30),
    }
)
alphas = st.floats(1e-6, 1e-2)


@settings(max_examples=25, deadline=None)
@given(recipes, st.integers(5, 120), alphas)
def test_sgd_travels_as_the_formula_says(options, steps, alpha):
    made = recipe(steps, **options)
    far, most = simulated(made, alpha), alpha * reach(made)
    # The pull fades continuously in the formula and step by step in truth: the truth lies between it and no fading.
    assert travel(made, alpha) <= far * (1 + 1e-9) <= most * (1 + 1e-6)
    assert travel(made, alpha) == pytest.approx(far, rel=0.02 + most / 2)


@settings(max_examples=15, deadline=None)
@given(recipes, st.integers(5, 120), alphas, st.sampled_from(["adam", "adamw"]))
def test_adam_travels_the_sum_of_its_rates_whatever_alpha(options, steps, alpha, optimizer):
    made = recipe(steps, optimizer=optimizer, **{**options, "lr": options["lr"] / 1000})
    # It remembers the stronger pull of earlier steps, and so lags a little behind as the pull fades.
    assert 0.95 * travel(made, alpha) <= simulated(made, alpha) <= travel(made, alpha) * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(recipes, st.integers(50, 20_000), alphas)
def test_more_alpha_and_more_clock_travel_further(options, steps, alpha):
    made = recipe(steps, **options)
    assert travel(made, 2 * alpha) > travel(made, alpha)
    faster = recipe(steps, **{**options, "threshold_clock": 2 * options["threshold_clock"]})
    assert reach(faster) == pytest.approx(2 * reach(made))


UNEVEN = Magnitudes({"small": torch.linspace(-0.1, 0.1, 40_001), "large": torch.linspace(0, 1, 1_001)})


@given(st.floats(0, 1.2))
def test_shares_above_a_threshold(threshold):
    kept = UNEVEN.kept(threshold)
    assert kept["small"] == pytest.approx(max(0, 1 - threshold / 0.1), abs=0.02)
    assert kept["large"] == pytest.approx(max(0, 1 - threshold), abs=0.002)
    whole = (40_001 * kept["small"] + 1_001 * kept["large"]) / 41_002
    assert UNEVEN.model_kept(threshold) == pytest.approx(whole, abs=1e-6)


@given(st.floats(0.001, 1))
def test_the_null_keeps_as_much_as_the_model(ratio):
    null = UNEVEN.null(ratio)
    assert (40_001 * null["small"] + 1_001 * null["large"]) / 41_002 == pytest.approx(ratio, abs=0.01)
    assert null["small"] <= null["large"] + 0.01


def test_zeros_are_not_pruned_by_nothing():
    zeros = Magnitudes({"head": torch.zeros(10)})
    assert zeros.kept(0.0) == {"head": 1.0}
    assert zeros.kept(1e-9) == {"head": 0.0}
    assert zeros.null(1.0) == {"head": 1.0}


def test_too_little_is_said_with_what_would_do():
    made = recipe(100, threshold_clock=1)
    weak = forecast(made, [1e-7, 1e-1], UNEVEN)
    assert weak[0].pruned < 0.05 < weak[1].pruned
    text = warning(made, weak, UNEVEN)
    assert "alpha 1e-7 cannot prune" in text
    wanted = float(text.split("Alphas from ")[1].split(" would")[0])
    assert forecast(made, [wanted], UNEVEN)[0].pruned == pytest.approx(0.5, abs=0.03)
    steps = int(text.split(", or ")[1].split(" steps")[0].replace(",", ""))
    longer = recipe(steps, threshold_clock=1)
    assert forecast(longer, [1e-7], UNEVEN)[0].pruned == pytest.approx(0.5, abs=0.03)
    assert warning(made, forecast(made, [wanted], UNEVEN), UNEVEN) == ""


def test_a_longer_run_has_a_slower_clock_of_its_own():
    made = recipe(600)
    alpha = 1e-5
    steps = enough_steps(made, alpha, 0.3)
    assert travel(recipe(steps), alpha) >= 0.3
    assert travel(recipe(int(steps * 0.9)), alpha) < 0.3
    assert enough_steps(made, 1e-12, 1.0) is None


def test_an_unknown_optimizer_has_no_forecast():
    hook = torch.optim.Rprop
    made = Recipe.of_hook(SweepConfig.checked(model="m"), 10, hook, nn.Linear(2, 2), place="")
    assert forecast(made, [1e-3], UNEVEN) == ()
    assert "cannot be foretold" in warning(made, (), UNEVEN)


def test_in_a_few_steps_the_limit_of_each_is_what_counts():
    quick = recipe(10, threshold_clock=30)
    assert quick.farthest == pytest.approx(0.2)
    (seen,) = forecast(quick, [1.0], UNEVEN)
    assert seen.travel > 1
    assert seen.layers["small"] == pytest.approx(0.1, abs=0.01)  # 0.2 of a mean magnitude of 0.05, uniform up to 0.1
    assert seen.pruned == pytest.approx(0.1, abs=0.01)
    assert recipe(10, threshold_clock=1).farthest == math.inf


def test_the_plan_warns_before_training(tmp_path):
    data = torch.randn(64, 16), torch.randint(0, 4, (64,))
    weak = plan_sweep(nn.Linear(16, 4), data, alphas=[1e-9, 1e-8], steps=20, out=tmp_path / "run").manifest
    assert "cannot prune" in weak.warning
    assert [each.alpha for each in weak.forecast] == [1e-9, 1e-8]
    assert math.isclose(weak.forecast[0].pruned, next(iter(weak.forecast[0].layers.values())), abs_tol=1e-3)
    strong = plan_sweep(nn.Linear(16, 4), data, alphas=[0.1, 0.2], steps=200, out=tmp_path / "run").manifest
    assert strong.warning == ""
    assert strong.clock == 30
    assert not list(tmp_path.iterdir())

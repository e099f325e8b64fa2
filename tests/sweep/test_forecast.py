"""Forecasts before training: how far thresholds travel, and what they can prune."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dst_analyze.run.config import SweepConfig
from dst_analyze.sweep.planning.estimates.forecast import PAPER_TRAVEL, Travel, enough_steps, forecast, warning
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.recipe import Recipe


def recipe(steps, **options):
    return Recipe.of(SweepConfig.checked(model="m", **options), steps)


def literal(made, noise=None):
    """With alphas as they are given."""
    return Travel(made, noise, asked=1.0)


def simulated(made, alpha):
    """One threshold under the regulariser alone, moved by torch's own optimizer."""
    threshold = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = made.make_optimizer([threshold])  # thresholds are trained by one of the same kind
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
    travel = literal(made)
    far, most = simulated(made, alpha), alpha * travel.per_unit
    # The pull fades continuously in the formula and step by step in truth: the truth lies between it and no fading.
    assert travel.farthest(alpha) <= far * (1 + 1e-9) <= most * (1 + 1e-6)
    assert travel.farthest(alpha) == pytest.approx(far, rel=0.02 + most / 2)


@settings(max_examples=15, deadline=None)
@given(recipes, st.integers(5, 120), alphas, st.sampled_from(["adam", "adamw"]))
def test_adam_travels_the_sum_of_its_rates_where_nothing_else_pulls(options, steps, alpha, optimizer):
    made = recipe(steps, optimizer=optimizer, **{**options, "lr": options["lr"] / 1000})
    travel = literal(made, noise=1e-9)
    # It remembers the stronger pull of earlier steps, and so lags a little behind as the pull fades.
    assert 0.95 * travel.farthest(alpha) <= simulated(made, alpha) <= travel.farthest(alpha) * (1 + 1e-6)


def test_adam_travels_by_the_pull_over_the_noise():
    """One threshold under torch's Adam, pulled steadily and pushed about by noise: the formula's shape holds."""
    made, sigma, steps = recipe(4_000, optimizer="adam", schedule="constant"), 0.1, 4_000

    def went(alpha):
        threshold = nn.Parameter(torch.zeros(64, dtype=torch.float64))
        optimizer = made.make_optimizer([threshold])
        generator = torch.Generator().manual_seed(0)
        for _ in range(steps):
            threshold.grad = sigma * torch.randn(64, generator=generator, dtype=torch.float64) - alpha
            optimizer.step()
        return float(threshold.detach().mean())

    for alpha in (0.003, 0.03, 1.0):
        exact = float(made.rates.sum()) * alpha / math.hypot(alpha, sigma)
        assert went(alpha) == pytest.approx(exact, rel=0.1)
    assert literal(made, sigma).farthest(0.03) == pytest.approx(went(0.03), rel=0.1)


@settings(max_examples=40, deadline=None)
@given(recipes, st.integers(5, 20_000), st.sampled_from(["sgd", "adamw"]), st.floats(1e-7, 1e-4))
def test_the_same_alpha_travels_as_far_as_in_the_paper_whatever_the_recipe(options, steps, optimizer, alpha):
    made = recipe(steps, optimizer=optimizer, **options)
    travel = Travel(made, 1e-3 if optimizer == "adamw" else None)
    assert alpha * travel.factor * travel.per_unit == pytest.approx(alpha * PAPER_TRAVEL, rel=0.006)  # three digits


def test_the_papers_own_recipe_has_a_factor_of_one():
    paper = recipe(160 * 782, recipe="paper")
    assert Travel(paper).factor == pytest.approx(1, rel=0.01)
    assert Travel(recipe(2_250)).factor == pytest.approx(27.9, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(recipes, st.integers(50, 20_000), st.floats(0.01, 0.9), st.sampled_from([None, 1e-2, 1e-4]))
def test_the_alpha_that_reaches_a_distance_reaches_it(options, steps, distance, noise):
    made = recipe(steps, optimizer="adam" if noise else "sgd", **options)
    for travel in (Travel(made, noise), literal(made, noise)):
        alpha = travel.alpha_to_reach(distance)
        if math.isinf(alpha):
            assert made.rates.sum() <= distance
        else:
            assert travel.farthest(alpha) == pytest.approx(distance, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(recipes, st.integers(50, 20_000), alphas)
def test_more_alpha_and_more_clock_travel_further(options, steps, alpha):
    made = recipe(steps, **options)
    travel = literal(made)
    assert travel.farthest(2 * alpha) > travel.farthest(alpha)
    faster = literal(recipe(steps, **{**options, "threshold_clock": 2 * options["threshold_clock"]}))
    assert faster.per_unit == pytest.approx(2 * travel.per_unit)
    assert Travel(faster.recipe).farthest(alpha) == pytest.approx(Travel(made).farthest(alpha), rel=0.01)


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


def test_an_alpha_that_cannot_prune_is_named_with_one_that_can():
    made = literal(recipe(100, threshold_clock=1))
    weak = forecast(made, [1e-7, 1e-1], UNEVEN)
    assert weak[0].pruned < 0.05 < weak[1].pruned
    assert warning(made, weak, UNEVEN) == ""  # one of them prunes: the results say which
    text = warning(made, weak[:1], UNEVEN)
    assert "alpha 1e-7 cannot prune" in text
    wanted = float(text.split("Use alphas of ")[1].split(" or more")[0])
    assert forecast(made, [wanted], UNEVEN)[0].pruned == pytest.approx(0.5, abs=0.03)
    steps = int(text.split(", or ")[1].split(" steps")[0].replace(",", ""))
    longer = literal(recipe(steps, threshold_clock=1))
    assert forecast(longer, [1e-7], UNEVEN)[0].pruned == pytest.approx(0.5, abs=0.03)
    assert warning(made, forecast(made, [wanted], UNEVEN), UNEVEN) == ""
    scaled = Travel(made.recipe)
    text = warning(scaled, forecast(scaled, [1e-12], UNEVEN), UNEVEN)
    wanted = float(text.split("Use alphas of ")[1].split(" or more")[0])
    assert forecast(scaled, [wanted], UNEVEN)[0].pruned == pytest.approx(0.5, abs=0.03)
    assert "steps at alpha" not in text  # more of them would change the scale, too


def test_a_longer_run_has_a_slower_clock():
    made = literal(recipe(600))
    alpha = 1e-5
    steps = enough_steps(made, alpha, 0.3)
    assert literal(recipe(steps)).farthest(alpha) >= 0.3
    assert literal(recipe(int(steps * 0.9))).farthest(alpha) < 0.3
    assert enough_steps(made, 1e-12, 1.0) is None


def test_an_unknown_optimizer_has_no_forecast():
    hook = torch.optim.Rprop
    made = Recipe.of_hook(SweepConfig.checked(model="m"), 10, hook, nn.Linear(2, 2), place="")
    assert forecast(Travel(made), [1e-3], UNEVEN) == ()
    assert "cannot be forecast" in warning(Travel(made), (), UNEVEN)


def test_where_steps_are_too_few_for_any_alpha_more_of_them_are_advised():
    quick = literal(recipe(2, threshold_clock=30))
    text = warning(quick, forecast(quick, [1e-3], UNEVEN), UNEVEN)
    assert "Give more steps" in text
    assert "Use alphas of" not in text


def test_in_a_few_steps_the_limit_of_each_is_what_counts():
    quick = recipe(10, threshold_clock=30)
    assert quick.farthest == pytest.approx(0.2)
    (seen,) = forecast(literal(quick), [1.0], UNEVEN)
    assert seen.travel > 1
    assert seen.layers["small"] == pytest.approx(0.1, abs=0.01)  # 0.2 of a mean magnitude of 0.05, uniform up to 0.1
    assert seen.pruned == pytest.approx(0.1, abs=0.01)
    assert recipe(10, threshold_clock=1).farthest == math.inf


def test_the_plan_warns_before_training(tmp_path):
    data = torch.randn(64, 16), torch.randint(0, 4, (64,))
    weak = plan_sweep(nn.Linear(16, 4), data, alphas=[1e-12, 1e-11], steps=20, out=tmp_path / "run").manifest
    assert "cannot prune" in weak.warning
    assert [each.alpha for each in weak.forecast] == [1e-12, 1e-11]
    assert math.isclose(weak.forecast[0].pruned, next(iter(weak.forecast[0].layers.values())), abs_tol=1e-3)
    strong = plan_sweep(nn.Linear(16, 4), data, alphas=[1e-5, 2e-5], steps=200, out=tmp_path / "run").manifest
    assert strong.warning == ""
    assert strong.clock == 30
    assert not list(tmp_path.iterdir())

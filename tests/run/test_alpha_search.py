"""The search for alphas: pure, so it is tried on made-up models whose every answer is known."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dst_analyze.errors import OptionError
from dst_analyze.run.alpha_search import AUTO_TARGETS, STRONGEST, WEAKEST, Search, plateau, schedule_of, search_of
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.record import TrialKey, TrialResult
from dst_analyze.sweep.planning.estimates.forecast import Travel
from dst_analyze.sweep.planning.estimates.initial_alphas import HALVING, first_alphas
from dst_analyze.sweep.training.magnitudes import Magnitudes
from dst_analyze.sweep.training.recipe import Recipe


def config(**options):
    return SweepConfig.checked(model="m", **options)


def falling(half, slope):
    """A model that keeps half at alpha ``half``, whose log odds fall straight against log alpha."""
    return lambda alpha: 1 / (1 + math.exp(-slope * (math.log(alpha) - math.log(half))))


def swept(options, model, first=(1e-4, 1e-3)):
    """Follow a course to its end with a model in place of training; also every course on the way."""
    results, courses = {}, []
    while True:
        courses.append(schedule_of(options, first, results))
        missing = [key for key in courses[-1].keys if key not in results]
        if not missing:
            return results, courses
        for key in missing:
            ratio = None if key.alpha is None else model(key.alpha)
            status = "diverged" if ratio is not None and math.isnan(ratio) else "failed" if ratio == -1 else "done"
            results[key] = TrialResult(
                alpha=key.alpha, seed=key.seed, control=key.control, status=status, steps=1,
                remaining=ratio if status == "done" else None,
            )  # fmt: skip


def test_what_remains_after_a_collapse_is_no_target_reached():
    """Seen on VGG: layers that are reset again and again keep a quarter far beyond the alpha that left least."""
    seen = {9e-6: 0.76, 1.9e-5: 0.6, 1.4e-4: 0.09, 2.6e-4: 0.05, 1.3e-3: 0.25}
    search = Search((0.3,), tolerance=0.65, rounds=3)
    assert search.nearest(seen)[0].alpha in (1.9e-5, 1.4e-4)
    assert 1.9e-5 < search.next(seen)[0] < 1.4e-4


def test_a_search_ends_where_ratios_do_not_depend_on_alpha():
    """Seen on a model that had not learned: 1.1e-3 and 6.6e-2 both left 47 %."""
    seen = {1e-4: 0.9, 1.1e-3: 0.47, 6.6e-2: 0.47}
    assert plateau(seen) == (1.1e-3, 6.6e-2, 0.47)
    assert Search((0.3, 0.1), tolerance=0.65, rounds=3).next(seen) == ()
    assert all(1e-4 < alpha < 1.1e-3 for alpha in Search((0.7,), tolerance=0.1, rounds=3).next(seen))
    assert plateau({1e-4: 0.9, 1.1e-3: 0.47, 6.6e-2: 0.2}) is None
    assert plateau({1e-4: 0.99, 1e-2: 0.99}) is None  # nothing pruned yet
    assert plateau({1e-4: 0.012, 1e-2: 0.011}) is None  # held at 1 %
    results, courses = swept(config(), lambda alpha: 0.47)
    assert len(results) < 8
    assert courses[-1].settled


def test_a_search_goes_by_the_lowest_reading_where_layers_were_reset():
    ended = {"alpha": 1e-3, "seed": 0, "status": "done", "steps": 1, "remaining": 0.4, "lowest": 0.05}
    assert TrialResult(**ended).reached == 0.4
    assert TrialResult(**ended, resets={"conv": 3}).reached == 0.05
    assert TrialResult(**ended | {"status": "diverged"}).reached == 0


@settings(max_examples=200, deadline=None)
@given(
    st.floats(-7, -1).map(lambda x: 10**x),
    st.floats(-3, -0.4),
    st.lists(st.floats(0.03, 0.95), min_size=1, max_size=4, unique=True),
)
def test_every_target_is_found_on_a_model_that_falls(half, slope, targets):
    _, courses = swept(config(target_remaining=targets), falling(half, slope))
    found = courses[-1].targets
    assert [target.ratio for target in found] == targets
    for target in found:
        odds, asked = target.reached / (1 - target.reached), target.ratio / (1 - target.ratio)
        assert abs(math.log(odds / asked)) < 0.16  # a tenth, or as near as three digits of a steep alpha come
    assert courses[-1].alphas == tuple(sorted({target.alpha for target in found}))


@settings(max_examples=100, deadline=None)
@given(st.floats(-5.5, -2).map(lambda x: 10**x), st.floats(-2, -0.5))
def test_auto_spans_most_of_the_model_to_little_of_it(half, slope):
    _, courses = swept(config(), falling(half, slope))
    reached = [target.reached for target in courses[-1].targets]
    assert reached[0] > 0.6
    assert reached[-1] < 0.25
    assert len(courses[-1].keys) <= 1 + 2 + 3 * len(AUTO_TARGETS)


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.floats(1e-7, 1), st.floats(0, 1), min_size=1, max_size=8),
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=3, unique=True),
)
def test_whatever_was_seen_the_next_alphas_are_new_and_sane(seen, targets):
    for alpha in Search(tuple(targets), 0.1, 6).next(seen):
        assert alpha not in seen
        assert WEAKEST <= alpha <= STRONGEST
        assert min(seen) / 13 <= alpha <= max(seen) * 13


def test_the_course_only_grows_and_is_the_same_whatever_order_results_come_in():
    options = config(target_remaining=[0.5, 0.05], seeds=2)
    results, courses = swept(options, falling(3e-5, -1))
    for earlier, later in itertools.pairwise(courses):
        assert later.keys[: len(earlier.keys)] == earlier.keys
    backwards = dict(reversed(results.items()))
    assert schedule_of(options, (1e-4, 1e-3), backwards) == courses[-1]
    # The search is done with the first seed; the others only train what it has found.
    others = {key.alpha for key in courses[-1].keys if key.seed == 1}
    assert others == set(courses[-1].alphas)
    # Half of the results, as after a kill: what is known to be missing is missing from the whole as well.
    some = dict(list(results.items())[:3])
    assert set(schedule_of(options, (1e-4, 1e-3), some).keys) <= set(courses[-1].keys)


def test_given_alphas_are_the_grid():
    course = schedule_of(config(alphas=[1e-3, 1e-4], seeds=2, control="shuffled-labels"), (), {})
    assert course.settled
    assert course.alphas == (1e-3, 1e-4)
    grid = [(1e-3, 0), (1e-3, 1), (1e-4, 0), (1e-4, 1)]
    assert course.keys == (
        TrialKey(None, 0),
        *(TrialKey(*key) for key in grid),
        *(TrialKey(*key, control=True) for key in grid),
    )
    assert len({key.name for key in course.keys}) == len({key.label for key in course.keys}) == 9


def test_where_pushing_harder_brings_weights_back_the_search_ends():
    """Collapsed layers are reset: beyond some alpha more remains again."""
    results, courses = swept(config(target_remaining=[0.05]), lambda a: 0.2 if a < 2e-3 else 0.1 if a < 1e-2 else 0.4)
    assert courses[-1].targets[0].reached == 0.1
    assert max(key.alpha or 0 for key in results) < 0.5


def test_diverged_is_too_strong_and_failed_says_nothing():
    _, courses = swept(config(target_remaining=[0.3]), lambda a: math.nan if a > 5e-4 else falling(2e-4, -1)(a))
    assert courses[-1].targets[0].reached == pytest.approx(0.3, abs=0.03)
    results, courses = swept(config(target_remaining=[0.3]), lambda a: -1)
    assert courses[-1].targets == ()
    assert {key.alpha for key in results} == {None, 1e-4, 1e-3}


@pytest.mark.parametrize("steps", [50, 600, 10_000])
@pytest.mark.parametrize("options", [{}, {"lr": 1e-5}, {"optimizer": "adam"}, {"threshold_clock": 1}])
def test_first_alphas_rise_as_targets_fall(steps, options):
    made = Recipe.of(config(**options), steps)
    weights = Magnitudes({"a": nn.Linear(50, 50).weight, "b": nn.Linear(500, 9).weight})
    alphas = first_alphas(Travel(made, 1e-3 if made.family == "adam" else None), AUTO_TARGETS, weights)
    assert len(alphas) == 3
    assert alphas == tuple(sorted(alphas))
    assert all(WEAKEST < alpha < STRONGEST for alpha in alphas)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_search_starts_at_the_papers_alphas_whatever_the_recipe(optimizer):
    weights = Magnitudes({"a": nn.Linear(50, 50).weight})
    noise = 1e-3 if optimizer == "adamw" else None
    for steps in (600, 8_000):
        made = Recipe.of(config(optimizer=optimizer), steps)
        alphas = first_alphas(Travel(made, noise), AUTO_TARGETS, weights)
        assert 1e-7 < alphas[0] < HALVING < alphas[1] < alphas[2] < 3e-5  # half remains between 80 and 30 %
        literal = Travel(made, noise, asked=1.0)
        factor = Travel(made, noise).factor
        assert first_alphas(literal, AUTO_TARGETS, weights) == pytest.approx([a * factor for a in alphas], rel=0.06)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target_remaining": [0.5, 1.0]}, "not a share"),
        ({"target_remaining": [0.5, 0.5]}, "given twice"),
        ({"target_remaining": [float("nan")]}, "finite"),
        ({"alphas": []}, "at least one"),
        ({"alphas": "some"}, "auto"),
        ({"max_epochs": 3}, "until-stable"),
        ({"max_epochs": 3, "until_stable": True, "steps": 5}, "both set the length"),
    ],
)
def test_options_that_make_no_search_are_refused(options, said):
    with pytest.raises(OptionError, match=said):
        config(**options)


def test_who_searches():
    assert search_of(config(alphas=[1e-3])) is None
    assert search_of(config()).targets == AUTO_TARGETS
    assert search_of(config(target_remaining=[0.5], alphas=[1e-3])).targets == (0.5,)
    assert search_of(config(target_remaining=[0.5])).tolerance < search_of(config()).tolerance


def test_no_alpha_is_near_two_targets_of_auto():
    search = search_of(config())
    odds = [math.log(target / (1 - target)) for target in search.targets]
    assert all(one - other > 2 * search.tolerance for one, other in itertools.pairwise(odds))

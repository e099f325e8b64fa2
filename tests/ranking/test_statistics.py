"""The ranking's arithmetic, against brute force and scipy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from ratio_frames import ratio_arrays
from scipy import stats

from dst_analyze.ranking.statistics.measures import (
    as_w,
    correlations,
    explained,
    kendalls_w,
    mean_correlation,
    middle_mean,
    permutation_p,
    ranks,
    redundancy,
    resampled,
)
from dst_analyze.ranking.statistics.pairs import CLEAR, alike, clear_pairs, contradicted, guesses


@settings(deadline=None)
@given(ratio_arrays)
def test_w_is_friedmans_statistic_and_lies_between_0_and_1(ratios):
    ranked = ranks(-ratios)
    w = kendalls_w(ranked)
    m, n = ranked.shape
    tied = sum(sum(c**3 - c for c in np.unique(row, return_counts=True)[1]) for row in ranked)
    largest = m * m * (n**3 - n) - m * tied
    if largest == 0:
        assert math.isnan(w)
        return
    assert 0 <= w <= 1
    assert w == pytest.approx(12 * ((ranked.sum(axis=0) - m * (n + 1) / 2) ** 2).sum() / largest, abs=1e-9)
    if m > 2 and n > 2:
        assert m * (n - 1) * w == pytest.approx(stats.friedmanchisquare(*ranked.T).statistic, abs=1e-6)


@settings(deadline=None)
@given(st.permutations(range(6)), st.integers(2, 5))
def test_identical_orders_agree_perfectly(order, trials):
    ranked = np.tile(np.array(order, dtype=float), (trials, 1))
    assert kendalls_w(ranked) == pytest.approx(1)
    assert mean_correlation(ranked)[0] == pytest.approx(1)


@settings(deadline=None)
@given(ratio_arrays)
def test_the_mean_correlation_is_that_of_the_pairs_and_makes_w(ratios):
    ranked = ranks(-ratios + 1e-3 * np.arange(ratios.shape[1]))  # no ties
    if len(ranked) < 2:
        return
    pairs = [stats.spearmanr(a, b).statistic for a, b in itertools.combinations(ranked, 2)]
    assert mean_correlation(ranked)[0] == pytest.approx(np.mean(pairs), abs=1e-9)
    assert as_w(mean_correlation(ranked), len(ranked))[0] == pytest.approx(kendalls_w(ranked), abs=1e-9)
    assert correlations(ranked)[0, 1] == pytest.approx(pairs[0], abs=1e-9)


def test_the_p_value_is_that_of_all_permutations():
    ranked = np.array([[1.0, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4]])
    orders = list(itertools.permutations(range(4)))
    w = kendalls_w(ranked)
    every = [kendalls_w(np.array([ranked[0], ranked[1][list(a)], ranked[2][list(b)]])) for a in orders for b in orders]
    exact = np.mean(np.array(every) >= w - 1e-9)
    assert permutation_p(ranked, np.random.default_rng(0)) == pytest.approx(exact, abs=0.02)


@settings(deadline=None)
@given(ratio_arrays, st.data())
def test_raising_a_ratio_never_raises_the_redundancy(ratios, data):
    params = np.array([data.draw(st.integers(1, 1000)) for _ in range(ratios.shape[1])], dtype=float)
    trial, layer = data.draw(st.integers(0, len(ratios) - 1)), data.draw(st.integers(0, len(params) - 1))
    raised = ratios.copy()
    raised[trial, layer] = data.draw(st.floats(ratios[trial, layer], 1))
    for known in (params, None):
        before, after = redundancy(ratios, known), redundancy(raised, known)
        assert after[trial, layer] <= before[trial, layer] + 1e-12


@given(ratio_arrays)
def test_the_middle_mean_is_that_of_the_middle_half(values):
    fourfold = np.sort(np.repeat(values, 4, axis=1), axis=1)  # so that a quarter is a whole number of them
    count = values.shape[1]
    np.testing.assert_allclose(middle_mean(values)[:, 0], fourfold[:, count : 3 * count].mean(axis=1), atol=1e-12)


@settings(deadline=None)
@given(ratio_arrays)
def test_redundancies_differ_by_the_ratio_of_what_layers_keep(ratios):
    kept = np.maximum(ratios, 1e-4)
    values = redundancy(ratios, None)
    np.testing.assert_allclose(values[:, 0] - values[:, -1], np.log(kept[:, -1] / kept[:, 0]), atol=1e-9)
    assert (np.abs(middle_mean(values)) < 1e-9).all()


def test_draws_take_alphas_and_seeds_each_as_a_whole():
    alphas, seeds = np.repeat([1, 2, 3], 2), np.tile([0, 1], 3)
    counts = resampled(alphas, seeds, 500, np.random.default_rng(0)).reshape(-1, 3, 2)
    assert (counts.sum(axis=(1, 2)) == 6).all()
    assert all(np.linalg.matrix_rank(draw) == 1 for draw in counts[:50])
    one = resampled(np.array([1, 2, 3]), np.zeros(3), 500, np.random.default_rng(0))
    assert (one.sum(axis=1) == 3).all()
    missing = resampled(alphas[1:], seeds[1:], 500, np.random.default_rng(0))
    assert (missing.sum(axis=1) > 0).all()


def test_what_another_ranking_explains():
    rng = np.random.default_rng(0)
    null = np.tile(np.arange(1.0, 9), (6, 1))
    counts = resampled(np.repeat([1, 2, 3], 2), np.tile([0, 1], 3), 200, rng)
    same = explained(null, null, counts, steepest=1)
    assert same.share == pytest.approx(1)
    assert not same.says_more
    noisy = ranks(-null + rng.normal(0, 2, null.shape))
    assert not explained(noisy, null, counts, steepest=1).says_more
    own = np.tile(rng.permutation(8) + 1.0, (6, 1))
    assert explained(own, null, counts, steepest=1).says_more
    assert explained(own, 0.01 * own, counts, steepest=1).says_more  # tiny differences do not explain large ones
    assert explained(9 - null, null, counts, steepest=1).share == pytest.approx(0)  # the opposite is no explanation


@settings(deadline=None)
@given(ratio_arrays)
def test_contradictions_are_counted_pair_by_pair(ratios):
    values = redundancy(ratios, None)
    both = against = 0
    for one, other in itertools.combinations(values, 2):
        for i, j in itertools.combinations(range(values.shape[1]), 2):
            a, b = one[i] - one[j], other[i] - other[j]
            if abs(a) > CLEAR and abs(b) > CLEAR:
                both += 1
                against += a * b < 0
    assert contradicted(values) == pytest.approx(against / both if both else math.nan, nan_ok=True)


@settings(deadline=None)
@given(arrays(float, st.integers(2, 8), elements=st.sampled_from(np.linspace(-2, 2, 17))), st.data())
def test_clear_pairs_are_those_that_differ_and_every_order_has_them_or_its_reverse(values, data):
    more, less = clear_pairs(values)
    brute = [(i, j) for i in range(len(values)) for j in range(len(values)) if values[i] - values[j] > CLEAR]
    assert sorted(zip(more.tolist(), less.tolist(), strict=True)) == sorted(brute)
    assert (alike(values, values) == 1).all()
    assert (alike(values, -values) == 0).all()
    other = np.array(data.draw(st.permutations(range(len(values)))), dtype=float)
    np.testing.assert_allclose(alike(values, other) + alike(values, -other), 1)
    found = guesses(values, other, None)
    if found.pairs:
        assert found.beyond <= 1 - max(found.initial, found.depth) + 1e-9
        assert math.isnan(found.size)

"""The comparison of one trained model with several others: intervals that hold at once."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_rel

from dst_analyze.slimming.proof.comparison import compare_with_others, critical_value


@pytest.mark.parametrize(
    ("rivals", "degrees", "published"),
    [(1, 10, 2.23), (2, 12, 2.50), (3, 12, 2.68), (4, 20, 2.65), (7, 20, 2.86), (5, 60, 2.58)],
)
def test_critical_values_are_those_of_dunnetts_table(rivals, degrees, published):
    assert critical_value(rivals, degrees, 0.05) == pytest.approx(published, abs=0.006)


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 2), min_size=2, max_size=8))
def test_one_rival_is_compared_by_the_paired_t_test(pairs):
    own, other = zip(*pairs, strict=True)
    found = compare_with_others(own, {"it": other}, apart=(), looks=1)["it"]
    leads = np.subtract(own, other)
    half = t.isf(0.025, len(pairs) - 1) * leads.std(ddof=1) / math.sqrt(len(pairs))
    assert found.mean == pytest.approx(leads.mean(), abs=1e-9)
    assert found.high - found.mean == pytest.approx(half, rel=2e-3, abs=1e-6)
    if half > 1e-6:
        assert (found.low > 0 or found.high < 0) == (ttest_rel(own, other).pvalue < 0.05) or (
            abs(ttest_rel(own, other).pvalue - 0.05) < 1e-3
        )


def test_all_intervals_hold_at_once_in_95_of_100_proofs():
    rng, missed = np.random.default_rng(0), 0
    for _ in range(400):
        seeds = rng.normal(0, 3, 5)
        scores = {name: (seeds + rng.normal(0, 1, 5)).tolist() for name in "abcdefg"}
        own = (seeds + rng.normal(0, 1, 5)).tolist()
        leads = compare_with_others(own, scores, apart=(), looks=1)
        missed += any(lead.low > 0 or lead.high < 0 for lead in leads.values())
    assert 8 <= missed <= 34  # of 20 expected, four standard deviations wide


def test_a_model_with_noise_of_another_kind_does_not_widen_the_others():
    rng = np.random.default_rng(1)
    own, calm = rng.normal(0, 1, 5).tolist(), rng.normal(-9, 1, 5).tolist()
    wild = rng.normal(0, 50, 5).tolist()
    apart = compare_with_others(own, {"calm": calm, "wild": wild}, apart=("wild",), looks=1)
    pooled = compare_with_others(own, {"calm": calm, "wild": wild}, apart=(), looks=1)
    assert apart["calm"].low > 0 > pooled["calm"].low
    assert apart["wild"].high - apart["wild"].low > 10 * (apart["calm"].high - apart["calm"].low)


def test_models_with_fewer_seeds_and_diverged_trainings_are_compared_on_what_both_have():
    own = [0.9, 0.8, 0.85, 0.95]
    others = {"short": [0.7, 0.62], "diverged": [0.5, None, 0.42, 0.58], "never": [None, None]}
    found = compare_with_others(own, others, apart=(), looks=1)
    assert found["short"].mean == pytest.approx(0.19)
    assert found["diverged"].mean == pytest.approx(0.4)
    assert math.isfinite(found["short"].low)
    assert math.isnan(found["never"].mean)


def test_one_seed_has_no_bounds_and_more_looks_have_wider_ones():
    assert compare_with_others([0.9], {"a": [0.5], "b": [0.4]}, apart=(), looks=1)["a"].high == math.inf
    own, others = [0.9, 0.8, 0.85], {"a": [0.7, 0.62, 0.6], "b": [0.5, 0.6, 0.5]}
    once, thrice = (compare_with_others(own, others, apart=(), looks=looks)["a"] for looks in (1, 3))
    assert thrice.low < once.low < once.high < thrice.high

"""When a trial may end before its budget."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sweeps import TEST, TRAIN, mlp

from dst_analyze.run.caveats import notes_of
from dst_analyze.sweep.run_sweep import run_sweep
from dst_analyze.sweep.training.early_stop import EARLIEST, Stability, agreement

ratios = st.lists(st.floats(0, 1), min_size=4, max_size=12)


def end(readings, steps=100, remaining=0.5):
    """The reading at which a trial would end."""
    stability = Stability(steps)
    return next((i for i, layers in enumerate(readings, 1) if stability.reached(i, remaining, layers)), None)


def test_an_order_that_stands_still_ends_a_trial_but_not_at_once():
    still = [[0.1, 0.5, 0.9]] * 100
    assert end(still) == EARLIEST * 100
    assert end(still, remaining=0.99) is None  # nothing is pruned yet: the order says nothing


def test_an_order_that_changed_must_stand_for_a_third_of_the_way():
    assert end([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]] * 50) is None
    # Flipping until reading 50, then still: the last third of the first 75 is still for the first time.
    flipping = [[0.1, 0.5, 0.9], [0.9, 0.5, 0.1]] * 25
    assert end(flipping + [[0.1, 0.5, 0.9]] * 50) in (74, 75, 76)


@settings(max_examples=50, deadline=None)
@given(ratios)
def test_agreement_is_kendalls_tau(layers):
    values = np.array(layers)
    if np.ptp(values) == 0:
        assert agreement(values, values) == -1
    else:
        assert agreement(values, values) > 0.99
        assert agreement(values, -values) <= 0
        assert agreement(values, 2 * values) > 0.99


def test_a_trial_ends_early_and_says_so(tmp_path):
    options = {"alphas": [1e-3], "until_stable": True}
    record = run_sweep(mlp(), (TRAIN, TEST), steps=300, out=tmp_path / "run", **options)
    dense, trial = record.trials
    assert dense.steps == 300  # the reference has its whole budget
    assert not dense.stable
    assert trial.stable
    assert EARLIEST * 300 <= trial.steps < 300
    assert record.frame["step"].max() == trial.steps
    assert record.budget_saved == 1 - (300 + trial.steps) / 600
    assert any(note.title == "Until stable" and "saved" in note.text for note in notes_of(record))
    assert run_sweep(mlp(), (TRAIN, TEST), epochs=1, alphas=[1e-3], out=tmp_path / "fixed").budget_saved is None

"""The parts of a recipe that depend on the run's length are set when the recipe is made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dst_analyze.run.config import SweepConfig
from dst_analyze.run.defaults import AskedPace
from dst_analyze.sweep.training.recipe import Recipe


def config(**options):
    return SweepConfig.checked(model="m.py", **options)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("options", [{}, {"threshold_clock": 3.0}, {"warm_up": 7}, {"threshold_unit": "one"}])
@pytest.mark.parametrize("steps", [300, 2_250, 9_000])
def test_another_length_is_the_recipe_made_for_it(options, optimizer, steps):
    asked = config(optimizer=optimizer, **options)
    assert Recipe.of(asked, 600).lasting(steps) == Recipe.of(asked, steps)


def test_explicit_options_do_not_follow_the_length():
    made = Recipe.of(config(threshold_clock=3.0, warm_up=7, threshold_unit="one"), 600).lasting(300)
    assert (made.clock, made.warm_up, made.threshold_scale) == (3.0, 7, "one")


def test_a_replaced_field_changes_no_other():
    made = Recipe.of(config(), 600)
    assert replace(made, steps=9_000).clock == made.clock == 15


def test_a_reloaded_run_keeps_its_pace():
    made = Recipe.of(config(), 600, AskedPace(clock=2.0, warm_up=5, threshold_scale="one"))
    assert (made.clock, made.warm_up, made.threshold_scale) == (2.0, 5, "one")

"""Proportions: which channels are too many for the rest of a network."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dst_analyze import couple_channels
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.slimming.planning.density import GroupEvidence
from dst_analyze.slimming.planning.plan_widths import cost_of
from dst_analyze.slimming.planning.proportions import width_excess


def excess(widths, densities, inputs=16):
    """Return the excess of each hidden layer of a perceptron."""
    sizes = [inputs, *widths, 4]
    layers = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    traced = trace_model(nn.Sequential(*layers[:-1]), torch.zeros(2, inputs))
    coupling = couple_channels(traced)
    groups = coupling.removable
    evidence = {g.name: GroupEvidence.equal(g.width, d) for g, d in zip(groups, densities, strict=True)}
    return list(width_excess(groups, evidence, cost_of(traced, coupling, "params")).values())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(2, 64), st.floats(0.02, 1)), min_size=1, max_size=4))
def test_excesses_are_positive_and_their_product_is_one(layers):
    found = excess(*zip(*layers, strict=True))
    assert all(value > 0 for value in found)
    assert math.prod(found) == pytest.approx(1, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.1, 1), min_size=3, max_size=3), st.integers(0, 2), st.floats(1.2, 4))
def test_a_layer_that_keeps_less_is_more_in_excess(densities, at, times):
    thinner = [density / times if number == at else density for number, density in enumerate(densities)]
    widths = [40, 32, 24]
    assert excess(widths, thinner)[at] > excess(widths, densities)[at]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2), st.integers(2, 8), st.floats(0.1, 1))
def test_a_layer_that_was_drawn_wider_is_more_in_excess(at, times, density):
    widths = [32, 32, 32]
    wider = [width * times if number == at else width for number, width in enumerate(widths)]
    # As a sweep would see it: of more channels a smaller share stays.
    kept = [density / times if number == at else density for number in range(3)]
    assert excess(wider, kept)[at] > 2 * excess(widths, [density] * 3)[at]


def test_the_only_group_is_in_no_excess():
    assert excess([64], [0.01]) == [1.0]

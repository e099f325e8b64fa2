"""Inputs written down without the user's data, and made again from noise."""

from __future__ import annotations

import json

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_structure

from dst_analyze.model.inputs.inputs import Inputs
from dst_analyze.model.inputs.stand_in import describe_inputs, stand_in_inputs

SHAPES = st.lists(st.integers(0, 3), max_size=3)
FLOATS = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
WHOLE = st.sampled_from([torch.int64, torch.int32, torch.uint8, torch.bool])
TENSORS = st.one_of(
    st.builds(lambda shape, dtype: torch.randn(shape).to(dtype), SHAPES, FLOATS),
    st.builds(lambda shape, dtype: torch.randint(0, 9, shape).to(dtype), SHAPES, WHOLE),
)
VALUES = st.recursive(
    st.one_of(TENSORS, st.none(), st.booleans(), st.integers(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.lists(inner, max_size=2).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=2),
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=2), st.dictionaries(st.text(max_size=3), VALUES, max_size=2))
def test_stand_ins_have_structure_dtypes_shapes_and_ranges(args, kwargs):
    inputs = Inputs(tuple(args), kwargs)
    made = stand_in_inputs(json.loads(json.dumps(describe_inputs(inputs))))
    assert tree_structure((made.args, made.kwargs)) == tree_structure((inputs.args, dict(inputs.kwargs)))
    for new, old in zip(made.tensors(), inputs.tensors(), strict=True):
        assert (new.dtype, new.shape) == (old.dtype, old.shape)
        if old.numel() and not old.is_floating_point():
            assert old.min() <= new.min()
            assert new.max() <= old.max()


def test_the_values_of_the_data_are_not_kept():
    text = json.dumps(describe_inputs(Inputs((torch.tensor([0.123456, 7.654321]),))))
    assert "123" not in text
    assert "654" not in text


def test_a_value_that_json_cannot_hold_is_not_written_down():
    assert describe_inputs(Inputs((object(),))) is None
    assert describe_inputs(Inputs((torch.tensor([1j]),))) is None


def test_without_a_finite_number_the_range_is_that_of_an_image():
    assert describe_inputs(Inputs((torch.tensor([float("nan")]),)))["args"][0]["range"] == [0.0, 1.0]

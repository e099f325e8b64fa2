"""The public names: all can be imported, and old ones still work with a warning that says the new one."""

from __future__ import annotations

import pytest

import dst_analyze


@pytest.mark.parametrize("name", dst_analyze.__all__)
def test_a_public_name_can_be_imported(name):
    assert getattr(dst_analyze, name) is not None


def test_public_names_are_those_that_type_checkers_see():
    assert {*dst_analyze._HOMES, "DstError", "__version__"} == set(dst_analyze.__all__) == set(dir(dst_analyze))


def test_an_old_public_name_warns_at_the_line_that_uses_it():
    with pytest.warns(FutureWarning, match="exact_slim is now dst_analyze.remove_dead_channels") as found:
        from dst_analyze import exact_slim
    assert exact_slim is dst_analyze.remove_dead_channels
    assert found[0].filename == __file__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'prune'"):
        _ = dst_analyze.prune

"""Several rankings compared, layer by layer."""

import pytest
from ratio_frames import PATTERN, frame_of

from dst_analyze import rank_layers
from dst_analyze.errors import OptionError
from dst_analyze.ranking.compare import compare_rankings, counterparts


def test_layers_are_matched_by_name_and_then_by_position():
    assert counterparts(["a", "b", "c"], ["a", "x", "c"]) == {"a": "a", "b": "x", "c": "c"}
    assert counterparts(["a", "b"], ["p", "q"]) == {"a": "p", "b": "q"}
    assert counterparts(["a", "b", "c"], ["a", "x", "y", "c"]) == {"a": "a", "c": "c"}
    assert counterparts(["a", "b"], ["b", "a"]) == {"a": "a", "b": "b"}


def test_runs_are_compared():
    one = rank_layers(frame_of(PATTERN))
    again = rank_layers(frame_of(PATTERN, noise=0.02))
    renamed = rank_layers(frame_of({"a": 0.9, "bb": 0.7, "c": 0.4, "d": 0.2, "e": 0.1}))
    same = compare_rankings({"one": one, "two": again, "three": renamed})
    assert same.verdict == "the runs agree"
    assert same.agreement == pytest.approx(1)
    assert set(same.table["matched"]) == {"name", "position"}
    assert not any(same.unmatched.values())
    assert "matched by their position" in same.text(80)
    turned = rank_layers(frame_of(dict(zip(PATTERN, reversed(PATTERN.values()), strict=True))))
    against = compare_rankings({"one": one, "two": turned})
    assert against.verdict == "the runs do not agree"
    assert {"a", "e"} <= set(against.opposed)
    assert against.correlation.loc["one", "two"] == pytest.approx(-1)
    strangers = compare_rankings({"one": one, "two": rank_layers(frame_of({"p": 0.5, "q": 0.1}))})
    assert strangers.verdict == "no comparison"
    assert strangers.text(80)
    with pytest.raises(OptionError):
        compare_rankings({"one": one})

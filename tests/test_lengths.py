"""What is known of rankings of some length is said, and no more than that."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import made_run

from dst_analyze.ranking.lengths import SEEN, known_at
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.report.summary import summary_of

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "short_sweep.jsonl"
LONGEST = max(seen.long for seen in SEEN)


@given(st.integers(1, 3 * LONGEST), st.booleans(), st.sampled_from(["layer", "one"]))
def test_nothing_longer_than_the_run_itself_speaks_for_it(steps, warm_up, unit):
    text = known_at(steps, warm_up=warm_up, unit=unit)
    taus = [float(tau) for tau in re.findall(r"(-?\d\.\d\d) on ", text)]
    met = {s.net for s in SEEN if (s.warm_up, s.unit) == (warm_up, unit) and 0.8 * s.steps <= steps}
    if steps >= LONGEST:
        assert "as long as" in text
        return
    assert len(taus) == len(met)
    assert all(seen.net in text for seen in SEEN if seen.net in met)
    assert sorted(taus) == taus  # the worst comes first
    if not met:
        assert "may well change" in text


def test_of_a_net_the_longest_sweep_that_is_not_longer_counts():
    for seen in SEEN:
        alike = [s for s in SEEN if (s.net, s.warm_up, s.unit) == (seen.net, seen.warm_up, seen.unit)]
        if not any(0.8 * s.steps <= seen.steps < s.steps for s in alike):
            text = known_at(seen.steps, warm_up=seen.warm_up, unit=seen.unit)
            assert f"{seen.tau:.2f} on {seen.net}" in text
            assert ("without warm-up" in text) is not seen.warm_up
            assert ("in one unit" in text) is (seen.unit == "one")


def test_every_reference_was_compared_with_a_longer_run():
    assert all(seen.steps < seen.long and abs(seen.tau) <= 1 and abs(seen.null) <= 1 for seen in SEEN)


def test_the_report_says_it_of_a_ranking_and_not_where_there_is_none(tmp_path):
    ranked = made_run(tmp_path / "one", ["a", "b", "c", "d", "e"], seeds=3)
    said = summary_of(ranked, rank_layers(ranked), None, None)
    how = {"warm_up": False, "unit": "one"}
    assert said.sure[-1] == known_at(ranked.manifest.steps, **how)
    alone = made_run(tmp_path / "two", ["a"])
    assert known_at(alone.manifest.steps, **how) not in summary_of(alone, rank_layers(alone), None, None).sure


def test_what_is_known_is_what_was_measured():
    """Every line of the results that is a length of a recipe stands here, with its numbers."""
    nets = {
        "demo": "a CNN of 5 layers on digits", "vgg": "VGG-16 of quarter width", "wide_resnet": "WideResNet-16-2",
        "resnet": "a small ResNet-14", "vit": "a small ViT", "lenet_5": "LeNet-5",
    }  # fmt: skip
    kinds = {"": (True, "layer"), ", one unit": (True, "one"), ", no warm-up": (False, "one")}
    recipes = {
        length + kind: how for length, (kind, how) in product(("a tenth", "a quarter", "half"), kinds.items())
    }  # fmt: skip
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    for line in (line for line in lines if line["recipe"] in recipes):
        (known,) = (
            seen
            for seen in SEEN
            if (seen.net, seen.steps) == (nets[line["net"]], line["steps"])
            and (seen.warm_up, seen.unit) == recipes[line["recipe"]]
        )
        measured = (line["long"], line["tau"], line["null"], line["ceiling"])
        assert (known.long, known.tau, known.null, known.ceiling) == pytest.approx(measured, abs=0.0051), line

"""What is known of rankings of some length is said, and no more than that."""

import json
import re
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import made_run

from dst_analyze.ranking.length_evidence import PAIRS, SEEN, length_caveat, pairs_at
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.statistics.pairs import alike, clear_pairs
from dst_analyze.report.page import render
from dst_analyze.report.summary import summary_of

FOLDER = Path(__file__).parents[2] / "experiments" / "results"
RESULTS, READINGS = FOLDER / "short_sweep.jsonl", FOLDER / "readings"
NETS = {
    "demo": "a CNN of 5 layers on digits", "vgg": "VGG-16 of quarter width", "wide_resnet": "WideResNet-16-2",
    "resnet": "a small ResNet-14", "vit": "a small ViT", "lenet_5": "LeNet-5",
}  # fmt: skip
KINDS = {"": (True, "layer"), ", one unit": (True, "one"), ", no warm-up": (False, "one")}
LENGTHS = ("a tenth", "an eighth", "a sixth", "a quarter", "half")
LONGEST = max(seen.long for seen in SEEN)


@given(st.integers(1, 3 * LONGEST), st.booleans(), st.sampled_from(["layer", "one"]))
def test_no_longer_sweep_than_the_run_is_evidence(steps, warm_up, unit):
    text = length_caveat(steps, warm_up=warm_up, unit=unit)
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
            text = length_caveat(seen.steps, warm_up=seen.warm_up, unit=seen.unit)
            assert f"{seen.tau:.2f} on {seen.net}" in text
            assert ("without warm-up" in text) is not seen.warm_up
            assert ("in one unit" in text) is (seen.unit == "one")


def test_every_reference_was_compared_with_a_longer_run():
    assert all(seen.steps < seen.long and abs(seen.tau) <= 1 and abs(seen.null) <= 1 for seen in SEEN)


def test_the_report_shows_the_evidence_only_with_a_ranking(tmp_path):
    ranked = made_run(tmp_path / "one", ["a", "b", "c", "d", "e"], seeds=3)
    ranking, how = rank_layers(ranked), {"warm_up": False, "unit": "one"}
    said = summary_of(ranked, ranking, None, None).sure
    assert said[-1] == pairs_at(ranking.statistics.guesses.pairs, ranked.manifest.steps, **how)
    taus = length_caveat(ranked.manifest.steps, **how)
    assert taus not in said  # the list of taus stands under Facts
    page = render(ranked, ranking)
    assert page.index(taus.replace("'", "&#39;")) > page.index('id="facts"')
    alone = made_run(tmp_path / "two", ["a"])
    assert not any("a long run" in sentence for sentence in summary_of(alone, rank_layers(alone), None, None).sure)


@given(st.integers(0, 99), st.integers(1, 3 * LONGEST), st.booleans(), st.sampled_from(["layer", "one"]))
def test_the_sentence_has_the_measurements_of_the_runs_length(pairs, steps, warm_up, unit):
    text = pairs_at(pairs, steps, warm_up=warm_up, unit=unit)
    if not pairs:
        assert text == "No two layers differ clearly in this run."
        return
    met = {s.net: s for s in PAIRS if (s.warm_up, s.unit) == (warm_up, unit) and 0.8 * s.steps <= steps}
    if steps >= LONGEST:
        assert "as long as" in text
    elif not met:
        assert "it is not known" in text
    else:
        assert f"about {np.mean([seen.alike for seen in met.values()]):.0%} alike" in text


@cache
def kept_readings(net):
    """The net's readings by recipe."""
    return dict(list(pd.read_csv(READINGS / f"{net}.csv", dtype={"layer": str}).groupby("recipe")))


@cache
def redundancy_of(net, recipe):
    """Redundancy by layer, in network order, from the readings that are kept."""
    table = rank_layers(kept_readings(net)[recipe], draws=10).table.sort_values("position")
    return list(table["layer"]), table["redundancy"].to_numpy()


def test_pairs_match_the_stored_readings():
    """Every sweep whose readings are kept beside those of its long runs stands in the table, and nothing else."""
    found = set()
    for (net, name), length, (kind, (warm_up, unit)) in product(NETS.items(), LENGTHS, KINDS.items()):
        recipe = f"{length}{kind}"
        if recipe not in kept_readings(net):
            continue
        (layers, short), (same, long) = redundancy_of(net, recipe), redundancy_of(net, "the long run")
        assert layers == same
        right, (more, less) = alike(short, long), clear_pairs(short)
        inner = (more != len(layers) - 1) & (less != len(layers) - 1)  # the output layer comes last
        (line,) = (
            json.loads(one) for one in RESULTS.read_text().splitlines() if f'"{net}", "recipe": "{recipe}"' in one
        )
        (known,) = (
            seen
            for seen in PAIRS
            if (seen.net, seen.steps, seen.warm_up, seen.unit) == (name, line["steps"], warm_up, unit)
        )
        found.add(known)
        assert known.long == line["long"]
        assert known.pairs == len(right), (net, recipe, len(right))
        assert (known.alike, known.inner) == pytest.approx((right.mean(), right[inner].mean()), abs=0.0051), known
    assert found == set(PAIRS)


def test_measurements_match_the_stored_results():
    """Every line of the results that is a length of a recipe stands here, with its numbers."""
    recipes = {
        length + kind: how for length, (kind, how) in product(LENGTHS, KINDS.items())
    }  # fmt: skip
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    for line in (line for line in lines if line["recipe"] in recipes):
        (known,) = (
            seen
            for seen in SEEN
            if (seen.net, seen.steps) == (NETS[line["net"]], line["steps"])
            and (seen.warm_up, seen.unit) == recipes[line["recipe"]]
        )
        measured = (line["long"], line["tau"], line["null"], line["ceiling"])
        assert (known.long, known.tau, known.null, known.ceiling) == pytest.approx(measured, abs=0.0051), line

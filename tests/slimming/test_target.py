"""The size of a suggestion where none is asked for: what the sweep's masks let one expect to be enough."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sweeps import FILE, TEST, TRAIN, mlp
from torch import nn

from dst_analyze import couple_channels, rank_layers, suggest_widths, trace_model
from dst_analyze.cli.main import main
from dst_analyze.errors import OptionError
from dst_analyze.ranking.result import Ranking
from dst_analyze.report.page import write_report
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.planning.target import (
    FALLBACK,
    LEAST,
    MOST,
    AlphaResult,
    SizeTarget,
    alpha_results,
    expected_target,
)
from dst_analyze.slimming.proof.candidates import Candidates
from dst_analyze.sweep.run_sweep import run_sweep


def results(*rows):
    return [AlphaResult(alpha, left, loss, free) for alpha, left, loss, free in rows]


def test_the_root_of_what_the_strongest_free_alpha_leaves():
    found = expected_target(results((1e-6, 0.81, 0.0, True), (1e-5, 0.16, 0.002, True), (1e-4, 0.01, 0.05, False)))
    assert found == SizeTarget(basis="masks", share=0.4, left=0.16, alpha=1e-5)
    assert found.sentence == (
        "The sweep's masks suggest that 40 % is enough"
        " (they leave 16 % of the single weights at no measurable loss); not proven."
    )


def test_the_macs_are_what_the_masks_leave_of_them():
    rows = [AlphaResult(1e-6, 0.81, 0.0, True, 0.9), AlphaResult(1e-5, 0.0625, 0.002, True, 0.25)]
    found = expected_target(rows)
    assert (found.share, found.macs) == (0.25, 0.5)
    assert "25 % of the parameters and 50 % of the MACs is enough" in found.sentence
    assert found.at(0.25) == {"params": 0.25, "macs": 0.5}
    assert found.at(0.5)["macs"] == pytest.approx(0.5**0.5, abs=0.01)


@given(left=st.floats(0, 1), macs=st.floats(0, 1), share=st.sampled_from([0.75, 0.5, 0.25, 0.1]))
def test_no_more_of_the_parameters_stays_than_of_the_macs(left, macs, share):
    found = expected_target([AlphaResult(1e-5, left, 0.0, True, macs)])
    for size in (found.share, share):
        assert found.at(size)["params"] == size
        assert size - 0.01 <= found.at(size)["macs"] < 1


def test_bounds_and_what_is_done_without_a_free_alpha_or_a_score():
    assert expected_target(results((1e-6, 0.99, 0.0, True))).share == MOST
    assert expected_target(results((1e-6, 0.001, 0.0, True))).share == LEAST
    lost = expected_target(results((1e-6, 0.4, 0.3, False)))
    unknown = expected_target(results((1e-6, 0.4, np.nan, False)))
    assert (lost.basis, unknown.basis, expected_target([]).basis) == ("no free alpha", "no score", "no score")
    assert lost.share == unknown.share == FALLBACK
    assert lost.sentence == "50 % is a default, as no alpha kept the dense model's score."


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=5))
def test_the_expectation_is_within_its_bounds_and_grows_with_what_is_left(found):
    rows = results(*((10.0**-at, left, 0.0, free) for at, (left, free) in enumerate(found)))
    target = expected_target(rows)
    assert LEAST <= target.share <= MOST
    more = [AlphaResult(r.alpha, min(1.0, r.remaining + 0.2), r.loss, r.free) for r in rows]
    assert expected_target(more).share >= target.share


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    record = run_sweep(
        mlp(), (TRAIN, TEST), alphas=(3e-3, 1e-2), steps=60, warm_up=0, out=tmp_path_factory.mktemp("a") / "run"
    )
    return record, rank_layers(record), trace_model(mlp(), TRAIN[0][:2])


def test_alphas_count_by_all_weights_of_the_ranked_layers(sweep):
    record, ranking, _ = sweep
    found = {result.alpha: result for result in alpha_results(ranking)}
    for alpha in record.alphas:
        assert found[alpha].remaining == pytest.approx(record.at(alpha)[0].remaining, abs=1e-6)
        assert found[alpha].loss == pytest.approx(record.dense.score - record.score(alpha), abs=1e-9)
    again = alpha_results(Ranking.from_json(ranking.to_json()))
    assert [result.remaining for result in again] == [result.remaining for result in found.values()]


def test_the_default_is_the_expectation_and_says_so(sweep):
    _, ranking, traced = sweep
    expected = expected_target(alpha_results(ranking))
    plan = suggest_widths(traced, ranking, round_to=1)
    assert plan.target == expected
    assert plan.asked == {"params": expected.share, "macs": expected.macs}
    assert plan.reached["params"] == pytest.approx(expected.share, abs=0.02)
    assert suggest_widths(traced, ranking, round_to=1, target="auto") == plan
    assert SlimPlan.model_validate_json(plan.as_bytes()) == plan
    assert expected.basis == "masks"
    given = suggest_widths(traced, ranking, round_to=1, target_params=expected.share)
    assert given.target is None
    assert given.removal == plan.removal


def test_a_table_without_scores_is_slimmed_to_the_default_size(sweep):
    *_, traced = sweep
    ratios = {"layer": ["0", "2"] * 2, "alpha": [1.0, 1.0, 2.0, 2.0], "remaining": [0.4, 0.8, 0.2, 0.7]}
    plan = suggest_widths(traced, rank_layers(pd.DataFrame(ratios)), round_to=1)
    assert plan.target == SizeTarget(basis="no score", share=FALLBACK)


def test_a_target_that_is_given_twice_or_unknown_is_refused(sweep):
    _, ranking, traced = sweep
    with pytest.raises(OptionError, match=r"asked for .--target-macs. and left to the sweep") as caught:
        suggest_widths(traced, ranking, target="auto", target_macs=0.5)
    assert caught.value.hint == "give one of them"
    with pytest.raises(OptionError, match="no target 'small'"):
        suggest_widths(traced, ranking, target="small")


def test_terminal_report_verdict_and_summary_tell_the_same_size(tmp_path, monkeypatch, capsys, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    options = ["--alphas", "3e-3,1e-2", "--steps", "60", "--round-to", "1", "--out", "run"]
    assert main(["m.py", "--target", "auto", "--target-params", "0.5", *options]) == 2
    assert "left to the sweep" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()  # before training
    assert main(["m.py", *options, "-v"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    plan = SlimPlan.load("run/plan.json")
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    page, summary = ((tmp_path / "run" / name).read_text() for name in ("report.html", "summary.md"))
    assert plan.target is not None
    assert verdict["suggestion"]["target"]["share"] == plan.target.share
    assert "not proven yet" in verdict["answer"]
    for text in (said, summary, page.replace("&#39;", "'")):
        assert plan.target.sentence in text
    assert plan.target.clause in said
    assert "slim run --target auto" in page
    before = plan.sha256
    assert main(["slim", "run", "--target-params", "0.3", "--round-to", "1"]) == 0
    assert SlimPlan.load("run/plan.json").target is None
    assert main(["slim", "run", "--target", "auto", "--round-to", "1"]) == 0
    assert SlimPlan.load("run/plan.json").sha256 == before
    assert write_report("run").read_text() == page


@pytest.fixture(scope="module")
def convolutions():
    """A net whose first layers have the MACs, and whose last one has the parameters."""
    torch.manual_seed(0)
    early = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*early, nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))
    traced = trace_model(model, torch.zeros(2, 1, 8, 8))
    ratios = {"layer": ["0", "2", "5", "7"] * 2, "alpha": [1.0] * 4 + [2.0] * 4, "remaining": [0.8, 0.7, 0.2, 0.9] * 2}
    return traced, rank_layers(pd.DataFrame(ratios))


def test_a_size_that_nobody_asked_for_holds_for_parameters_and_macs(convolutions):
    plan = suggest_widths(*convolutions, round_to=1)
    assert plan.asked == {"params": FALLBACK, "macs": FALLBACK}
    assert plan.decisive == "macs"
    assert plan.reached["macs"] == pytest.approx(FALLBACK, rel=0.05)
    assert plan.reached["params"] < 0.9 * FALLBACK
    assert plan.size_reason.startswith(f"{plan.target.clause}; the MACs decide")
    alone = suggest_widths(*convolutions, round_to=1, target_params=FALLBACK)
    assert (alone.decisive, "MACs" in alone.size_reason) == ("params", False)
    assert alone.reached["macs"] > plan.reached["macs"]


def test_both_sizes_that_were_asked_for_are_named(convolutions):
    plan = suggest_widths(*convolutions, round_to=1, target_params=0.6, target_macs=0.5)
    assert plan.size_reason.startswith("60 % of the parameters and 50 % of the MACs was asked for")
    assert plan.reached["params"] <= 0.6 * 1.02


@given(params=st.floats(0.15, 0.85), macs=st.floats(0.15, 0.85))
@settings(max_examples=25, deadline=None)
def test_rivals_use_up_the_budget_of_the_suggestion_and_uniform_ones_match_each_axis(convolutions, params, macs):
    traced, ranking = convolutions
    plan = suggest_widths(traced, ranking, round_to=1, target_params=params, target_macs=macs)
    found = {one.name: one.plan for one in Candidates(traced, couple_channels(traced), None, plan).fixed}
    for axis in ("params", "macs"):
        assert found[f"uniform-{axis}"].reached[axis] == pytest.approx(plan.reached[axis], rel=0.1)
    for name in ("uniform", "depth", "random"):
        within = {**plan.asked, plan.decisive: plan.reached[plan.decisive]}
        assert all(found[name].reached[axis] <= share * 1.1 for axis, share in within.items())
        assert max(found[name].reached[axis] / share for axis, share in within.items()) > 0.9

"""The first screen: whatever the evidence, its headline, tiles, list, warnings and confidence say the same."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import make_run
from runs import add_plan, made_run

from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.verdict import Verdict
from dst_analyze.report.commands import next_step, problem_of
from dst_analyze.report.overview.answer import Standing, part_words
from dst_analyze.report.overview.strip import strip_of
from dst_analyze.report.summary import summary_of
from dst_analyze.slimming.proof.result import Entry, Verification

SCORES = st.floats(-3, 3, allow_nan=False).map(lambda value: round(value, 3))
NAMES = [f"blocks.{number // 2}.conv{number % 2}" for number in range(14)]
PROOFS = {
    "none": None,
    "won": {"slim": (0.935, 0.95), "dense": (0.94, 0.95), "uniform": (0.8, 0.81)},
    "wide": {"slim": (0.85, 0.99), "dense": (0.94, 0.95), "uniform": (0.8, 0.81)},
    "lost": {"slim": (0.90, 0.901), "dense": (0.94, 0.95), "uniform": (0.93, 0.931)},
    "costly": {"slim": (0.5, 0.52), "dense": (0.94, 0.95), "uniform": (0.4, 0.45)},
    "doubtful": {"slim": (0.5, 0.94), "dense": (0.94, 0.95), "uniform": (0.4, 0.45)},
    "one bad seed": {"slim": (0.5,), "dense": (0.94,), "uniform": (0.4,)},
    "worse": {"slim": (0.89, 0.90), "dense": (0.94, 0.951), "uniform": (0.8, 0.811)},
    "unfinished": {"slim": (None, None), "dense": (0.94, 0.95), "uniform": (0.4, 0.45)},
}
PLANS = {"none": None, "half": 512, "nothing": 1000, "two thirds": 335, "42 %": 580}


def proof_of(scores, kind="accuracy"):
    entries = tuple(
        Entry(name=name, about=name, params=10, macs=5, latency_ms=None, memory=1, scores=values)
        for name, values in scores.items()
    )
    return Verification(score=kind, steps=10, seeds=tuple(range(len(entries[0].scores))), entries=entries)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """Sweeps that order the layers, do not order them, have not learned, or trained on other data."""
    base = tmp_path_factory.mktemp("sweeps")
    ordered = made_run(base / "ordered", NAMES, seeds=2)
    unlearned = replace(ordered, steps=ordered.steps.assign(loss=2.3))
    stand_in = made_run(base / "stand-in", NAMES, seeds=2, stand_in=True)
    lost = make_run(base / "lost", layers=NAMES, diverged=(1e-4, 1e-3))
    alone = make_run(base / "alone", layers=NAMES, diverged=(1e-3,))
    records = {"ordered": ordered, "unlearned": unlearned, "stand-in": stand_in, "lost": lost, "alone": alone}
    return {name: (record, rank_layers(record)) for name, record in records.items()}


@pytest.fixture(scope="module")
def plans(sweeps):
    half = add_plan(sweeps["ordered"][0].folder, NAMES, proven=False)
    return {
        name: None if params is None else half.model_copy(update={"new_params": params})
        for name, params in PLANS.items()
    }


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("plan", [*PLANS, "test run"])
@pytest.mark.parametrize("sweep", ["ordered", "unlearned", "stand-in", "lost", "alone"])
def test_the_first_screen_never_contradicts_itself(sweeps, plans, sweep, plan, proof):
    record, ranking = sweeps[sweep]
    chosen = plans["half"].model_copy(update={"trials": 0}) if plan == "test run" else plans[plan]
    shown = None if PROOFS[proof] is None or chosen is None else proof_of(PROOFS[proof])
    said = summary_of(record, ranking, chosen, shown)
    answer, tiles = said.answer, {tile.name: tile for tile in said.tiles}
    titles = [note.title for note in said.warnings]
    assert list(tiles) == ["spare weights", "saving", "confidence", "cost"]
    assert said.headline.startswith(answer.headline)

    # the suggestion: headline, saving and the warning of a proof that was lost
    assert (answer.standing is Standing.TEST_RUN) == (plan == "test run")
    promises = " can go" in answer.headline or " could go" in answer.headline
    if shown is not None and plan not in ("test run", "nothing"):
        assert ("The suggestion lost" in titles) == (answer.standing is Standing.LOST) == (proof == "lost")
        assert (answer.standing is Standing.COSTLY) == (proof == "costly")
        assert (answer.standing is Standing.TRAINED) == (proof == "wide")
        assert (answer.standing is Standing.DOUBTFUL) == (proof in ("doubtful", "one bad seed"))
        assert (" can go" in answer.headline) == (proof in ("won", "worse"))
        assert ("at a cost of" in answer.headline) == (proof == "worse")
        assert promises == (
            proof in ("won", "wide", "worse") or (proof == "unfinished" and sweep in ("ordered", "stand-in", "alone"))
        )
    if promises:
        gone = 1 - chosen.new_params / chosen.params
        assert answer.headline.startswith(part_words(chosen))
        assert tiles["saving"].value == f"{100 * gone:.0f} %"
        assert chosen.new_params < chosen.params
        assert ("not proven yet" in answer.sentence) == (shown is None)
        assert ("stand-in" in answer.headline) == record.manifest.data.stand_in
    if answer.standing in (Standing.NO_EVIDENCE, Standing.TEST_RUN, Standing.NO_PLAN):
        assert tiles["saving"].value == "–"
    if answer.standing is Standing.NO_EVIDENCE:
        assert "no evidence" in said.saving[0] or plan == "none"

    # the order of the layers: confidence, list and warnings
    assert tiles["confidence"].value == said.confidence.word.capitalize()
    assert tiles["confidence"].level == said.confidence.level
    assert (said.confidence.level == 0) == (ranking.verdict is Verdict.NONE) == ("No ranking" in titles)
    assert bool(said.findings) == (ranking.verdict is not Verdict.NONE)
    if sweep in ("unlearned", "stand-in", "alone"):
        assert said.confidence.level == 1
    ranks = [float(found.rank) for found in said.findings]
    assert ranks == sorted(ranks)
    labels = dict(zip(ranking.table["layer"], ranking.table["label"], strict=True))
    assert all(labels[found.layer] == found.label for found in said.findings)
    counted = re.match(r"(\d+|None) of 14 layers", answer.headline)
    if counted:
        assert said.has_redundant == (counted[1] != "None")


def test_without_evidence_the_picture_claims_nothing_and_the_next_command_mends_it(sweeps, plans):
    record, ranking = sweeps["unlearned"]
    answer = summary_of(record, ranking, plans["half"], None).answer
    assert answer.standing is Standing.NO_EVIDENCE
    strip = strip_of(record, ranking, plans["half"], evidence=False)
    assert {block.label for block in strip.blocks} == {"unclear"}
    assert not strip.changed
    step, problem = next_step(record, answer, has_source=True), problem_of(record)
    assert problem is not None
    assert step == problem.step
    assert f"--steps {4 * record.manifest.steps}" in step.command


@pytest.mark.parametrize(
    ("asked", "params", "reason"),
    [
        (0.31, 280, "31 % of the parameters was asked for; rounded widths come to 28 %"),
        (0.28, 284, "28 % of the parameters was asked for"),
    ],
)
def test_what_rounding_makes_of_a_size_is_said_in_one_way(sweeps, plans, asked, params, reason):
    plan = plans["half"].model_copy(update={"asked": {"params": asked}, "new_params": params, "target": None})
    assert plan.size_reason == reason
    said = summary_of(*sweeps["ordered"], plan, None)
    assert said.answer.size == reason
    assert f"{reason[0].upper()}{reason[1:]}." in next(tile.text for tile in said.tiles if tile.name == "saving")


@settings(max_examples=300, deadline=None)
@given(
    pairs=st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=5),
    kind=st.sampled_from(["accuracy", "loss", "score"]),
    size=st.integers(1, 1000),
)
def test_whatever_the_scores_headline_tile_and_proof_agree(sweeps, plans, pairs, kind, size):
    record, ranking = sweeps["ordered"]
    plan = plans["half"].model_copy(update={"new_params": size})
    proof = proof_of({"slim": [slim for slim, _ in pairs], "dense": [dense for _, dense in pairs]}, kind)
    said = summary_of(record, ranking, plan, proof)
    headline, tiles = said.answer.headline, {tile.name: tile.text for tile in said.tiles}
    if size / 1000 > 0.995:
        assert said.answer.standing is Standing.NOTHING
        return
    lead, low, high = proof.lead("dense")
    allowed = 0.1 * abs(proof.entry("dense").mean)
    assert (" cannot go" in headline) == (high < -allowed)  # not by a mean alone
    assert (" can go" in headline) == (low >= -allowed)
    assert (" could go" in headline) == (low < -allowed <= lead)
    assert ("probably not" in headline) == (lead < -allowed <= high)
    assert said.answer.proof.startswith("proven: ") == (" can go" in headline or " cannot go" in headline)
    assert "100 %" not in headline  # something is left
    assert ("not proven yet" in tiles["saving"]) == (" could go" in headline)
    assert ("at a loss" in tiles["saving"]) == (" not go" in headline or " cannot go" in headline)
    if len(pairs) == 1:
        assert said.answer.proof.endswith("too few to prove it")


def test_the_words_of_a_share(plans):
    assert part_words(plans["half"]) == "Half"  # 48.8 %
    assert part_words(plans["two thirds"]) == "Two thirds"
    assert part_words(plans["42 %"]) == "42 %"


def test_a_loss_is_judged_by_how_much_higher_it_is(sweeps, plans):
    record, ranking = sweeps["ordered"]
    kept = proof_of({"slim": (1.04, 1.03), "dense": (1.0, 1.0)}, "loss")
    lost = proof_of({"slim": (1.5, 1.49), "dense": (1.0, 1.0)}, "loss")
    assert summary_of(record, ranking, plans["half"], kept).answer.standing is Standing.PROVEN
    assert summary_of(record, ranking, plans["half"], lost).answer.standing is Standing.COSTLY
    assert "loss 1.035 against 1" in summary_of(record, ranking, plans["half"], kept).headline


def test_the_strip_has_each_layer_with_its_width_before_and_after(sweeps, plans):
    record, ranking = sweeps["ordered"]
    strip = strip_of(record, ranking, plans["half"])
    assert [block.layer for block in strip.blocks] == NAMES
    assert [block.after / block.before for block in strip.blocks] == [1.0, 0.5] * 7
    assert [(segment.name, segment.blocks) for segment in strip.segments][:2] == [("blocks.0", 2), ("blocks.1", 2)]
    assert strip.changed
    assert not strip_of(record, ranking, None).changed


def test_the_strip_of_a_thousand_layers_joins_neighbours(tmp_path):
    record = made_run(tmp_path / "run", [f"layer{number}" for number in range(1000)], readings=4)
    strip = strip_of(record, rank_layers(record), None)
    assert strip.joined == 5
    assert len(strip.blocks) == 200

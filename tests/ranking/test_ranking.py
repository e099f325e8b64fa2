"""`rank_layers`: redundancy, verdicts and labels, on clear, noisy and odd sweeps."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ratio_frames import PATTERN, as_frame, frame_of, ratio_arrays
from run_folders import make_run

import dst_analyze
from dst_analyze import Ranking, rank_layers
from dst_analyze.errors import DataError, OptionError
from dst_analyze.ranking.labels import BORDER, GUARD, SLACK, kept_words
from dst_analyze.ranking.verdict import Caveat, Verdict


def contradictory():
    """Every seed has another order of eight layers."""
    rng = np.random.default_rng(3)
    return frame_of(dict.fromkeys("abcdefgh", 0.5)).assign(remaining=lambda f: rng.uniform(0.2, 0.6, len(f)))


def labels(ranking):
    return ranking.table.set_index("layer")["label"].to_dict()


def test_redundancy_is_by_the_typical_layer_whatever_the_sizes():
    frame = frame_of({"a": 0.8, "b": 0.5, "c": 0.32, "d": 0.1}, alphas=(1e-3,), seeds=1, params=100)
    table = rank_layers(frame).table.set_index("layer")
    typical = 0.4  # the geometric mean of the middle two
    for layer, kept in {"a": 0.8, "b": 0.5, "c": 0.32, "d": 0.1}.items():
        assert table.at[layer, "redundancy"] == pytest.approx(math.log(typical / kept))
    heavy = rank_layers(frame.assign(params=[100, 300, 200, 10**6])).table.set_index("layer")
    np.testing.assert_allclose(heavy["redundancy"], table["redundancy"])
    gone = rank_layers(frame.assign(remaining=[0.8, 0.5, 0.32, 0.0])).table.set_index("layer")
    assert gone.at["d", "redundancy"] == pytest.approx(math.log(typical / 0.01))  # counts as one weight of its 100
    assert gone.at["a", "redundancy"] == pytest.approx(table.at["a", "redundancy"])  # one extreme layer moves no other


@settings(max_examples=30, deadline=None)
@given(ratio_arrays, st.randoms(use_true_random=False))
def test_names_and_the_order_of_rows_and_seeds_do_not_matter(ratios, random):
    frame = as_frame(ratios)
    one = rank_layers(frame, draws=50)
    renamed = frame.assign(layer="x" + frame["layer"], seed=7 - frame["seed"])
    other = rank_layers(renamed, draws=50)
    np.testing.assert_equal(one.agreement, other.agreement)
    mine, yours = (r.table.set_index("position").sort_index() for r in (one, other))
    np.testing.assert_allclose(mine["redundancy"], yours["redundancy"], atol=1e-9)
    np.testing.assert_allclose(mine["rank"], yours["rank"])
    order = list(range(len(frame)))
    random.shuffle(order)
    mixed = rank_layers(frame.iloc[order], draws=50).table.set_index("layer")
    np.testing.assert_allclose(mixed.loc[list(one.table["layer"]), "rank"], one.table["rank"])


def test_a_clear_pattern():
    ranking = rank_layers(frame_of(PATTERN, noise=0.05, params=1000, macs=5000))
    assert ranking.verdict == "consistent"
    assert ranking.agreement > 0.9
    assert ranking.interval[0] > 0.8
    assert ranking.p_value < 0.01
    assert list(ranking.table["layer"]) == ["e", "d", "c", "b", "a"]
    assert labels(ranking) == {"e": "redundant", "d": "redundant", "c": "average", "b": "needed", "a": "needed"}
    assert (ranking.table["rank_low"] <= ranking.table["rank"]).all()
    assert (ranking.table["rank"] <= ranking.table["rank_high"]).all()
    assert ranking.alpha_correlation.to_numpy() == pytest.approx(1, abs=0.2)
    wide = ranking.by_alpha.query("layer == 'e' and alpha == 1e-3").iloc[0]
    assert wide["lowest"] <= wide["remaining"] <= wide["highest"]
    assert wide["seeds"] == 3
    assert rank_layers(frame_of(PATTERN, noise=0.05, params=1000, macs=5000)) == ranking


def test_noise_is_no_ranking():
    rng, found = np.random.default_rng(1), []
    for _ in range(40):
        frame = frame_of(dict.fromkeys("abcdefgh", 0.5)).assign(remaining=lambda f: rng.uniform(0.2, 0.6, len(f)))
        found.append(rank_layers(frame, draws=100).verdict)
    assert found.count("no ranking") >= 34
    assert found.count("consistent") == 0


@pytest.mark.parametrize(
    ("frame", "said", "label"),
    [
        (frame_of(dict.fromkeys("abc", 0.5)), "uniform", "average"),
        (frame_of({"a": 0.500, "b": 0.501, "c": 0.502}), "uniform", "average"),
        (frame_of({"a": 0.9}), "fewer than two layers", "unclear"),
        (frame_of(dict.fromkeys("abc", 1.0)), "no trial to rank by", "not measured"),
        (frame_of(dict.fromkeys("abc", 0.99), alphas=(1e-3,)), "no trial to rank by", "not measured"),
        (frame_of(dict.fromkeys("abc", 0.0)), "no trial to rank by", "not measured"),
        (frame_of(dict.fromkeys("abc", 0.0), params=50), "no trial to rank by", "not measured"),
        (contradictory(), "the trials disagree", "unclear"),
    ],
)
def test_no_ranking_is_an_answer(frame, said, label):
    ranking = rank_layers(frame)
    assert ranking.verdict is Verdict.NONE
    assert not ranking.caveats
    assert said in ranking.notes[0]
    assert set(ranking.table["label"]) == {label}
    assert Ranking.from_json(ranking.to_json()) == ranking
    assert ranking.text(80)
    assert ranking._repr_html_()


def test_one_trial_shows_an_order_that_is_not_confirmed():
    ranking = rank_layers(frame_of(PATTERN, alphas=(1e-3,), seeds=1))
    assert ranking.verdict is Verdict.UNCONFIRMED
    assert ranking.notes[0].startswith("Unconfirmed: one trial shows an order")
    assert labels(ranking)["e"] == "redundant"
    assert labels(ranking)["a"] == "needed"
    assert Ranking.from_json(ranking.to_json()) == ranking


def test_a_weak_alpha_that_tells_no_layers_apart_does_not_contradict_a_strong_one():
    frame = frame_of(dict.fromkeys("abcd", 0.5), alphas=(1e-5, 1e-4), seeds=1)
    frame["remaining"] = [0.85, 0.87, 0.84, 0.86, *(0.3, 0.32, 0.29, 0.1)]
    ranking = rank_layers(frame)
    assert ranking.verdict is Verdict.UNCONFIRMED
    assert labels(ranking) == {"a": "average", "b": "average", "c": "average", "d": "redundant"}
    frame["remaining"] = [0.85, 0.87, 0.2, 0.86, *(0.3, 0.32, 0.7, 0.1)]  # c and d change places, clearly
    ranking = rank_layers(frame)
    assert ranking.verdict is Verdict.NONE
    assert set(labels(ranking).values()) == {"unclear"}


@pytest.mark.parametrize("pattern", [{"a": 0.9, "b": 0.1}, {"a": 0.9, "b": 0.5, "c": 0.1}])
def test_few_layers_that_agree_are_a_ranking_with_a_caveat(pattern):
    ranking = rank_layers(frame_of(pattern, alphas=(1e-4, 1e-3), seeds=1))
    assert ranking.p_value > 0.05
    assert ranking.verdict is Verdict.WEAK
    assert Caveat.FEW_LAYERS in ranking.caveats
    assert labels(ranking)["a"] == "needed"
    assert any(note.startswith("Few layers and trials") for note in ranking.notes)
    assert Caveat.FEW_LAYERS not in rank_layers(frame_of(PATTERN)).caveats


def test_trials_without_evidence_are_left_out_with_a_note():
    frame = frame_of(PATTERN, alphas=(1e-5, 1e-4, 1e-3, 1e-2, 1e-1), seeds=2)
    frame.loc[frame["alpha"] == 1e-5, "remaining"] = 0.99
    frame.loc[frame["alpha"] == 1e-1, "remaining"] = 0.0
    ranking = rank_layers(frame)
    assert ranking.trials.groupby("alpha")["status"].first().to_dict() == {
        1e-5: "unpruned", 1e-4: "used", 1e-3: "used", 1e-2: "used", 1e-1: "collapsed",
    }  # fmt: skip
    assert ranking.statistics.trials == 6
    text = " ".join(ranking.notes)
    assert "2 trials (alpha 1e-5) pruned nothing" in text
    assert "2 trials (alpha 0.1) pruned everything" in text


def test_failed_trials_have_a_note_and_unmeasured_layers_are_not_redundant(tmp_path):
    ranking = rank_layers(make_run(tmp_path / "run", diverged=(1e-3,), layers=("a", "b", "c")))
    assert list(ranking.trials["status"]) == ["used", "diverged"]
    assert any("alpha 1e-3) diverged" in note for note in ranking.notes)
    nothing = rank_layers(make_run(tmp_path / "none", diverged=(1e-4, 1e-3)))
    assert nothing.verdict == "no ranking"
    assert set(nothing.table["label"]) == {"not measured"}
    assert Ranking.from_csv(nothing.to_csv()) == nothing


def test_a_layer_missing_somewhere_is_not_measured():
    frame = frame_of(PATTERN)
    ranking = rank_layers(frame[~((frame["layer"] == "c") & (frame["alpha"] == 1e-4) & (frame["seed"] == 1))])
    row = ranking.table.set_index("layer").loc["c"]
    assert row["label"] == "not measured"
    assert row["reason"] == "there is no ratio at alpha 1e-4, seed 1"
    assert math.isnan(row["rank"])
    assert list(ranking.table["layer"])[-1] == "c"
    assert ranking.statistics.layers == 4


def test_a_layer_that_was_reset_counts_as_collapsed():
    frame = frame_of({"a": 0.9, "b": 0.7, "c": 0.6, "d": 0.5, "e": 0.4}, resets=0)
    hit = (frame["layer"] == "a") & (frame["alpha"] == 1e-3)
    ranking = rank_layers(frame.assign(resets=hit * 2))
    row = ranking.table.set_index("layer").loc["a"]
    assert row["resets"] == 6
    assert row["label"] == "unclear"  # dense at two alphas, collapsed at the third
    assert any("count as collapsed" in note for note in ranking.notes)
    read = ranking.by_alpha.query("layer == 'a' and alpha == 1e-3")["remaining"].iloc[0]
    assert read == pytest.approx(0.9**3)  # what was read is shown as it was


@pytest.mark.parametrize(
    ("sizes", "share"), [((1, 2, 3, 4, 5), 1), ((5, 4, 3, 2, 1), 0), ((2, 1, 5, 4, 3), 0.5), ((7, 7, 7, 7, 7), 0.5)]
)
def test_a_note_compares_pairs_with_orders_without_training(sizes, share):
    """Layers a to e stand in network order, and the later ones keep less: depth says it all."""
    counts = dict(zip(PATTERN, sizes, strict=True))
    ranking = rank_layers(frame_of(PATTERN).assign(params=lambda f: 1000 * f["layer"].map(counts)))
    found = ranking.statistics.guesses
    assert found.pairs == 10
    assert found.depth == 1
    assert found.beyond == 0
    assert found.size == pytest.approx(share, abs=0.11)
    assert math.isnan(found.initial)
    assert any(
        "100% by depth would be ordered the same way without training; 0% only by the sweep." in note
        for note in ranking.notes
    )
    assert not any("by the initial weights" in note for note in ranking.notes)
    turned = rank_layers(frame_of(dict(reversed(PATTERN.items()))))
    assert turned.statistics.guesses.depth == 0
    assert turned.statistics.guesses.beyond == 1
    assert any("100% only by the sweep." in note for note in turned.notes)


def test_one_seed_two_trials_and_seeds_that_differ():
    one = rank_layers(frame_of(PATTERN, seeds=1))
    assert any(note.startswith("One seed") for note in one.notes)
    assert any("10 different bootstrap draws" in note for note in one.notes)
    two = rank_layers(frame_of(PATTERN, alphas=(1e-4, 1e-3), seeds=1))
    assert two.verdict == "weakly consistent"
    assert math.isnan(two.interval[0])
    assert any(note.startswith("One alpha") for note in rank_layers(frame_of(PATTERN, alphas=(1e-3,), seeds=4)).notes)
    rng = np.random.default_rng(0)
    luck = {seed: dict(zip("abcdefgh", rng.permutation(np.linspace(0.1, 0.9, 8)), strict=True)) for seed in range(4)}
    frame = pd.concat([frame_of(luck[seed], seeds=1).assign(seed=seed) for seed in luck])
    ranking = rank_layers(frame)
    assert ranking.verdict != "consistent"
    assert ranking.statistics.between_alphas > 0.9 > 0.5 > ranking.statistics.between_seeds


def test_a_small_difference_is_average():
    small = {"a": 0.575, "b": 0.56, "c": 0.55, "d": 0.54, "e": 0.526}
    assert set(labels(rank_layers(frame_of(small, alphas=(1e-4, 1.1e-4), seeds=1))).values()) == {"average"}
    larger = {"a": 0.585, "b": 0.56, "c": 0.55, "d": 0.54, "e": 0.517}  # too near the border for one seed
    one, three = (labels(rank_layers(frame_of(larger, alphas=(1e-4, 1.1e-4), seeds=seeds))) for seeds in (1, 3))
    assert one == {"a": "unclear", "b": "average", "c": "average", "d": "average", "e": "unclear"}
    assert set(three.values()) == {"average"}


def test_a_layer_that_holds_most_of_the_weights_can_be_redundant():
    frame = frame_of({"a": 0.86, "big": 0.3, "c": 0.85, "d": 0.83}, seeds=1)
    ranking = rank_layers(frame.assign(params=frame["layer"].map({"a": 10, "big": 10**6, "c": 20, "d": 30})))
    assert labels(ranking) == {"a": "average", "big": "redundant", "c": "average", "d": "average"}


def test_a_layer_whose_place_changes_is_unclear():
    frame = frame_of({"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5, "e": 0.1}, seeds=1)
    turns = {1e-5: 0.9, 1e-4: 0.25, 1e-3: 0.02}
    frame.loc[frame["layer"] == "d", "remaining"] = list(turns.values())
    row = rank_layers(frame).table.set_index("layer").loc["d"]
    assert row["label"] == "unclear"
    assert row["reason"] == (
        "its place changes between alphas or seeds: it keeps 28 to 180 % of what the typical layer keeps"
    )


@settings(max_examples=60, deadline=None)
@given(ratio_arrays)
def test_labels_never_contradict_the_order(ratios):
    """No needed layer stands before a redundant or an average one; only an unclear one may stand anywhere."""
    ranking = rank_layers(as_frame(ratios), draws=20)
    order = {"redundant": 0, "average": 1, "needed": 2}
    seen = [order[label] for label in ranking.table["label"] if label in order]
    assert seen == sorted(seen)
    if ranking.verdict is Verdict.NONE:
        assert not {"redundant", "needed"} & set(ranking.table["label"])
    table = ranking.table[ranking.table["label"].isin(("redundant", "needed"))]
    assert (np.sign(table["redundancy"]) == np.where(table["label"] == "redundant", 1, -1)).all()


@settings(max_examples=60, deadline=None)
@given(ratio_arrays)
def test_only_a_label_that_may_change_is_unclear(ratios):
    ranking = rank_layers(as_frame(ratios), draws=20)
    assert 0 < SLACK < BORDER
    said = ("its place changes between alphas or seeds", "its label may change with another seed")
    for row in ranking.table[ranking.table["label"] == "unclear"].itertuples():
        assert ranking.verdict is Verdict.NONE or row.reason.startswith(said)
        if ranking.statistics.trials == 1:
            assert abs(abs(row.redundancy) - BORDER) <= GUARD


@pytest.mark.parametrize(
    ("kept", "words"),
    [(0.25, "a quarter of what"), (0.5, "half of what"), (0.41, "41 % of what"), (0.001, "less than 1 % of what"),
     (2, "twice what"), (3.4, "3.4 times what"), (12, "12 times what")],
)  # fmt: skip
def test_kept_ratios_in_words(kept, words):
    assert kept_words(-math.log(kept)) == f"{words} the typical layer"


def test_what_the_null_explains():
    by_null = frame_of(PATTERN, noise=0.02)
    by_null["null"] = frame_of(PATTERN)["remaining"]
    same = rank_layers(by_null)
    assert same.verdict is Verdict.CONSISTENT
    assert Caveat.NULL in same.caveats
    assert same.statistics.null.share > 0.95
    assert same.statistics.guesses.initial == 1
    assert labels(same) == labels(rank_layers(by_null.drop(columns="null")))  # it informs, it vetoes nothing
    assert same.table["beyond_null"].abs().max() < 0.1
    other = frame_of(PATTERN, noise=0.02)
    other["null"] = frame_of({"a": 0.5, "b": 0.4, "c": 0.6, "d": 0.3, "e": 0.5})["remaining"]
    assert rank_layers(other).verdict is Verdict.CONSISTENT
    assert Caveat.NULL not in rank_layers(other).caveats
    assert labels(rank_layers(other))["e"] == "redundant"
    table = rank_layers(other).table
    assert list(rank_layers(other).ordered("beyond-null")["beyond_null"]) == sorted(table["beyond_null"], reverse=True)
    assert any("No null" in note for note in rank_layers(frame_of(PATTERN)).notes)


def test_what_the_control_explains():
    main = frame_of(PATTERN, noise=0.02, control=False)
    shuffled = frame_of(PATTERN, noise=0.02, rng=1, seeds=1, control=True)
    same = rank_layers(pd.concat([main, shuffled], ignore_index=True))
    assert same.verdict is Verdict.CONSISTENT
    assert Caveat.CONTROL in same.caveats
    assert labels(same) == labels(rank_layers(main))
    assert same.statistics.trials == 9
    assert same.table["beyond_control"].abs().max() < 0.1
    assert set(same.by_alpha["seeds"]) == {3}
    other = {"a": 0.5, "b": 0.4, "c": 0.6, "d": 0.3, "e": 0.5}
    control = frame_of(other, seeds=1, alphas=(1e-4,), control=True)
    differs = rank_layers(pd.concat([main, control], ignore_index=True))
    assert differs.verdict is Verdict.CONSISTENT
    assert Caveat.CONTROL not in differs.caveats
    assert differs.statistics.control.share < 0.5
    assert any("Control trials on shuffled labels explain" in note for note in differs.notes)
    assert "-control" in differs.text(100)
    assert Ranking.from_json(differs.to_json()) == differs


def test_weighted_orders():
    frame = frame_of(PATTERN)
    frame["params"] = frame["layer"].map({"a": 1e7, "b": 1e5, "c": 1e4, "d": 5e6, "e": 500})
    frame["macs"] = frame["layer"].map({"a": 10, "b": 10, "c": 10, "d": 10, "e": 1e6})
    ranking = rank_layers(frame)
    assert ranking.ordered("redundancy")["layer"][0] == "e"
    by_params = ranking.ordered("params")
    assert list(by_params["label"]) == sorted(
        by_params["label"], key=["redundant", "unclear", "average", "needed"].index
    )
    gains = by_params[by_params["label"] == "redundant"]["params_given_up"]
    assert list(gains) == sorted(gains, reverse=True)
    assert ranking.ordered("params", 1)["layer"][0] == "d"
    assert ranking.ordered("macs", 1)["layer"][0] == "e"
    with pytest.raises(OptionError):
        ranking.ordered("beauty")
    with pytest.raises(OptionError):
        ranking.ordered(top=0)


def test_groups_are_ranked_too():
    frame = frame_of(PATTERN, params=100, macs=10)
    ranking = rank_layers(frame, groups={"a": "stage", "e": "stage"})
    groups = ranking.groups.set_index("group")
    assert sorted(groups.index) == ["b", "c", "d", "stage"]
    assert groups.at["stage", "layers"] == 2
    assert groups.at["stage", "params"] == 200
    assert groups.at["stage", "remaining"] == pytest.approx(
        ranking.table.set_index("layer").loc[["a", "e"], "remaining"].mean()
    )
    column = rank_layers(frame.assign(group=frame["layer"].map({"a": "stage", "e": "stage"})))
    assert column == ranking
    assert rank_layers(frame).groups is None
    read = Ranking.from_json(ranking.to_json())
    assert (read, read.why) == (ranking, ranking.why)
    with pytest.raises(DataError, match="no layer 'z'"):
        rank_layers(frame, groups={"z": "stage"})


def test_a_record_is_read_over_its_last_quarter(tmp_path):
    record = make_run(tmp_path / "run", layers=("a", "b", "c"), seeds=2)
    ranking = rank_layers(record)
    assert ranking.remaining().loc["a", 1e-4] == pytest.approx(0.5)
    assert list(ranking.table["layer"]) == ["c", "b", "a"]
    frame = record.frame.merge(record.layers[["layer", "params", "macs"]], on="layer")
    same = rank_layers(frame)
    assert (same.verdict, same.caveats, same.notes) == (ranking.verdict, ranking.caveats, ranking.notes[:-1])
    assert ranking.notes[-1].startswith("Spare: the weights pruned at alpha 1e-3")
    known = ["spare", "spare_alpha", "spare_words"]  # a frame has no scores
    pd.testing.assert_frame_equal(same.table.drop(columns=known), ranking.table.drop(columns=known))
    assert same.table["spare"].isna().all()
    assert "spare %" not in same.text(100)
    assert ranking.table["spare"].notna().all()
    assert "spare %" in ranking.text(100)
    for back in (Ranking.from_json(ranking.to_json()), Ranking.from_csv(ranking.to_csv())):
        assert back == ranking
        assert back.spare_words("c") == ranking.spare_words("c") != ""
    control = pd.concat([frame.assign(control=False), frame.assign(control=True)], ignore_index=True)
    assert rank_layers(control).statistics.control.share > 0.95


def test_a_ranking_has_text_markdown_and_html():
    ranking = rank_layers(frame_of(PATTERN))
    assert repr(ranking) == "Ranking('consistent', 5 layers, W=1.00)"
    assert "Verdict: consistent." in str(ranking)
    assert "3 more layers" in ranking.text(80, top=2)
    assert isinstance(ranking, dst_analyze.Ranking)
    with pytest.raises(TypeError):
        hash(ranking)

"""Spare: the share of a layer that goes at no measurable loss of score, and what more costs."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import made_run

from dst_analyze.ranking.input.trial_matrix import measured
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.ranking.spare import costs_of, loss_words, spare_of
from dst_analyze.report.page import render
from dst_analyze.report.summary import summary_of
from dst_analyze.run.record import TrialResult

LAYERS = ["a", "b"]


class Record:
    """As much of a sweep's record as `costs_of` reads."""

    def __init__(self, scores, *, dense=0.9, error=0.001, kind="accuracy", reference="trained alike", warm_up=0):
        self.alphas = tuple(scores)
        trials = [(None, 0, dense)]
        trials += [(alpha, seed, score) for alpha, many in scores.items() for seed, score in enumerate(many)]
        self.trials = tuple(
            TrialResult(alpha=alpha, seed=seed, status="done" if score is not None else "diverged", steps=1,
                        score=score, error=error)
            for alpha, seed, score in trials
        )  # fmt: skip
        data = type("Data", (), {"score": kind})
        self.manifest = type("Manifest", (), {"data": data, "reference": reference, "warm_up": warm_up})

    def at(self, alpha):
        return [trial for trial in self.trials if trial.alpha == alpha and trial.status == "done"]


def frame_of(ratios, resets=0):
    """Ratios by alpha, the same for every layer but halved for b."""
    return pd.DataFrame(
        [
            {"layer": name, "alpha": alpha, "remaining": ratio / (1 + at), "resets": resets}
            for alpha, ratio in ratios.items()
            for at, name in enumerate(LAYERS)
        ]
    )


def spare(scores, ratios, resets=0, **options):
    return spare_of(measured(frame_of(ratios, resets)), costs_of(Record(scores, **options)))


RATIOS = {1e-6: 0.8, 1e-5: 0.4, 1e-4: 0.1}


def test_spare_is_what_was_pruned_at_the_strongest_alpha_within_noise():
    found = spare({1e-6: [0.9], 1e-5: [0.899], 1e-4: [0.88]}, RATIOS)
    assert list(found["spare"]) == pytest.approx([0.6, 0.8])
    assert set(found["spare_alpha"]) == {1e-5}
    assert found["spare_words"][0] == "60 % of its weights go at no loss, 90 % at 2.0 points"


def test_a_lucky_strong_alpha_after_a_bad_one_does_not_count():
    found = spare({1e-6: [0.9], 1e-5: [0.85], 1e-4: [0.9]}, RATIOS)
    assert set(found["spare_alpha"]) == {1e-6}
    assert found["spare_words"][0] == "20 % of its weights go at no loss, 60 % at 5.0 points, 90 % at 5.0 points"
    slightly = spare({1e-6: [0.9], 1e-5: [0.898], 1e-4: [0.9]}, RATIOS)  # less than twice the noise below
    assert set(slightly["spare_alpha"]) == {1e-4}
    lost = spare({1e-6: [0.9], 1e-5: [None], 1e-4: [0.9]}, RATIOS)
    assert set(lost["spare_alpha"]) == {1e-6}


def test_nothing_is_spare_where_no_alpha_keeps_the_score():
    found = spare({1e-6: [0.7], 1e-5: [0.6], 1e-4: [0.5]}, RATIOS)
    assert list(found["spare"]) == [0, 0]
    assert found["spare_alpha"].isna().all()
    first = "no alpha that was tried kept the score: 20 % of its weights go at a cost of 20 points"
    assert found["spare_words"][0].startswith(first)


def test_a_loss_is_better_when_lower():
    found = spare({1e-6: [0.5], 1e-5: [0.4], 1e-4: [0.52]}, RATIOS, dense=0.5, kind="loss")
    assert set(found["spare_alpha"]) == {1e-5}
    assert found["spare_words"][0] == "60 % of its weights go at no loss, 90 % at a loss higher by 0.02"


def test_noise_is_that_of_both_scores_and_of_seeds():
    for error, expected in ((0.003, math.hypot(0.003, 0.003)), (None, 0.005)):
        costs = costs_of(Record({1e-6: [0.9]}, error=error))
        assert costs.alphas[0].noise == pytest.approx(expected)
    assert costs_of(Record({1e-6: [0.9]}, error=None, kind="loss")).alphas[0].noise == pytest.approx(0.009)
    spread = costs_of(Record({1e-6: [0.88, 0.92]}, error=0.003)).alphas[0].noise
    assert spread == pytest.approx(math.sqrt(2 * 0.003**2 + np.var([0.88, 0.92], ddof=1)))


def test_a_reference_of_the_warm_up_alone_is_not_taken_where_a_trial_did_better():
    scores = {1e-6: [0.95], 1e-5: [0.9], 1e-4: [0.8]}
    alike, half = (spare(scores, RATIOS, reference=how, warm_up=100) for how in ("trained alike", "warm-up"))
    assert set(alike["spare_alpha"]) == {1e-5}
    assert set(half["spare_alpha"]) == {1e-6}  # five points below the weakest alpha
    assert set(spare(scores, RATIOS, reference="warm-up")["spare_alpha"]) == {1e-5}  # there was no warm-up


def test_a_reset_layer_spares_only_what_was_pruned_when_it_was_scored():
    """The ranking counts it as collapsed; the score was taken with what it had got back."""
    scores = {1e-6: [0.9], 1e-5: [0.9], 1e-4: [0.9]}
    assert spare(scores, RATIOS, resets=1)["spare"].equals(spare(scores, RATIOS)["spare"])


def test_nothing_is_known_without_scores():
    for options in ({"dense": None}, {}):
        scores = {1e-6: [0.9]} if options else {1e-6: [None]}
        found = spare(scores, {1e-6: 0.5}, **options)
        assert found["spare"].isna().all()
        assert set(found["spare_words"]) == {""}


shares = st.floats(0, 1)
points = st.floats(0, 1)
sweeps = st.lists(st.tuples(shares, points), min_size=1, max_size=5)


@settings(deadline=None)
@given(sweeps, points, st.sampled_from(["accuracy", "loss"]), st.booleans())
def test_spare_is_a_share_and_zero_where_nothing_was_pruned(sweep, dense, kind, known):
    scores = {10.0**-at: [score] for at, (_, score) in enumerate(reversed(sweep))}
    ratios = {10.0**-at: ratio for at, (ratio, _) in enumerate(reversed(sweep))}
    found = spare(scores, ratios, dense=dense, kind=kind, error=0.01 if known else None)["spare"]
    assert found.between(0, 1).all()
    whole = measured(frame_of(dict.fromkeys(scores, 1.0)))
    none = spare_of(whole.take(np.array([True, False])), costs_of(Record(scores, dense=dense, kind=kind)))
    assert (none["spare"] == 0).all()


@settings(deadline=None)
@given(sweeps, st.floats(0.3, 1))
def test_a_stronger_alpha_without_loss_never_lowers_spare(sweep, dense):
    alphas = [10.0 ** (at - 6) for at in range(len(sweep))]
    scores = {alpha: [score] for alpha, (_, score) in zip(alphas, sweep, strict=True)}
    ratios = {alpha: ratio for alpha, (ratio, _) in zip(alphas, sweep, strict=True)}
    before = spare(scores, ratios, dense=dense)
    stronger = 10.0 ** (len(sweep) - 6)
    after = spare({**scores, stronger: [dense]}, {**ratios, stronger: min(ratios.values()) / 2}, dense=dense)
    assert (after["spare"] >= before["spare"] - 1e-12).all()


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [(0.005, "accuracy", "half a point"), (0.01, "accuracy", "one point"), (0.023, "accuracy", "2.3 points"),
     (0.12, "accuracy", "12 points"), (0.02, "loss", "a loss higher by 0.02")],
)  # fmt: skip
def test_a_loss_in_words(loss, kind, words):
    assert loss_words(loss, kind) == words


def test_spare_is_shown_everywhere(tmp_path):
    record = made_run(tmp_path / "run", ["a", "b", "c", "d", "e"], alphas=(1e-5, 1e-4, 1e-3), seeds=3)
    ranking = rank_layers(record)
    assert ranking.table["spare"].between(0, 1).all()
    assert "spare %" in ranking.text(120)
    assert "spare %" in ranking.markdown()
    assert "spare %" in ranking._repr_html_()
    page = render(record, ranking)
    assert 'data-column="spare"' in page
    for found in summary_of(record, ranking, None, None).findings:
        assert ranking.spare_words(found.layer)[1:] in found.text

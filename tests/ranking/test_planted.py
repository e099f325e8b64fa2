"""It is right: planted redundancy is found, by training for real. experiments/planted.py does it with ten seeds.

Two seeds, two alphas and 300 steps each here (for the needed layer three and 600: it comes out later): enough to fail
if the ranking, or the training under it, goes wrong.
"""

import functools

import pytest
from planted import PLANTINGS, Widened

from dst_analyze import analyze, rank_layers, run_sweep
from dst_analyze.ranking.verdict import Verdict
from dst_analyze.sweep.data.digits import load_digits

SEEDS = 2


@functools.cache
def data():
    images, labels = load_digits()
    return (images[:1437], labels[:1437]), (images[1437:1600], labels[1437:1600])


def swept(name, planted, folder):
    planting = PLANTINGS[name]
    length = {"alphas": [1e-4, 3e-4, 1e-3], "steps": 600} if planting.needed else {"alphas": [3e-4, 1e-3], "steps": 300}
    options = {**length, "alpha_scale": 1, "seeds": SEEDS, "exclude": planting.exclude}
    record = run_sweep(planting.build(planted), data(), out=folder / "run", **options)
    assert record.complete
    return record


def at_the_end(table, planting):
    """The layers that stand at the end of the table where the planted ones should."""
    end = table["redundancy"].min() if planting.needed else table["redundancy"].max()
    return set(table["layer"][(table["redundancy"] - end).abs() < 1e-9])


@pytest.mark.parametrize("name", ["wide", "constant", "big", "duplicated", "neck"])
def test_planted_redundancy_heads_the_ranking(name, tmp_path):
    planting, record = PLANTINGS[name], swept(name, True, tmp_path)
    facts = record.layers[["layer", "params", "macs"]]
    for seed in range(SEEDS):  # each seed by itself
        alone = rank_layers(record.frame[record.frame["seed"] == seed].merge(facts, on="layer"))
        assert at_the_end(alone.table, planting) <= planting.layers
    ranking = rank_layers(record)
    assert at_the_end(ranking.table, planting) <= planting.layers
    assert ranking.verdict is not Verdict.NONE
    label = ranking.table.set_index("layer")["label"][sorted(planting.layers)]
    if name == "duplicated":  # known to be hard: docs/experiments/planted.md
        assert set(label) <= {"redundant", "unclear"}
    else:
        assert set(label) == {"needed" if planting.needed else "redundant"}


@pytest.mark.parametrize("name", ["wide", "big", "duplicated"])  # the control of "constant" is that of "wide"
def test_what_was_not_planted_is_not_found(name, tmp_path):
    planting = PLANTINGS[name]
    ranking = rank_layers(swept(name, False, tmp_path))
    table = ranking.table[ranking.table["layer"].isin(planting.layers)]
    assert set(table["label"]) <= {"average", "unclear"}
    assert table["redundancy"].abs().max() < 0.25


def test_planted_width_is_taken_back(tmp_path):
    """One layer of a chain is four times as wide as the others; at the parameters of the chain without, it goes."""
    found = analyze(
        lambda: Widened(times=4), data(), alphas=[1e-3, 3e-3], alpha_scale=1, seeds=2, out=tmp_path / "run", jobs=1
    )
    share = sum(p.numel() for p in Widened(planted=False).parameters()) / found.traced.params
    plan = found.suggest_widths(target_params=share, round_to=1)
    widths = {group.group: group.new_width for group in plan.groups}
    assert widths["wide"] <= 1.5 * 32
    assert min(widths["one"], widths["three"], widths["four"]) >= 0.6 * 32

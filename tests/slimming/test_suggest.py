"""Widths under a budget, and plans."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from small_sweeps import FILE
from torch import nn

from dst_analyze import analyze, couple_channels, rank_layers, suggest_widths
from dst_analyze.cli.main import main
from dst_analyze.errors import DataError, FolderError, ModelError, OptionError
from dst_analyze.model.loading.load import load_model
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.ranking.verdict import judge
from dst_analyze.slimming.planning.budget import RULES, Budget, Cost, allowed_widths, widths_for
from dst_analyze.slimming.planning.density import GroupEvidence, from_masks, from_ratios
from dst_analyze.slimming.planning.plan_types import Limits, SlimPlan
from dst_analyze.slimming.planning.plan_widths import cost_of, plan_widths
from dst_analyze.slimming.proof.result import Entry, Verification
from dst_analyze.slimming.source.edits import changed_lines, pruning_ratios
from dst_analyze.slimming.surgery.slim_model import slim_model
from dst_analyze.sweep.planning.reload import reload_task
from dst_analyze.sweep.run_sweep import run_sweep


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 10),
    )  # fmt: skip


TRACED = trace_model(net(), torch.zeros(2, 1, 8, 8))
COUPLING = couple_channels(TRACED)
COSTS = {what: cost_of(TRACED, COUPLING, what) for what in ("params", "macs")}
NAMES = [group.name for group in COUPLING.removable]


def evidence(*densities):
    return {g.name: GroupEvidence.equal(g.width, d) for g, d in zip(COUPLING.removable, densities, strict=True)}


def planned(found, limits=None, **asked):
    return plan_widths(TRACED, COUPLING, found, limits=limits or Limits(round_to=1), asked=asked)


densities = st.lists(st.floats(0.01, 1), min_size=3, max_size=3)


def test_the_net_has_three_groups():
    assert NAMES == ["0", "2", "7"]


@settings(max_examples=60, deadline=None)
@given(densities, st.sampled_from([*RULES]), st.floats(0.1, 0.9), st.sampled_from(["params", "macs"]))
def test_a_budget_is_met_and_denser_groups_keep_more(found, rule, share, what):
    limits, cost = Limits(round_to=1), COSTS[what].of
    widths = widths_for(COUPLING.removable, evidence(*found), RULES[rule], limits, [Budget(COSTS[what], share)])
    # Within the tolerance, or one unit more of something would be too much.
    unit = max(cost({**widths, g.name: widths[g.name] + 1}) - cost(widths) for g in COUPLING.removable)
    assert abs(cost(widths) - share * cost({})) <= max(0.02 * share * cost({}), unit)
    if RULES[rule].priced:
        return
    kept = {group.name: widths[group.name] / group.width for group in COUPLING.removable}
    order = np.argsort(found)
    shares = [kept[NAMES[i]] for i in order]
    assert all(a <= 1.2 * b + 0.1 for a, b in itertools.pairwise(shares))  # but for giving rounding back


@settings(max_examples=60, deadline=None)
@given(densities, st.floats(0.15, 0.85), st.sampled_from(["params", "macs"]))
@example([0.25, 0.125, 1.0], 0.625, "macs")  # where a cheap group used to pay for the others' rounding
def test_balance_loses_least_for_what_it_costs(found, share, what):
    """No split of the same budget has a smaller sum of u d² ∛W / w: not that of another rule, nor one nearby."""

    def loss(widths):
        groups = zip(COUPLING.removable, found, strict=True)
        return sum(g.uses * d**2 * g.width ** (1 / 3) / widths[g.name] for g, d in groups)

    limits, cost = Limits(round_to=1), COSTS[what]
    best = widths_for(COUPLING.removable, evidence(*found), RULES["balance"], limits, [Budget(cost, share)])
    others = [
        widths_for(COUPLING.removable, evidence(*found), RULES[rule], limits, [Budget(cost, share)]) for rule in RULES
    ]
    for one, two in itertools.permutations(COUPLING.removable, 2):
        near = {**best, one.name: round(best[one.name] * 1.2), two.name: round(best[two.name] * 0.8)}
        if near[one.name] <= one.width and near[two.name] >= 1:
            others.append(near)
    for other in others:
        if cost.of(other) <= cost.of(best):
            assert loss(best) <= 1.05 * loss(other)  # but for rounding to whole units


def test_two_budgets_are_both_met_and_both_used_up():
    """Where the widths for the MACs have too many parameters and the other way round, both bind."""
    found, limits, rule = evidence(0.5, 0.5, 0.5), Limits(round_to=1), RULES["balance"]

    def widths(**shares):
        return widths_for(
            COUPLING.removable, found, rule, limits, [Budget(COSTS[what], share) for what, share in shares.items()]
        )

    def share(what, of):
        return COSTS[what].of(of) / COSTS[what].whole

    by_macs = widths(macs=0.4)
    params = 0.8 * share("params", by_macs)
    assert share("macs", widths(params=params)) > 0.42  # the budgets conflict
    both = widths(params=params, macs=0.4)
    assert share("params", both) == pytest.approx(params, rel=0.03)
    assert share("macs", both) == pytest.approx(0.4, rel=0.03)
    assert widths(params=0.99, macs=0.4) == by_macs  # one that does not bind changes nothing


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)) for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def test_what_many_layers_share_is_not_cut_for_the_price_of_them_all():
    """Equally dense, the residual stream costs four times a block's own units, and four times as many need it."""
    traced = trace_model(Residual(), torch.zeros(2, 8))
    coupling = couple_channels(traced)
    uses = {group.name: group.uses for group in coupling.removable}
    assert uses == {"stem": 8, "blocks.0.0": 2, "blocks.1.0": 2, "blocks.2.0": 2}
    budget = Budget(cost_of(traced, coupling, "params"), 0.4)
    equal = {group.name: GroupEvidence.equal(group.width) for group in coupling.removable}
    widths = widths_for(coupling.removable, equal, RULES["balance"], Limits(round_to=1), [budget])
    assert max(widths.values()) - min(widths.values()) <= 4


@settings(max_examples=30, deadline=None)
@given(densities, st.floats(0.15, 0.85), st.integers(1, 16) | st.just("auto"), st.integers(1, 24))
def test_widths_keep_to_their_limits(found, share, round_to, min_width):
    limits = Limits(round_to=round_to, min_width=min_width, keep=("2",))
    widths = widths_for(
        COUPLING.removable, evidence(*found), RULES["density"], limits, [Budget(COSTS["params"], share)]
    )
    assert "2" not in widths
    for group in COUPLING.removable:
        width = widths.get(group.name, group.width)
        assert min(min_width, group.width) <= width <= group.width
        assert width == group.width or width % limits.step(group.width) == 0 or width == min(min_width, group.width)


@given(st.integers(1, 5000))
def test_a_width_has_eight_steps_or_more_where_it_is_rounded_by_itself(width):
    step = Limits().step(width)
    assert step in (1, 2, 4, 8)
    assert step == 1 or width // step >= 8
    assert step == 8 or width < 16 * step  # the next one would be too coarse
    assert Limits(round_to=24).step(width) == 24


@settings(max_examples=30, deadline=None)
@given(densities, st.sampled_from(["density", "sqrt", "units"]))
def test_more_budget_is_never_narrower(found, rule):
    def at(share):
        return widths_for(
            COUPLING.removable, evidence(*found), RULES[rule], Limits(round_to=1), [Budget(COSTS["params"], share)]
        )

    less, more = at(0.3), at(0.6)
    assert all(less[name] <= more[name] + 1 for name in less)


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_costs_are_those_of_the_model_that_is_built(share):
    plan = planned(evidence(0.3, 0.9, 0.5), params=share)
    widths = {g.group: g.units - len(g.removed) for g in plan.groups}
    assert COSTS["params"].of(widths) == pytest.approx(plan.new_params, abs=0.01)
    assert plan.new_params / plan.params == pytest.approx(share, rel=0.02)
    assert plan.new_macs == trace_model(slim_model(TRACED, plan), torch.zeros(2, 1, 8, 8)).macs
    assert not plan.notes


def test_both_budgets_hold_and_a_budget_out_of_reach_says_why():
    plan = planned(evidence(0.3, 0.9, 0.5), params=0.8, macs=0.2)
    assert plan.new_params / plan.params <= 0.8
    assert plan.new_macs / plan.macs == pytest.approx(0.2, rel=0.02)
    plan = planned(evidence(0.3, 0.9, 0.5), params=0.6, macs=0.2)
    assert plan.new_params / plan.params <= 0.6
    used = plan.new_params / plan.params / 0.6, plan.new_macs / plan.macs / 0.2
    assert max(used) == pytest.approx(1, rel=0.02)  # the tighter one is used up, the other one kept to
    far = planned(evidence(0.3, 0.9, 0.5), Limits(round_to=8, keep=("2", "7")), params=0.1)
    assert any("at its floor" in note for note in far.notes)
    assert {g.group: g.reason for g in far.groups if g.reason} == {"2": "kept, as asked", "7": "kept, as asked"}


@settings(max_examples=30, deadline=None)
@given(densities, st.floats(0.1, 0.9))
def test_needed_layers_keep_their_share_beside_unclear_ones(found, share):
    """Two groups stay as they are, the third is needed: it keeps its part, and the plan says what that costs."""
    unclear = Limits(round_to=1, unclear=("0", "7"))
    needed = unclear.model_copy(update={"needed": ("2",), "needed_share": math.sqrt(share)})
    without, plan = planned(evidence(*found), unclear, params=share), planned(evidence(*found), needed, params=share)
    (before,), (after,) = ([g.new_width for g in p.groups if g.group == "2"] for p in (without, plan))
    assert after == max(before, math.ceil(math.sqrt(share) * 64))
    if plan.reached["params"] > 1.02 * share:
        assert f"what is needed keeps {math.sqrt(share):.0%}" in plan.notes[0]
    assert SlimPlan.model_validate_json(plan.model_dump_json()) == plan


def test_the_thinnest_units_go_first_and_of_equals_the_smallest():
    found = evidence(1.0, 1.0, 1.0)
    units = np.full(32, 0.9)
    units[[3, 5, 7]] = 0.1
    found["0"] = GroupEvidence(0.8, units, -np.sort(-units))
    plan = planned(found, Limits(round_to=1, keep=("2", "7")), params=0.97)
    gone = next(g.removed for g in plan.groups if g.group == "0")
    assert {3, 5, 7} <= set(gone) or set(gone) <= {3, 5, 7}
    sizes = TRACED.model[0].weight.detach().flatten(1).square().sum(1)
    plan = planned(evidence(1.0, 1.0, 1.0), Limits(round_to=1, keep=("2", "7")), params=0.95)
    gone = next(g.removed for g in plan.groups if g.group == "0")
    assert set(gone) == set(sizes.argsort()[: len(gone)].tolist())


def test_evidence_is_seen_from_both_ends():
    layers = {layer.name: layer.parameter for layer in TRACED.layers}
    full = {name: np.ones(TRACED.model.get_parameter(p).shape, bool) for name, p in layers.items()}
    masks = {name: mask.copy() for name, mask in full.items()}
    masks["0"][:16] = False  # half of the rows that make group 0
    masks["2"][:, 24:] = False  # a quarter of the columns that read it
    found = from_masks(COUPLING, layers, [masks])["0"]
    assert found.units[20] == 1
    assert found.units[30] == found.units[3] == pytest.approx(1e-3)  # dead at one end is dead
    assert found.density == pytest.approx(found.units.mean())
    assert list(found.sorted_units) == sorted(found.units, reverse=True)
    both = from_masks(COUPLING, layers, [masks, full])["0"]
    assert both.units[3] == pytest.approx(math.sqrt(found.units[3]))
    ratios = from_ratios(COUPLING, [{"0": 0.25, "2": 1.0, "7": 0.5, "9": 0.5}])
    assert ratios["0"].density == 0.5
    assert ratios["7"].density == 0.5
    # A layer most of whose rows are dead says so of itself, not of the layer it reads from.
    masks = {name: mask.copy() for name, mask in full.items()}
    masks["2"][8:] = False
    dead = from_masks(COUPLING, layers, [masks])
    assert dead["0"].density == pytest.approx(1)
    assert dead["2"].density == pytest.approx((8 + 56 * 1e-3) / 64)
    # Ends count by their weights: a third of a small one left, another third in every row, all of a large one.
    masks = {name: mask.copy() for name, mask in full.items()}
    rows, columns = np.indices((32, 9))
    masks["0"] = ((rows + columns) % 3 == 0).reshape(32, 1, 3, 3)
    small, large = masks["0"].size, masks["2"].size
    thin = from_masks(COUPLING, layers, [masks])["0"].density
    assert thin == pytest.approx(3 ** (-small / (small + large)), rel=1e-3)
    # Heads of the flattened 2x2 map: the readers of group 2 are four columns each.
    masks = {name: mask.copy() for name, mask in full.items()}
    masks["7"][:, 4:8] = False
    assert np.flatnonzero(from_masks(COUPLING, layers, [masks])["2"].units < 1).tolist() == [1]


def test_new_weights_are_drawn_for_the_new_widths():
    plan = planned(evidence(0.3, 0.9, 0.5), params=0.3)
    model = net()
    torch.manual_seed(1)
    slim, fresh = slim_model(model, plan), slim_model(model, plan, reinitialize=True)
    torch.manual_seed(1)
    again = slim_model(model, plan, reinitialize=True)
    for (name, kept), new, same in zip(slim.named_parameters(), fresh.parameters(), again.parameters(), strict=True):
        assert torch.equal(new, same)
        assert name.startswith("3.") or not torch.equal(kept, new)  # a BatchNorm starts at ones and zeros anyway
    last = fresh.get_parameter("9.weight")
    assert last.abs().max() <= 1 / math.sqrt(last.shape[1])  # torch's own bound for as many inputs


def test_a_plan_goes_to_disk_and_fits_one_model_only(tmp_path):
    plan = planned(evidence(0.3, 0.9, 0.5), params=0.5)
    plan.save(tmp_path / "plan.json")
    assert SlimPlan.load(tmp_path / "plan.json") == plan
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    slim = slim_model(model, plan)
    assert sum(p.numel() for p in slim.parameters()) == plan.new_params
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    other = net()
    other[2] = nn.Conv2d(32, 60, 3, padding=1)
    other[3], other[7] = nn.BatchNorm2d(60), nn.Linear(240, 96)
    with pytest.raises(ModelError, match=r"2.weight is \[64, 32, 3, 3\] in the plan, \[60, 32, 3, 3\] in the model"):
        slim_model(other, plan)
    text = (tmp_path / "plan.json").read_text()
    for damaged, said in ((text[:-30], "plan"), (text.replace('"schema_version": 1', '"schema_version": 9'), "schema")):
        (tmp_path / "bad.json").write_text(damaged)
        with pytest.raises(FolderError, match=said):
            SlimPlan.load(tmp_path / "bad.json")
    with pytest.raises(FolderError, match="no plan"):
        SlimPlan.load(tmp_path / "none.json")


def ratios(**by_layer):
    """A table as another tool may have it, of two alphas; a layer's name may begin with an underscore too many."""
    rows = [(name.strip("_"), alpha, ratio / times) for name, ratio in by_layer.items() for alpha, times in ALPHAS]
    return pd.DataFrame(rows, columns=["layer", "alpha", "remaining"])


ALPHAS = ((1e-5, 1), (1e-4, 2))


def test_widths_are_suggested_from_ratios_of_another_tool():
    ranking = rank_layers(ratios(_0=0.9, _2=0.05, _7=0.9, _9=0.9), draws=10)
    assert ranking.record is None
    plan = suggest_widths(TRACED, ranking, coupling=COUPLING, target_params=0.5, round_to=1)
    kept = {group.group: group.new_width / group.width for group in plan.groups}
    assert kept["2"] < min(kept["0"], kept["7"])
    assert plan.trials == 2
    assert plan.reached["params"] == pytest.approx(0.5, abs=0.05)
    again = suggest_widths(TRACED, type(ranking).from_json(ranking.to_json()), target_params=0.5, round_to=1)
    assert again == plan


def test_a_ranking_of_other_layers_or_none_at_all_suggests_nothing():
    with pytest.raises(DataError, match="of other layers than this model's"):
        suggest_widths(TRACED, rank_layers(ratios(a=0.5, b=0.1), draws=10), coupling=COUPLING)
    with pytest.raises(OptionError, match="from a ranking, not from a DataFrame") as caught:
        suggest_widths(TRACED, ratios(_0=0.5), coupling=COUPLING)
    assert "rank_layers(frame)" in caught.value.hint
    unpruned = rank_layers(ratios(_0=1.0, _2=1.0).assign(remaining=1.0), draws=10)
    with pytest.raises(DataError, match="no trial can be used as evidence"):
        suggest_widths(TRACED, unpruned, coupling=COUPLING)


def test_the_whole_job_ranks_once(tmp_path, capsys, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymodel.py").write_text(FILE)
    found = []
    monkeypatch.setattr("dst_analyze.ranking.rank.judge", lambda a: found.append(a) or judge(a))
    assert main(["mymodel.py", "--alphas", "1e-2,3e-2", "--alpha-scale", "1", "--steps", "20", "--out", "run"]) == 0
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "run" / "plan.json").exists()
    grouped = (tmp_path / "run" / "groups.csv").read_text().count("\n") > 1
    assert len(found) == 1 + grouped  # layers, and groups of them where there are any
    capsys.readouterr()


def test_changed_lines_and_ratios_for_another_tool():
    plan = planned(evidence(0.2, 1.0, 1.0), Limits(round_to=8, keep=("2", "7")), params=0.9)
    width = next(g.new_width for g in plan.groups if g.group == "0")
    lines = changed_lines(TRACED, slim_model(TRACED, plan)).set_index("layer")
    assert list(lines.index) == ["0", "2"]
    assert lines.loc["0", "before"] == "nn.Conv2d(1, 32, 3, padding=1)"
    assert lines.loc["0", "after"] == f"nn.Conv2d(1, {width}, 3, padding=1)"
    assert pruning_ratios(plan) == {"0": round(1 - width / 32, 4)}


@pytest.mark.parametrize(
    ("asked", "rule", "said"),
    [
        ({}, "density", "no target size"),
        ({"params": 1.5}, "density", "not a share"),
        ({"params": 0.5}, "best", "no rule"),
    ],
)
def test_invalid_budgets_are_refused(asked, rule, said):
    with pytest.raises(OptionError, match=said):
        plan_widths(TRACED, COUPLING, evidence(1, 1, 1), rule=rule, limits=Limits(), asked=asked)


# --- the proof ------------------------------------------------------------------------------------------------------


def entry(name, *scores):
    return Entry(name=name, about="a model", params=1, macs=1, latency_ms=1.0, memory=1, scores=scores)


def test_the_verdict_is_plain():
    def said(slim, other, kind="accuracy"):
        entries = entry("slim", *slim), entry("dense", *other), entry("uniform", *other)
        return Verification(score=kind, steps=1, seeds=tuple(range(len(slim))), entries=entries)

    better = said((0.9, 0.91, 0.92), (0.8, 0.81, 0.82))
    assert "It is better than uniform (a model) by 10 points" in better.verdict
    assert "10 points above the dense model" in better.verdict
    assert better.lead("uniform") == pytest.approx((0.1, 0.1, 0.1))
    assert "worse than uniform" in said((0.8, 0.81, 0.82), (0.9, 0.91, 0.92)).verdict
    assert "not shown to be better" in said((0.9, 0.8, 0.85), (0.85, 0.84, 0.83)).verdict
    assert "It is better than uniform" in said((0.1, 0.11, 0.12), (0.3, 0.31, 0.32), "loss").verdict
    assert "Its loss is 0.2 lower than the dense model's" in said((0.1, 0.11, 0.12), (0.3, 0.31, 0.32), "loss").verdict
    assert "(a model): 0.01 more loss" in said((0.2, 0.23), (0.21, 0.2), "loss").verdict
    assert "It cannot be compared with" in said((None, None, None), (0.9, 0.8, 0.7)).verdict
    assert "not shown to be better" in said((0.9, None, None), (0.8, 0.7, 0.7)).verdict  # one pair says nothing
    assert ": 0 points above" in said((0.511, 0.405, 0.784), (0.541, 0.435, 0.724)).verdict  # no 1.9e-15


def test_slim_and_verify_on_the_command_line(tmp_path, capsys, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    assert main(["m.py", "--alphas", "3e-3,1e-2", "--steps", "40", "--out", "run", "--quiet", "--jobs", "1"]) == 0
    assert main(["m.py", "--alphas", "1e-4", "--steps", "4", "--out", "other", "--target-macs", "1.5"]) == 2
    assert "not a share" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()  # before training
    assert (
        main(
            ["m.py", "--alphas", "1e-4", "--steps", "4", "--out", "other", "--target-macs", "0.5", "--jobs", "1", "-v"]
        )
        == 0
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "no slimmer architecture: no trial can be used as evidence (1 left nearly all weights)" in said
    assert "stronger --alphas or more --steps" in said  # four steps are no evidence, but there is a report
    assert (tmp_path / "other" / "report.html").exists()
    assert main(["slim", "other"]) == 2
    assert "no trial can be used as evidence" in capsys.readouterr().err
    assert main(["verify", "other"]) == 2
    assert "no plan" in capsys.readouterr().err
    assert main(["slim", "run", "--target-params", "1.5"]) == 2
    assert main(["slim", "run", "--target-params", "0.5", "--round-to", "1"]) == 0
    assert "prove it" in capsys.readouterr().out
    assert {"plan.json", "slim_model.py", "slim_model.safetensors", "changes.csv"} <= {
        file.name for file in (tmp_path / "run").iterdir()
    }
    written = load_file(tmp_path / "run" / "slim_model.safetensors")
    assert main(["slim", "run", "--target-params", "0.5", "--round-to", "1", "--reinitialize"]) == 0
    fresh = load_file(tmp_path / "run" / "slim_model.safetensors")
    assert {name: value.shape for name, value in fresh.items()} == {n: v.shape for n, v in written.items()}
    assert not any(torch.equal(fresh[name], value) for name, value in written.items())
    capsys.readouterr()
    assert main(["verify", "run", "--seeds", "2"]) == 0
    proof = capsys.readouterr().out
    verdict = " ".join(proof[proof.index("It scores") :].split())
    assert "uniform" in verdict
    again = ["m.py", "--alphas", "3e-3,1e-2", "--steps", "40", "--out", "run", "--verify", "--verify-seeds", "2", "-v"]
    assert main(again) == 0  # the same proof at the end of the whole job; nothing is trained again
    assert verdict in " ".join(capsys.readouterr().out.split())
    assert main(["inspect", "run/slim_model.py"]) == 0  # it is a model file itself
    assert main(["rank", "run"]) == 0  # and the folder is still a run folder
    (tmp_path / "m.py").write_text(FILE.replace("hidden=24", "hidden=32"))
    assert main(["slim", "run"]) == 2
    assert "another run" in capsys.readouterr().err
    assert (
        main(["m.py", "--alphas", "3e-3,1e-2", "--steps", "40", "--out", "run", "--quiet", "--force", "--jobs", "1"])
        == 0
    )
    assert SlimPlan.load(tmp_path / "run" / "plan.json").groups[0].width == 32  # another run, another plan


def test_a_model_that_cannot_be_written_as_source_is_slimmed_all_the_same(tmp_path, capsys, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    normed = "nn.utils.parametrizations.spectral_norm(nn.Linear(64, 16)), nn.Linear(16, hidden), nn.Linear(hidden, 10)"
    (tmp_path / "m.py").write_text(
        FILE.replace(
            "self.one, self.two = nn.Linear(64, hidden), nn.Linear(hidden, 10)",
            f"self.a, self.one, self.two = {normed}",
        ).replace("self.one(x)", "self.one(self.a(x))")
    )
    options = ["--alphas", "1e-2,3e-2", "--steps", "20", "--out", "run"]
    assert main(["m.py", *options, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "not written as source: a _SpectralNorm does not say" in said
    assert "slim_model(model, SlimPlan.load('run/plan.json'))" in said
    assert "slim_model.py" not in {file.name for file in (tmp_path / "run").iterdir()}
    page = (tmp_path / "run" / "report.html").read_text()
    assert "cannot be written as source" in page
    assert "stands in <code>slim_model.py" not in page
    (tmp_path / "run" / "slim_model.py").write_text("of another plan")
    assert main(["slim", "run", "--target-params", "0.8"]) == 0
    assert "not written as source" in capsys.readouterr().out
    assert not (tmp_path / "run" / "slim_model.py").exists()
    model = load_model("m.py:Net").model
    assert slim_model(model, SlimPlan.load("run/plan.json"))(torch.zeros(2, 64)).shape == (2, 10)
    found = analyze("m.py", alphas=(1e-2, 3e-2), steps=20, out="other")
    with pytest.warns(UserWarning, match="not written as source"):
        found.suggest_widths()


def test_widths_are_those_a_person_would_write():
    """Hidden units with all their gates count once, heads as many channels as they have."""
    lstm = trace_model(nn.LSTM(8, 40, batch_first=True), torch.zeros(2, 3, 8))
    found = couple_channels(lstm)
    assert [(group.width, group.per_unit) for group in found.removable] == []  # its output is the model's

    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(8, 40, batch_first=True), nn.Linear(40, 3)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    traced = trace_model(Read(), torch.zeros(2, 3, 8))
    found = couple_channels(traced)
    assert [(group.width, group.per_unit) for group in found.removable] == [(40, 1)]
    plan = plan_widths(
        traced,
        found,
        {found.removable[0].name: GroupEvidence.equal(40, 0.5)},
        limits=Limits(round_to=8),
        asked={"params": 0.5},
    )
    assert [(g.width, g.new_width) for g in plan.groups] == [(40, 24)]
    assert changed_lines(traced, slim_model(traced, plan))["after"].str.contains("24").all()
    heads = couple_channels(trace_model(Heads(), torch.zeros(2, 5, 32))).removable
    assert (4, 8) in [(group.width, group.per_unit) for group in heads]
    assert allowed_widths(Limits(round_to=8), next(group for group in heads if group.width == 4)) == [1, 2, 3, 4]


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(32, 4, batch_first=True), nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.attention(x, x, x)[0].mean(1))


def test_layers_that_shrink_together_are_ranked_together(tmp_path, capsys, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    residual = FILE.replace("self.two(self.one(x).relu())", "self.two(self.one(x).relu() + self.side(x))").replace(
        "nn.Linear(64, hidden), nn.Linear(hidden, 10)",
        "nn.Linear(64, hidden), nn.Linear(hidden, 10)\n        self.side = nn.Linear(64, hidden)",
    )
    (tmp_path / "m.py").write_text(residual)
    assert main(["m.py", "--alphas", "1e-4,1e-3", "--steps", "20", "--out", "run", "-v", "--jobs", "1"]) == 0
    assert "shrink together" in capsys.readouterr().out
    assert (tmp_path / "run" / "groups.csv").read_text() == "layer,group\none,one\nside,one\n"
    assert main(["rank", "run", "--format", "json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert dict(zip(groups["columns"], groups["rows"][0], strict=True))["layers"] in (1, 2)


def test_a_run_of_default_length_is_made_again_at_its_own_length(tmp_path, monkeypatch):
    monkeypatch.setattr("dst_analyze.sweep.planning.plan.DEFAULT_STEPS", 5)
    record = run_sweep("example:demo", alphas=(1e-3,), out=tmp_path / "run")
    monkeypatch.setattr("dst_analyze.sweep.planning.plan.DEFAULT_STEPS", 7)
    task = reload_task(record)
    assert (task.steps, task.recipe.clock) == (5, record.manifest.clock)


DATA_OF_ITS_OWN = (
    FILE
    + """

def train_data():
    from pathlib import Path

    import torch

    Path("read").touch()
    return torch.randn(64, 64), torch.randint(10, (64,))
"""
)


def test_slim_needs_neither_the_data_nor_a_folder_it_may_write(tmp_path, capsys, monkeypatch, inline):
    """The model is traced with noise of the shapes that the run has kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(DATA_OF_ITS_OWN)
    assert main(["m.py", "--alphas", "1e-4,1e-3", "--steps", "20", "--out", "run", "--quiet", "--jobs", "1"]) == 0
    Path("read").unlink()
    before = {path: path.read_bytes() for path in sorted(Path("run").rglob("*")) if path.is_file()}
    steps = []
    monkeypatch.setattr("dst_analyze.sweep.planning.preflight.train", lambda *given, **more: steps.append(given))
    monkeypatch.setattr("dst_analyze.run.writer.check_free", lambda *given, **more: steps.append(given))
    assert main(["slim", "run", "--target-params", "0.3", "--out", "elsewhere"]) == 0, capsys.readouterr().err
    assert not Path("read").exists()
    assert not steps
    assert {path: path.read_bytes() for path in sorted(Path("run").rglob("*")) if path.is_file()} == before
    assert Path("elsewhere/slim_model.py").exists()
    assert not Path("elsewhere/report.html").exists()
    assert main(["slim", "run", "--target-params", "0.3"]) == 0
    assert Path("run/slim_model.py").read_text() == Path("elsewhere/slim_model.py").read_text()


def test_a_run_from_before_inputs_were_kept_is_slimmed_with_its_data(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(DATA_OF_ITS_OWN)
    assert main(["m.py", "--alphas", "1e-4,1e-3", "--steps", "20", "--out", "run", "--quiet", "--jobs", "1"]) == 0
    sums = Path("run/SHA256SUMS")
    sums.write_text("".join(f"{line}\n" for line in sums.read_text().splitlines() if "inputs.json" not in line))
    Path("run/inputs.json").unlink()
    Path("read").unlink()
    assert main(["slim", "run", "--out", "elsewhere"]) == 0
    assert Path("read").exists()
    assert Path("elsewhere/slim_model.py").exists()


def test_a_deeper_models_cost_is_not_counted_more_often(monkeypatch):
    counted, of = [], Cost.of
    monkeypatch.setattr(Cost, "of", lambda *given: counted.append(given) or of(*given))
    found = []
    for depth in (4, 12):
        deep = nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(16, 16), nn.ReLU())])
        traced = trace_model(deep, torch.randn(2, 16))
        rows = [
            (layer.name, alpha, (0.9 - 0.5 * at / depth) / alpha)
            for alpha in (1, 2)
            for at, layer in enumerate(traced.layers)
        ]
        counted.clear()
        suggest_widths(traced, rank_layers(pd.DataFrame(rows, columns=["layer", "alpha", "remaining"])))
        found.append(len(counted))
    assert found[1] < 2 * found[0]  # each count is of all layers: three times as many would be quadratic

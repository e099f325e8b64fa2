"""Plans beside the ranking: labels and ranks in every row, why a width departs from them, and the ladder of sizes."""

import json
import math

import pytest
import torch
from torch import nn

from dst_analyze import analyze, couple_channels
from dst_analyze.cli.terminal import console, show_plan
from dst_analyze.errors import DataError, ModelError
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.ranking.verdict import NEEDED, NOT_MEASURED, REDUNDANT, UNCLEAR
from dst_analyze.report.tables import width_table
from dst_analyze.slimming.planning.budget import RULES, Budget, widths_for
from dst_analyze.slimming.planning.density import GroupEvidence, from_masks
from dst_analyze.slimming.planning.departures import Explainer
from dst_analyze.slimming.planning.ladder import SHARES, ladder_of
from dst_analyze.slimming.planning.plan_types import Limits, SlimPlan
from dst_analyze.slimming.planning.plan_widths import cost_of, plan_of, plan_widths
from dst_analyze.slimming.planning.ranked import MIXED, Ranked


class Residual(nn.Module):
    """A stem, two blocks past which its channels run, and a head."""

    def __init__(self, hidden=64):
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(32, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, 32, 3, padding=1))
            for _ in range(2)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    """An embedding and two blocks of attention and a hidden layer."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.attention = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in "ab")
        self.fc1, self.fc2 = (nn.ModuleList(nn.Linear(*widths) for _ in "ab") for widths in ((32, 128), (128, 32)))

    def forward(self, x):
        x = self.embed(x)
        for attention, fc1, fc2 in zip(self.attention, self.fc1, self.fc2, strict=True):
            x = x + attention(x, x, x)[0]
            x = x + fc2(fc1(x).relu())
        return self.head(x.mean(1))


def chain():
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))


def ranked(ratios, **labels):
    """A ranking by remaining ratios, the smallest first; unclear unless labelled."""
    order = sorted(ratios, key=ratios.get)
    ranks = {layer: float(place) for place, layer in enumerate(order, 1)}
    return Ranked({layer: labels.get(layer, UNCLEAR) for layer in order}, ranks, frozenset(), {})


def explained(model, example, ratios, share=0.5, labels=None, limits=None):
    """The plan for masks with these remaining ratios, explained by the ranking of the same ratios."""
    traced = trace_model(model, example)
    coupling, limits = couple_channels(traced), limits or Limits(round_to=8)
    generator = torch.Generator().manual_seed(0)
    masks = {
        layer.name: (torch.rand(layer.shape, generator=generator) < ratios[layer.name]).numpy()
        for layer in traced.layers
    }
    evidence = from_masks(coupling, {layer.name: layer.parameter for layer in traced.layers}, [masks])
    plan = plan_widths(traced, coupling, evidence, limits=limits, asked={"params": share})
    budgets = {"params": Budget(cost_of(traced, coupling, "params"), share)}
    found = ranked(ratios, **(labels or {}))
    plan = Explainer(coupling, evidence, RULES["balance"], limits, budgets, found).explained(plan)
    return plan, {group.group: group for group in plan.groups}


def test_a_chain_follows_its_ranking_and_claims_no_departure():
    plan, rows = explained(chain(), torch.zeros(2, 64), {"0": 0.2, "2": 0.2, "4": 1.0})
    assert [group.because for group in plan.groups] == ["", ""]
    assert [(group.place, group.label) for group in plan.groups] == [("1", UNCLEAR), ("2", UNCLEAR)]
    assert plan.ranked == 3
    plan, rows = explained(chain(), torch.zeros(2, 64), {"0": 0.1, "2": 0.9, "4": 1.0}, labels={"0": REDUNDANT})
    assert rows["0"].new_width < rows["2"].new_width
    assert not rows["0"].because
    assert rows["0"].label == REDUNDANT


RESIDUAL = {"stem": 0.9, "blocks.0.0": 0.6, "blocks.0.2": 0.6, "blocks.1.0": 0.6, "blocks.1.2": 0.1, "head": 1.0}


def test_the_first_layer_of_a_residual_stream_names_those_it_shares_channels_with():
    labels = {"blocks.1.2": REDUNDANT, "stem": NEEDED}
    _, rows = explained(Residual(), torch.zeros(2, 1, 8, 8), RESIDUAL, labels=labels)
    stream = rows["stem"]
    assert stream.new_width / stream.width > 0.75  # all of its makers together are denser than rank 1 alone
    assert stream.label == MIXED
    assert (stream.place, stream.name) == ("1 to 5", "stem +2")
    assert stream.why == (
        "blocks.1.2 (rank 1 of 6, redundant) keeps more than its rank suggests: "
        "3 layers make the same channels (stem, blocks.0.2 and 1 more)"
    )
    assert not rows["blocks.1.0"].why or "rank" in rows["blocks.1.0"].why


def test_layers_of_both_ends_that_share_one_width_are_named():
    ratios = dict.fromkeys(RESIDUAL, 0.35) | {"stem": 0.6, "blocks.1.2": 0.3, "head": 1.0}
    labels = {"blocks.1.2": REDUNDANT, "stem": NEEDED}
    fine, example = Limits(round_to=1), torch.zeros(2, 1, 8, 8)
    _, rows = explained(Residual(hidden=16), example, ratios, labels=labels, limits=fine)
    said = "one width for 3 layers, blocks.1.2 (rank 1 of 6, redundant) to stem (rank 5 of 6, needed)"
    assert rows["stem"].why == said
    _, rows = explained(Residual(hidden=8), example, ratios, labels=labels, limits=fine)
    assert rows["stem"].why == (
        "stem (rank 5 of 6, needed) keeps less than its rank suggests: "
        "narrowing it saves more than narrowing others (100 % of the parameters)"
    )


def test_a_transformer_narrows_its_hidden_layers_before_its_embedding():
    model, example = Transformer(), torch.zeros(2, 5, 8)
    names = [layer.name for layer in trace_model(model, example).layers]
    ratios = {name: 0.15 if "fc1" in name else 0.25 if "fc2" in name else 0.7 for name in names} | {"head": 1.0}
    _, rows = explained(model, example, ratios)
    kept = {name: group.new_width / group.width for name, group in rows.items()}
    assert max(kept["fc1.0"], kept["fc1.1"]) < kept["embed"]
    assert not rows["fc1.0"].why
    assert not rows["fc1.1"].why
    assert rows["embed"].new_width >= 24


def test_price_reader_and_frozen_channels_are_named():
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 256), nn.ReLU(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    _, rows = explained(net, torch.zeros(2, 1, 8, 8), {"0": 0.5, "3": 0.5, "5": 0.2, "7": 1.0})
    assert (rows["3"].new_width, rows["5"].new_width) == (128, 64)
    assert rows["5"].why == (
        "keeps more than its rank suggests: narrowing it saves less than narrowing others (6.1 % of the parameters)"
    )
    assert rows["3"].why == (
        "keeps less than its rank suggests: narrowing it saves more than narrowing others (100 % of the parameters)"
    )
    plan, _ = explained(chain(), torch.zeros(2, 64), {"0": 0.5, "2": 0.5, "4": 0.1}, labels={"4": REDUNDANT})
    (stays,) = [frozen for frozen in plan.frozen if frozen.why]
    assert (stays.first, stays.why) == (("4",), "4 (rank 1 of 3, redundant)")
    assert stays.reason == "an output of the model"
    even = nn.Sequential(*(part for _ in range(4) for part in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 10))
    ratios = {"0": 0.3, "2": 1.0, "4": 0.2, "6": 0.2, "8": 1.0}
    _, rows = explained(even, torch.zeros(2, 64), ratios, labels={"0": REDUNDANT})
    assert rows["0"].why == "keeps more than its rank suggests: what reads it is dense (2: 100 % left)"


def test_kept_groups_have_a_reason_and_no_departure():
    limits = Limits(round_to=8, keep=("blocks.1.0",))
    _, rows = explained(Residual(), torch.zeros(2, 1, 8, 8), RESIDUAL, limits=limits)
    assert rows["blocks.1.0"].because == "kept, as asked"


def test_sides_come_from_labels_first_then_from_ranks():
    labels = {"a": UNCLEAR, "b": "average", "c": REDUNDANT, "d": NEEDED, "e": UNCLEAR, "f": UNCLEAR}
    found = Ranked(labels, {name: place for place, name in enumerate(labels, 1)}, frozenset(), {})
    assert [found.side_of(name) for name in "abcdefg"] == [1, 0, 1, -1, -1, -1, 0]
    assert found.label_of(["a", "e"]) == UNCLEAR
    assert found.label_of(["a", "c"]) == MIXED
    assert found.label_of(["none"]) == ""
    gap = Ranked({"a": NOT_MEASURED}, {}, frozenset(), {"diverged": 2, "unpruned": 1})
    assert gap.side_of("a") == 0
    error = gap.no_evidence()
    assert "2 diverged, 1 left nearly all weights" in error.cause
    assert error.hint.startswith("give a lower --lr")


# --- the ladder -------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 64, batch_first=True), nn.Linear(64, 5)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


@pytest.mark.parametrize("axis", ["params", "macs"])
@pytest.mark.parametrize(
    ("model", "example", "exact"),
    [
        (chain, torch.zeros(2, 64), True),
        (Residual, torch.zeros(2, 1, 8, 8), True),
        (Transformer, torch.zeros(2, 5, 8), False),  # attention multiplies without weights
        (Recurrent, torch.zeros(2, 6, 8), True),
    ],
    ids=["chain", "residual", "transformer", "recurrent"],
)
def test_the_ladder_counts_what_a_built_model_has(model, example, exact, axis):
    traced = trace_model(model(), example)
    coupling, limits = couple_channels(traced), Limits(round_to=8)
    costs = {name: cost_of(traced, coupling, name) for name in ("params", "macs")}
    evidence = {g.name: GroupEvidence.equal(g.width, 0.3 + 0.1 * at) for at, g in enumerate(coupling.removable)}

    def widths_of(shares):
        budgets = [Budget(costs[name], share) for name, share in shares.items()]
        return widths_for(coupling.removable, evidence, RULES["balance"], limits, budgets)

    ladder = ladder_of(traced, coupling, widths_of, costs, axis)
    assert [(rung.axis, rung.share) for rung in ladder] == [(axis, share) for share in SHARES]
    per_unit = {group.name: group.per_unit for group in coupling.removable}
    for rung in ladder:
        units = {name: width // per_unit[name] for name, width in rung.widths.items()}
        built = plan_of(traced, coupling, units, evidence, rule="balance", asked={axis: rung.share}, limits=limits)
        assert rung.params == built.new_params
        assert rung.macs == pytest.approx(built.new_macs, rel=0.001 if exact else 0.05)
    sizes = [getattr(rung, axis) for rung in ladder]
    assert sizes == sorted(sizes, reverse=True)


# --- from a sweep -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    torch.manual_seed(0)
    x = torch.rand(256, 64)
    data = x, (x[:, :10] * torch.linspace(1, 2, 10)).argmax(1)
    options = {"alphas": [1e-2, 3e-2], "steps": 40, "warm_up": 10, "jobs": 1, "progress": False}
    folder = tmp_path_factory.mktemp("swept")
    return analyze(chain, data, out=folder / "run", **options), analyze(
        chain, data, out=folder / "none", **{**options, "alphas": [1e-9, 1e-8]}
    )


def test_all_groups_go_by_their_evidence_and_unclear_ones_are_marked(swept, capsys):
    found, _ = swept
    plan = found.suggest_widths(write=False, target_params=0.5)
    assert plan.is_advice
    assert 1 <= plan.trials <= 2
    assert plan.new_params < 0.6 * plan.params
    labels = found.ranking.table.set_index("layer")["label"]
    assert [group.label for group in plan.groups] == [labels[group.group] for group in plan.groups]
    assert [rung.share for rung in plan.ladder] == [0.75, 0.5, 0.25, 0.1]
    half = next(rung for rung in plan.ladder if rung.share == 0.5)
    assert half.params == plan.new_params
    assert half.widths == {group.group: group.new_width for group in plan.groups}
    assert all(rung.axis == "macs" for rung in found.suggest_widths(target_macs=0.5, write=False).ladder)
    assert SlimPlan.model_validate_json(plan.model_dump_json()) == plan
    show_plan(console(), plan)
    printed, page = capsys.readouterr().out, plan._repr_html_()
    for text in (printed, page, width_table(plan).to_csv()):
        assert all(group.label in text for group in plan.groups)
    for text in (printed, page):
        assert "dst-analyze slim RUN --target-params 0.25" in text
    unclear = [group for group in plan.groups if group.label == UNCLEAR]
    if len(unclear) == len(plan.groups):
        with pytest.raises(ModelError, match="nothing may be removed") as error:
            found.suggest_widths(only_clear=True, write=False)
        assert "leave out --only-clear" in error.value.hint
    else:
        careful = {group.group: group for group in found.suggest_widths(only_clear=True, write=False).groups}
        assert all(careful[group.group].new_width == group.width for group in unclear)


def test_without_evidence_there_is_no_plan_and_a_rehearsal_is_no_advice(swept, capsys):
    _, found = swept
    with pytest.raises(DataError, match="no trial can be used as evidence") as error:
        found.suggest_widths(write=False)
    assert "--alphas" in error.value.hint
    plan = found.suggest_widths(write=False, rehearsal=True)
    assert plan.trials == 0
    assert not plan.is_advice
    show_plan(console(), plan)
    printed = capsys.readouterr().out
    assert "this was a rehearsal" in printed
    assert "parameters" not in printed


def test_plans_of_earlier_versions_are_read():
    plan, _ = explained(chain(), torch.zeros(2, 64), {"0": 0.2, "2": 0.4, "4": 1.0})
    old = json.loads(plan.model_dump_json())
    for name in ("ladder", "ranked", "trials"):
        del old[name]
    for group in old["groups"]:
        for name in ("label", "ranks", "why"):
            del group[name]
    for frozen in old["frozen"]:
        for name in ("first", "why"):
            del frozen[name]
    read = SlimPlan.model_validate(old)
    assert read.ladder == ()
    assert read.is_advice
    assert [group.place for group in read.groups] == ["", ""]
    assert math.isclose(read.reached["params"], plan.reached["params"])
    assert "Other sizes" not in read._repr_html_()

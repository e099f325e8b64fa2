"""Residual branches that are near empty: found, counted, proposed, and left in place."""

import pandas as pd
import pytest
import torch
from channels import CASES, Net
from torch import nn
from torch.nn import functional as F

from dst_analyze import couple_channels
from dst_analyze.cli.terminal import plan_words
from dst_analyze.model.tracing.trace import trace_model
from dst_analyze.run.record import TrialKey
from dst_analyze.slimming.planning.density import GroupEvidence, late_ratios
from dst_analyze.slimming.planning.depth import EmptyBranch, empty_branches
from dst_analyze.slimming.planning.plan_types import Limits, SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_widths


def block(width=8):
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
    )  # fmt: skip


def forward(m, x):
    x = F.relu(m.stem(x))
    x = F.relu(x + m.one(x))
    x = F.relu(m.two(x) + m.down(x))
    return m.head(x.mean((2, 3)))


def residual():
    torch.manual_seed(0)
    stem, down = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
    return Net(forward, stem=stem, one=block(), two=block(), down=down, head=nn.Linear(8, 4))


TRACED = trace_model(residual(), torch.zeros(2, 3, 8, 8))
FULL = {layer.name: 0.5 for layer in TRACED.layers}


def found(*trials, traced=TRACED):
    full = {layer.name: 0.5 for layer in traced.layers}
    return empty_branches(traced, [{**full, **trial} for trial in trials])


def test_a_branch_that_is_near_empty_in_every_trial_is_found_and_counted():
    (branch,) = found({"one.3": 0.01}, {"one.3": 0.02})
    assert branch.layers == ("one.0", "one.3")
    assert branch.empty == {"one.3": 0.02}
    assert branch.params == sum(p.numel() for p in TRACED.model.one.parameters())
    assert branch.macs == sum(layer.macs for layer in TRACED.layers if layer.name.startswith("one")) > 0
    assert "test_depth.py" in branch.place or "channels.py" in branch.place
    assert found({"one.3": 0.01}, {"one.3": 0.03}) == ()
    assert found({"one.0": 0.01}, {"one.3": 0.01}) == ()
    assert found() == ()


def test_of_two_empty_branches_of_an_addition_one_is_proposed():
    assert [branch.layers for branch in found({"down": 0.0})] == [("down",)]
    assert [branch.layers for branch in found({"two.0": 0.0})] == [("two.0", "two.3")]
    assert [branch.layers for branch in found({"two.0": 0.0, "down": 0.0})] == [("two.0", "two.3")]


def test_what_is_no_branch_is_not_proposed():
    assert found({"stem": 0.0, "head": 0.0}) == ()


def test_every_path_through_a_branch_must_be_empty():
    def both(m, x):
        x = m.stem(x)
        return m.head(x + m.out(F.relu(m.one(x)) * torch.sigmoid(m.two(x)) + m.three(x)))

    torch.manual_seed(0)
    names = ("one", "two", "three", "out")
    net = Net(both, stem=nn.Linear(5, 8), head=nn.Linear(8, 4), **{name: nn.Linear(8, 8) for name in names})
    traced = trace_model(net, torch.zeros(3, 5))
    assert [b.layers for b in found({"out": 0.0}, traced=traced)] == [("one", "two", "three", "out")]
    three = {"one": 0.0, "two": 0.0, "three": 0.0}
    assert ("one", "two", "three", "out") in [b.layers for b in found(three, traced=traced)]
    assert found({"one": 0.0}, traced=traced) == ()  # two's gate is still there
    assert [b.layers for b in found({"three": 0.0}, traced=traced)] == [("three",)]


def test_layers_used_elsewhere_are_not_saved():
    def shared(m, x):
        x = m.stem(x)
        y = F.relu(m.one(x))
        return m.head(x + m.two(y)) + m.other(y)

    torch.manual_seed(0)
    sizes = {"stem": (5, 8), "one": (8, 8), "two": (8, 8), "head": (8, 4), "other": (8, 4)}
    traced = trace_model(Net(shared, **{n: nn.Linear(*size) for n, size in sizes.items()}), torch.zeros(3, 5))
    (branch,) = found({"two": 0.01}, traced=traced)
    assert branch.layers == ("two",)
    assert branch.params == 72


def test_sizes_are_not_paths():
    def sized(m, x):
        x = m.stem(x)
        y = m.one(x).view(x.shape[0], 2, -1)
        return m.head(x + (y + x.new_zeros(y.shape[-1])).reshape(x.shape))

    torch.manual_seed(0)
    sizes = {"stem": (5, 8), "one": (8, 8), "head": (8, 4)}
    traced = trace_model(Net(sized, **{n: nn.Linear(*size) for n, size in sizes.items()}), torch.zeros(3, 5))
    assert [b.layers for b in found({"one": 0.0}, traced=traced)] == [("one",)]


def test_what_is_written_by_index_keeps_a_branch_open():
    def written(m, x):
        x = m.stem(x)
        y = torch.zeros_like(m.one(x))
        y[:, :4] = m.two(x)
        return m.head(x + y)

    torch.manual_seed(0)
    sizes = {"stem": (5, 8), "one": (8, 8), "two": (8, 4), "head": (8, 4)}
    traced = trace_model(Net(written, **{n: nn.Linear(*size) for n, size in sizes.items()}), torch.zeros(3, 5))
    assert found({"one": 0.0}, traced=traced) == ()


@pytest.mark.parametrize("name", ["transformer", "layer-scale", "mixer", "attention-packed"])
def test_other_residual_nets_are_read(name):
    torch.manual_seed(0)
    traced = trace_model(CASES[name].build(), CASES[name].inputs())
    layers = {layer.name for layer in traced.layers}
    branches = empty_branches(traced, [dict.fromkeys(layers, 0.0)])
    expected = {"transformer": 2, "layer-scale": 1, "mixer": 2, "attention-packed": 0}
    assert len(branches) == expected[name]
    assert all(set(branch.layers) <= layers and branch.params > 0 for branch in branches)


def test_a_plan_proposes_a_branch_and_leaves_it_in_place(tmp_path):
    coupling = couple_channels(TRACED)
    evidence = {group.name: GroupEvidence.equal(group.width, 0.5) for group in coupling.removable}
    plan = plan_widths(TRACED, coupling, evidence, limits=Limits(round_to=1), asked={"params": 0.5})
    assert plan.depth == ()
    plan = plan.model_copy(update={"depth": found({"one.3": 0.0123})})
    plan.save(tmp_path / "plan.json")
    assert SlimPlan.load(tmp_path / "plan.json") == plan
    assert isinstance(plan.depth[0], EmptyBranch)
    said = next(line for line in plan_words(plan) if line.startswith("proposed, not done"))
    assert "one.0, one.3" in said
    assert "1.2%" in said


def test_ratios_are_medians_of_the_last_quarter():
    rows = [
        (alpha, 0, control, step, layer, 0.01 * step * alpha)
        for alpha in (1.0, 2.0)
        for control in (False, True)
        for step in (0, 10, 80, 90, 100)
        for layer in ("a", "b")
    ]
    frame = pd.DataFrame(rows, columns=["alpha", "seed", "control", "step", "layer", "remaining"])
    record = type("Record", (), {"frame": frame})
    found = {TrialKey(1.0, 0): {"a": 0.9, "b": 0.9}, TrialKey(2.0, 0): {"a": 1.8, "b": 1.8}}
    assert late_ratios(record, "remaining") == found

"""The search for the smallest size that is level with the dense model."""

import json

import numpy as np
import pytest
import torch
from small_sweeps import FILE, TEST, TRAIN
from torch import nn

from dst_analyze import couple_channels
from dst_analyze.cli.main import main
from dst_analyze.run.events import CandidateTrained, Notice
from dst_analyze.slimming.planning.density import GroupEvidence
from dst_analyze.slimming.planning.plan_types import Limits, SlimPlan
from dst_analyze.slimming.planning.plan_widths import plan_widths
from dst_analyze.slimming.planning.target import SizeTarget
from dst_analyze.slimming.proof.candidates import Candidate
from dst_analyze.slimming.proof.comparison import Lead
from dst_analyze.slimming.proof.kept_scores import KeptScores
from dst_analyze.slimming.proof.size_search import search_size, sizes_to_try, standing_of
from dst_analyze.slimming.proof.trainings import Trainings
from dst_analyze.sweep.planning.plan import plan_sweep

RATIOS = {"0.5": {"0": 0.5, "2": 0.5}}


@pytest.fixture
def task(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return plan_sweep(model, (TRAIN, TEST), alphas=[1e-3], steps=10, out=tmp_path / "run").task


def search(tmp_path, task, score_of, start, seeds="auto"):
    """Search among scores that are kept as if every training had ended: none is made here."""
    coupling = couple_channels(task.traced)
    evidence = {group.name: GroupEvidence.equal(group.width) for group in coupling.removable}
    kept = KeptScores(tmp_path / "kept", task.steps)

    def plan_at(share):
        return plan_widths(task.traced, coupling, evidence, limits=Limits(round_to=1), asked={"params": share})

    for seed in range(10):
        kept.save(Candidate("dense", "", None), seed, score_of(1.0, seed), RATIOS if seed == 0 else {})
        for share in sizes_to_try(start):
            kept.save(Candidate("slim", "", plan_at(share)), seed, score_of(share, seed), {})
    heard = []
    trainings = Trainings(task, coupling, kept, listener=heard.append, seconds=30.0)
    found = search_size(trainings, plan_at, SizeTarget(basis="masks", share=start, left=0.1, alpha=1e-4), seeds)
    return found, heard


def falls_at(knee, noise=0.001, seed=0):
    """Scores that fall below a size, with noise of one draw for each size and seed."""
    rng, drawn = np.random.default_rng(seed), {}

    def score(share, seed):
        mean = 0.9 - max(0.0, knee - share)
        return drawn.setdefault((share, seed), mean + float(rng.normal(0, noise)))

    return score


def test_smaller_sizes_are_tried_while_they_are_level(tmp_path, task):
    found, heard = search(tmp_path, task, falls_at(0.2), 0.4)
    assert [(size.share, size.standing) for size in found.tried] == [(0.4, "level"), (0.25, "level"), (0.1, "below")]
    assert (found.basis, found.share, found.level, found.left) == ("proof", 0.25, True, 0.1)
    assert found.sentence == (
        "25 % is the smallest size tried that is level with the dense model (40 % and 25 % level; 10 % below it)."
    )
    told = [event.text for event in heard if isinstance(event, Notice)]
    assert told[0].endswith("6 to 60 trainings of 10 steps: about 3 min, about 30 min at most")
    assert "a size of 10 % is below the dense model, 3 seeds" in told
    dense = [event.seed for event in heard if isinstance(event, CandidateTrained) and event.contender == "dense"]
    assert dense == sorted(set(dense))  # once for all sizes


def test_larger_sizes_are_tried_until_one_is_level(tmp_path, task):
    found, _ = search(tmp_path, task, falls_at(0.6), 0.25)
    assert [(size.share, size.standing) for size in found.tried] == [(0.25, "below"), (0.5, "below"), (0.75, "level")]
    assert found.share == 0.75


def test_without_a_level_size_the_least_that_was_not_decided_is_taken(tmp_path, task):
    found, _ = search(tmp_path, task, falls_at(0.3, noise=0.02), 0.5)
    assert {size.seeds for size in found.tried if size.standing == "open"} == {10}
    assert not found.level
    assert found.share == min(size.share for size in found.tried if size.standing == "open")
    assert found.clause.startswith("no size tried is shown to be level with the dense model")
    lost, _ = search(tmp_path, task, lambda share, seed: 0.9 * (share == 1.0) + 0.001 * (seed % 2), 0.5)
    assert [size.standing for size in lost.tried] == ["below", "below"]
    assert lost.share == 0.75


def test_level_means_surely_not_more_than_half_a_point_worse():
    assert standing_of(Lead(-0.001, -0.004, 0.002), "accuracy", 0.9) == "level"
    assert standing_of(Lead(0.02, 0.01, 0.03), "accuracy", 0.9) == "level"  # better is enough, too
    assert standing_of(Lead(-0.001, -0.008, 0.006), "accuracy", 0.9) == "open"
    assert standing_of(Lead(-0.02, -0.03, -0.01), "accuracy", 0.9) == "below"
    assert standing_of(Lead(-0.01, -0.015, 0.01), "loss", 2.0) == "level"  # one percent of the dense model's
    assert standing_of(Lead(*[float("nan")] * 3), "accuracy", 0.9) == "below"


def test_sizes_near_the_expected_one_are_left_out():
    assert sizes_to_try(0.35) == (0.75, 0.5, 0.35, 0.25, 0.1)
    assert sizes_to_try(0.26) == (0.75, 0.5, 0.26, 0.1)
    assert sizes_to_try(0.1) == (0.75, 0.5, 0.25, 0.1)


def test_the_whole_job_proves_the_size_that_it_finds(tmp_path, monkeypatch, capsys, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    options = ["--alphas", "3e-3,1e-2", "--steps", "30", "--round-to", "1", "--out", "run", "--jobs", "1"]
    assert main(["m.py", *options, "--verify", "--verify-seeds", "2"]) == 0
    said = capsys.readouterr()
    plan = SlimPlan.load("run/plan.json")
    assert plan.target.basis == "proof"
    assert plan.asked == plan.target.at(plan.target.share)
    assert "the search for the smallest size that is level: 4 to " in said.err
    assert plan.target.sentence in said.err
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["suggestion"]["target"]["tried"][0]["seeds"] == 2
    assert plan.target.sentence in (tmp_path / "run" / "report.html").read_text()
    assert [model["name"] for model in verdict["proof"]["models"]][:2] == ["dense", "slim"]
    kept = {path.name: path.read_bytes() for path in (tmp_path / "run" / "verified").iterdir()}
    assert main(["m.py", *options, "--verify", "--verify-seeds", "2", "--resume"]) == 0
    assert SlimPlan.load("run/plan.json").sha256 == plan.sha256  # searched again, from what is kept
    assert main(["verify", "run", "--target", "auto", "--seeds", "2", "--jobs", "1"]) == 0
    assert "the search" in capsys.readouterr().err
    assert SlimPlan.load("run/plan.json").sha256 == plan.sha256
    assert {path.name: path.read_bytes() for path in (tmp_path / "run" / "verified").iterdir()} == kept
    assert main(["verify", "run", "--target", "auto", "--seeds", "1"]) == 2
    assert "one seed decides no size" in capsys.readouterr().err

"""The ladder of a proof: the suggestion and its rivals at several sizes, compared at equal cost only."""

import json
import math
import re

import numpy as np
import pytest
from pydantic import ValidationError
from small_sweeps import FILE

from dst_analyze import Analysis, read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import OptionError
from dst_analyze.slimming.planning.plan_types import SlimPlan
from dst_analyze.slimming.proof.comparison import half_widths
from dst_analyze.slimming.proof.ladder import sizes_of
from dst_analyze.slimming.proof.ladder_result import LadderProof, LadderRung
from dst_analyze.slimming.proof.result import Entry, Verification
from dst_analyze.sweep.planning.reload import reload_task

NOISE = (0.0005, -0.0005, 0.0, 0.0002, -0.0002)


def entry(name, score, params, macs):
    scores = tuple(score + noise + 0.01 * seed for seed, noise in enumerate(np.roll(NOISE, len(name))))
    return Entry(name=name, about=name, params=params, macs=macs, memory=1, scores=scores)


def rung(share, slim, uniform, by_macs, random=0.5):
    """A size by parameters: uniform has as many, but half of the MACs; uniform-macs has the MACs, and more else."""
    params, macs = round(1000 * share), round(8000 * share)
    entries = (
        entry("dense", 0.9, 1000, 8000),
        entry("slim", slim, params, macs),
        entry("uniform", uniform, params, macs // 2),
        entry("uniform-macs", by_macs, round(1.7 * params), macs),
        entry("random", random, params, round(0.8 * macs)),
    )
    proof = Verification(score="accuracy", steps=10, seeds=(0, 1, 2, 3, 4), entries=entries)
    return LadderRung(axis="params", share=share, proof=proof)


def ladder(*rungs):
    return LadderProof(score="accuracy", steps=10, rungs=rungs, rule="balance", params=1000, macs=8000, sweep="x")


LADDER = ladder(
    rung(0.75, 0.9, 0.9, 0.9), rung(0.5, 0.9, 0.9, 0.9), rung(0.25, 0.88, 0.85, 0.88), rung(0.1, 0.85, 0.8, 0.87)
)


def test_on_each_axis_only_what_costs_as_much_is_compared():
    assert LADDER.verdicts == {
        "params": "At equal parameters: ahead of uniform at 25 and 10 %, level elsewhere; "
        "ahead of random at every size.",
        "macs": "At equal MACs: behind uniform at 10 %, level elsewhere; "
        "random not compared, as no size has equal MACs.",
    }
    assert LADDER.rungs[0].rival("uniform", "params").name == "uniform"
    assert LADDER.rungs[0].rival("uniform", "macs").name == "uniform-macs"
    assert LADDER.rungs[0].rival("random", "macs") is None


def test_a_size_without_a_match_is_named():
    other = rung(0.5, 0.9, 0.9, 0.9)
    odd = tuple(
        e.model_copy(update={"macs": 100}) if e.name == "uniform-macs" else e
        for e in rung(0.1, 0.85, 0.8, 0.8).proof.entries
    )
    proof = rung(0.1, 0.85, 0.8, 0.8).proof.model_copy(update={"entries": odd})
    found = ladder(other, LadderRung(axis="params", share=0.1, proof=proof))
    assert found.verdicts["macs"].startswith("At equal MACs: level with uniform at 50 %, not compared at 10 %")
    assert ladder(other).verdicts["params"].startswith("At equal parameters: level with uniform at 50 %")


def test_sizes_by_both_axes_are_told_apart():
    by_macs = LADDER.rungs[3].model_copy(update={"axis": "macs"})
    found = ladder(*LADDER.rungs[2:], by_macs)
    assert found.verdicts == {
        "params": "At equal parameters: ahead of uniform and random at every size.",
        "macs": "At equal MACs: behind uniform at 10 % of the parameters and 10 % of the MACs, level elsewhere; "
        "random not compared, as no size has equal MACs.",
    }
    with pytest.raises(ValidationError, match="a size stands in it twice"):
        LadderProof.model_validate_json(ladder(LADDER.rungs[0], LADDER.rungs[0]).as_bytes())


def test_curves_join_all_that_is_thinned_alike():
    curves = dict(LADDER.curves("macs"))
    assert list(curves) == ["slim", "uniform", "random"]
    assert list(curves["slim"]["cost"]) == [800, 2000, 4000, 6000]
    assert list(curves["uniform"]["cost"]) == [400, 800, 1000, 2000, 3000, 4000, 6000]
    assert (curves["slim"]["half"] < 0.002).all()  # the seeds, 4 points apart, do not count
    assert LADDER.dense.name == "dense"


def test_intervals_leave_out_what_seeds_have_in_common():
    apart = half_widths({"a": (0.1, 0.2, 0.3), "b": (0.2, 0.3, 0.4), "r": (0.0, 0.5, 1.0)}, apart=("r",))
    assert apart["a"] == pytest.approx(0, abs=1e-9)
    assert apart["r"] == pytest.approx(4.303 * 0.5 / math.sqrt(3), rel=1e-3)
    assert math.isnan(half_widths({"a": (0.1,), "b": (0.2,)}, apart=())["a"])


def test_rungs_are_shares_from_large_to_small():
    assert sizes_of(None, ["params"]) == [("params", share) for share in (0.75, 0.5, 0.25, 0.1)]
    assert sizes_of((0.1, 0.5, 0.1), ["params", "macs"]) == [
        ("params", 0.5), ("params", 0.1), ("macs", 0.5), ("macs", 0.1)
    ]  # fmt: skip
    with pytest.raises(OptionError, match=r"1\.5 is not a share"):
        sizes_of((1.5,), ["params"])


def test_a_ladder_is_proven_kept_and_shown(tmp_path, monkeypatch, capsys, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    options = ["--alphas", "3e-3,1e-2", "--steps", "30", "--round-to", "1", "--out", "run", "--jobs", "1", "--quiet"]
    assert main(["m.py", *options]) == 0
    command = ["verify", "run", "--ladder", "--rungs", "0.5,0.25", "--by", "both", "--seeds", "2", "--jobs", "1"]
    capsys.readouterr()
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the ladder: 4 sizes, ")
    assert re.search(r" \d+ trainings of 30 steps: (less than a|about \d+) min", said)
    assert not (tmp_path / "run" / "ladder.json").exists()
    assert not (tmp_path / "run" / "verified").exists()
    assert main(command) == 0
    out = capsys.readouterr()
    found = LadderProof.load("run")
    assert [(rung.axis, rung.share) for rung in found.rungs] == sizes_of((0.5, 0.25), ["params", "macs"])
    assert all("".join(sentence.split()) in "".join(out.out.split()) for sentence in found.verdicts.values())
    assert "50 % slim" in out.out
    assert said.split(",")[1].split(":")[0] in out.err  # the cost is told before it begins, too
    kept = list((tmp_path / "run" / "verified").glob("dense*.json"))
    assert len(kept) == 2  # once for all sizes
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Score by size" in page
    assert all(sentence in page for sentence in found.verdicts.values())
    assert main(["report", "run", "--figures", "drawn", "--format", "svg"]) == 0
    assert (tmp_path / "drawn" / "ladder.svg").exists()
    before = (tmp_path / "run" / "ladder.json").read_bytes()
    (tmp_path / "run" / "ladder.json").write_text(before.decode().replace('"steps": 30', '"steps": 31'))
    assert main(["m.py", *options, "--resume"]) == 0  # damaged, so it is left out and removed
    assert not (tmp_path / "run" / "ladder.json").exists()
    assert main(command) == 0
    assert (tmp_path / "run" / "ladder.json").read_bytes() == before  # from kept trainings
    record = read_run("run")
    analysis = Analysis(reload_task(record), record)
    ladder = analysis.ladder(SlimPlan.load("run/plan.json"), rungs=(0.5, 0.25), by="both", seeds=2, jobs=1)
    assert ladder == found  # the same in Python
    with pytest.raises(OptionError, match="one seed decides no size"):
        analysis.smallest(SlimPlan.load("run/plan.json"), seeds=1)
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["ladder"]["verdicts"] == found.verdicts
    assert SlimPlan.load("run/plan.json").target is not None  # the suggestion stays as it is
    for wrong, why in (
        (["--rungs", "0.5"], "no ladder for these sizes"),
        (["--ladder", "--rungs", "2"], "not a share"),
        (["--ladder", "--target", "auto"], "a ladder has sizes of its own"),
    ):
        assert main(["verify", "run", *wrong]) == 2
        assert why in capsys.readouterr().err

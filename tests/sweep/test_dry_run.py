"""Dry runs, which estimate costs and write nothing, and smoke runs with tiny numbers in a separate folder."""

import json
import re
from dataclasses import replace

import pytest
import torch
from small_sweeps import FILE

from dst_analyze.cli.main import main
from dst_analyze.sweep.data.batches import as_batches
from dst_analyze.sweep.engines.resources import free_memory, gigabytes, peak_memory
from dst_analyze.sweep.planning.estimates import cost as costs
from dst_analyze.sweep.planning.estimates.cost import Estimate, estimate_of
from dst_analyze.sweep.planning.estimates.dry_run import NOTICEABLE, words
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.planning.smoke_run import BATCHES, STEPS, FewBatches


@pytest.fixture
def here(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "m.py").write_text(FILE + "\nprint('loud')\n")
    return tmp_path


def test_a_dry_run_says_what_it_would_cost_and_leaves_nothing(here, capsys):
    args = ["m.py", "--alphas", "1e-4,1e-3", "--seeds", "2", "--steps", "100", "--jobs", "2", "--dry-run"]
    assert main(args) == 0
    out = capsys.readouterr().out
    rows = {line[:12].strip(): line[12:] for line in out.splitlines()}
    assert rows["plan"] == "5 trials of 100 steps, each from weights trained for 100 before"
    assert rows["trials"].startswith("dense, seed 0; alpha 1e-4, seed 0; ")
    assert rows["model"] == "2 layers, 1,810 parameters, 1.78k MACs per sample"
    assert re.fullmatch(r"dense \S+ m?s, masked \S+ m?s: medians of \d+ on the real data, .*", rows["a step"])
    assert re.match(r"about \S+ \S+, alone on the machine, with 2 at once", rows["time"])
    assert re.match(r"about \S+ \SB a trial, \S+ \SB in all; \S+ \SB are free", rows["memory"])
    assert rows["run folder"].endswith("(nothing was trained or written)")
    assert "proof" not in rows
    assert [file.name for file in here.iterdir()] == ["m.py"]
    assert main([*args, "--verify", "--verify-seeds", "2"]) == 0  # with the search for the size
    assert re.search(r"^proof +18 to 26 more trainings of 100 steps, ", capsys.readouterr().out, re.MULTILINE)
    assert main([*args, "--verify", "--verify-seeds", "2", "--target-params", "0.5"]) == 0
    assert re.search(r"^proof +16 more trainings of 100 steps, \S+ m?s at most$", capsys.readouterr().out, re.MULTILINE)
    assert main([*args, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert (cost["trials"], cost["steps"], cost["jobs"]) == (5, 100, 2)


def test_waiting_for_data_is_told(here, capsys):
    slow = (
        "import time\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "class Slow(TensorDataset):\n"
        "    def __getitem__(self, number):\n"
        "        time.sleep(0.002)\n"
        "        return super().__getitem__(number)\n"
        "def train_data():\n"
        "    return DataLoader(Slow(torch.rand(64, 64), torch.arange(64) % 10), batch_size=8)\n"
    )
    (here / "slow.py").write_text(FILE + slow)
    shown = []
    for file in ("slow.py", "m.py"):
        assert main([file, "--alphas", "1e-4,1e-3", "--steps", "30", "--dry-run"]) == 0
        shown.append(
            re.search(r"^ +! (\d+)% of a step is waiting for data: .*num_workers", capsys.readouterr().out, re.M)
        )
    assert shown[1] is None
    assert int(shown[0][1]) > 50


def test_a_search_may_take_more_trials(here):
    cost = estimate_of(plan_sweep("m.py", steps=30, seeds=2), 1)
    assert (cost.trials, cost.most_trials) == (1 + 3 * 2, 1 + 3 * 2 + 3 * 3)
    assert cost.seconds(cost.most_trials) > cost.seconds(cost.trials) > 0
    cost = estimate_of(plan_sweep("m.py", steps=30, alphas=[1e-3], control="shuffled-labels"), 8)
    assert (cost.trials, cost.most_trials, cost.jobs) == (3, 3, 3)


def test_time_is_steps_times_seconds():
    cost = Estimate(5, 5, 100, 0, 30, 2, 1, dense_step=0.1, masked_step=0.2, timed=6, scoring=1, memory=1, free=2)
    dense, masked = 100 * 0.1 + 1, 100 * 0.2 + 1
    assert cost.seconds(1) == pytest.approx(dense)
    assert cost.seconds(4) == pytest.approx(2 * masked)  # one of the two workers trains two masked trials
    assert cost.seconds(5) == pytest.approx(dense + 2 * masked)  # the last one is alone, and its core gets no help
    waiting = replace(cost, warm_ups=1)  # for one training, while the other core has nothing to do
    assert waiting.seconds(5) == pytest.approx(30 * 0.1 + cost.seconds(5))
    assert replace(waiting, warm_up_step=0.06).seconds(5) == pytest.approx(30 * 0.06 + cost.seconds(5))
    assert replace(cost, warm_ups=3).seconds(5) == pytest.approx(2 * 30 * 0.1 + cost.seconds(5))
    workers = replace(cost, starting=0.5, ending=2)
    assert workers.seconds(5) == pytest.approx(cost.seconds(5) + 3 * 0.5 + 2)


def test_a_busy_machine_is_told_from_an_idle_one(here, monkeypatch, capsys):
    plan = plan_sweep("m.py", alphas=[1e-3, 1e-2], steps=30)
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(costs, "_all_cpu", lambda: float(next(clock)))  # other programs use all the cores there are
    busy = estimate_of(plan, 2)
    assert busy.busy > NOTICEABLE
    monkeypatch.setattr(costs, "_all_cpu", lambda: 0.0)
    alone = estimate_of(plan, 2)
    assert (alone.busy, alone.others) == (1, 0)
    assert busy.as_json()["time_now"] > busy.as_json()["time"]
    assert alone.as_json()["time_now"] == alone.as_json()["time"]
    notes = [text for name, text in words(plan, replace(alone, busy=3.0, others=1.9)) if not name]
    assert any(re.match(r"! other programs use 1.9 cores: at the moment it would take about \S+ m?s", n) for n in notes)
    assert not any("other programs" in text for _, text in words(plan, alone))


def test_weights_are_warmed_up_once_for_each_seed_and_kind_of_labels(here):
    asked = {"alphas": [1e-3], "steps": 30, "seeds": 3}

    def warm_ups(**options):
        cost = estimate_of(plan_sweep("m.py", **asked, **options), 1)
        return cost.warm_ups, cost.warm_up_steps

    assert warm_ups() == (3, 30)
    assert warm_ups(control="shuffled-labels") == (6, 30)
    assert warm_ups(warm_up=10) == (3, 10)
    assert warm_ups(warm_up=0) == (0, 0)


def test_a_run_says_before_it_starts_how_long_it_takes(here, capsys):
    args = ["m.py", "--alphas", "1e-4,1e-3", "--steps", "20", "--jobs", "1"]
    assert main(args) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line != "loud"]
    place = lines.index("3 trials of 20 steps")
    assert re.fullmatch(r"this takes (less than a minute|about \d+ min)(; alone .*)?", lines[place + 1])
    assert lines[place + 2].startswith("warm-up, seed 0")
    assert lines[place + 3].startswith("dense, seed 0")
    assert main(args) == 0  # complete: nothing will take any time
    assert "this takes" not in capsys.readouterr().err


def test_a_search_says_how_long_it_takes_at_most(here, capsys):
    assert main(["m.py", "--steps", "20", "--jobs", "1", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events[:3]] == ["sweep_started", "time_foreseen", "warm_up_started"]
    assert 0 < events[1]["seconds"] < events[1]["at_most"]


def test_too_little_memory_is_said(here, capsys, monkeypatch):
    monkeypatch.setattr(costs, "free_memory", lambda: 1000)
    assert main(["m.py", "--alphas", "1e-3", "--steps", "9", "--dry-run"]) == 0
    assert "! too much memory: give --jobs 1 or a smaller --batch-size" in capsys.readouterr().out


def test_memory_is_measured():
    def run():
        kept = torch.zeros(1000)
        for _ in range(3):
            torch.ones(2000)  # freed before the next
        return kept

    assert peak_memory(run) == 4 * 3000
    assert 0 < free_memory() < 1 << 60
    assert [gigabytes(count) for count in (2e12, 1.5e9, 20e6, 100)] == ["2 TB", "1.5 GB", "20 MB", "0.1 kB"]


def test_few_batches_again_and_again():
    few = FewBatches(as_batches((torch.arange(40.0), torch.arange(40)), place="", batch_size=4))
    stream = few.stream(0)
    first = [next(stream)[0].tolist() for _ in range(2 * BATCHES)]
    assert first[:BATCHES] == first[BATCHES:]
    assert len(list(few.once())) == few.per_epoch == BATCHES


def test_a_fast_run_does_everything_and_replaces_nothing(here, capsys):
    args = ["m.py", "--out", "run", "--jobs", "1"]
    assert main([*args, "--alphas", "1e-3", "--steps", "6", "--quiet"]) == 0
    real = {file: file.read_bytes() for file in (here / "run").rglob("*") if file.is_file()}
    for _ in range(2):  # and again over itself
        assert main([*args, "--epochs", "50", "--seeds", "3", "--fast-dev-run"]) == 0
    captured = capsys.readouterr()
    assert f"3 trials of {STEPS} steps" in captured.err
    assert "WARNING     a few steps only, to test that everything works: nothing here is a result" in captured.out
    assert "a test run of a few steps: nothing here is a result" in captured.out
    assert "\nslim model" not in captured.out.rpartition("WARNING     a few steps")[2]
    assert "saving" not in captured.out
    assert {"report.html", "table.csv", "plan.json", "slim_model.py"} <= {
        file.name for file in (here / "run-fast-dev-run").iterdir()
    }
    assert real == {file: file.read_bytes() for file in (here / "run").rglob("*") if file.is_file()}
    assert sorted(entry.name for entry in here.iterdir()) == ["m.py", "run", "run-fast-dev-run"]

"""`--budget`: steps and alphas for a given time."""

import json

import pytest
from small_sweeps import FILE

from dst_analyze import run_sweep
from dst_analyze.cli.main import main
from dst_analyze.errors import OptionError
from dst_analyze.run.events import Notice
from dst_analyze.sweep.planning import budget as budgets
from dst_analyze.sweep.planning.budget import ALPHAS, LONGEST, parse_budget, plan_within
from dst_analyze.sweep.planning.estimates.cost import Estimate
from dst_analyze.sweep.training.learning import FEWEST_STEPS


@pytest.fixture
def here(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    return tmp_path


@pytest.fixture
def machine(monkeypatch):
    """Steps of 10 ms, without masks or with, on one core; returned is a function that makes them slower."""

    def steps_of(seconds, busy=1.0):
        def estimate(plan, jobs):
            alphas = len(plan.task.config.given_alphas) * len(plan.task.config.seeds)
            counts = {"trials": alphas + 1, "most_trials": alphas + 1, "steps": 1, "warm_ups": 1, "warm_up_steps": 1}
            machine = {"jobs": jobs, "threads": 1, "timed": 6, "scoring": 0.0, "memory": 1, "free": 2, "busy": busy}
            return Estimate(**counts, **machine, dense_step=seconds, masked_step=seconds)

        monkeypatch.setattr(budgets, "estimate_of", estimate)

    steps_of(0.01)
    return steps_of


def planned(budget, heard=None, **options):
    emit = (lambda event: None) if heard is None else heard.append
    return plan_within("m.py", jobs=lambda task, trials: 1, budget=budget, emit=emit, **options).task


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), (90, 90), (1.5, 1.5), ("5min", 300), ("5 m", 300), ("1h 30min", 5400), ("0.5h", 1800)],
)
def test_a_budget_is_a_duration(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "5potatoes", "-5min", "0", "0s", "min", "nan", "inf", "1e9h", "9" * 400])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(OptionError, match="not a duration"):
        parse_budget(text)


def test_the_longest_sweep_that_fits_is_planned(here, machine):
    heard = []
    task = planned("50s", heard)  # five trainings of 10 ms a step: a warm-up, the reference, three alphas
    assert (task.steps, task.recipe.warm_up, task.config.alphas) == (1000, 1000, ALPHAS[0])
    (notice,) = heard
    assert "50 s buy 3 alphas: 4 trials of 1,000 steps, after as many without masks (about 50 s)" in notice.text
    machine(0.01, busy=2.0)
    assert planned("50s").steps == 500
    machine(0.01)
    assert planned("1h", heard).steps == LONGEST
    assert "--seeds would use the rest" in heard[-1].text


def test_little_time_buys_fewer_alphas_and_none_at_all_an_error(here, machine):
    task = planned("6.5s")
    assert (task.config.alphas, task.steps) == (ALPHAS[1], 162)
    with pytest.raises(OptionError, match="3 trials of 150 steps take about 6 s") as found:
        planned("5s")
    assert found.value.hint.startswith("give --budget 7s or more")
    assert planned("7s").steps >= FEWEST_STEPS


def test_alphas_that_are_given_are_kept(here, machine):
    task = planned("30s", alphas=(3e-6, 4e-6), seeds=2)
    assert (task.config.alphas, task.steps) == ((3e-6, 4e-6), 500)
    assert planned("30s", alphas=(3e-6,)).steps == 1000
    with pytest.raises(OptionError, match="too short"):
        planned("6.5s", alphas=(1e-6, 2e-6, 3e-6))


@pytest.mark.parametrize("option", [{"steps": 5}, {"epochs": 1}, {"warm_up": 0}, {"recipe": "paper"}])
def test_a_length_beside_it_is_refused(here, machine, option):
    with pytest.raises(OptionError, match="sets the length of training"):
        planned("1min", **option)


def test_a_file_that_trains_itself_is_refused_before_it_trains(here, machine):
    (here / "m.py").write_text(FILE + "\ndef fit(model): raise SystemExit\ndef evaluate(model): return 1.0\n")
    with pytest.raises(OptionError, match="--budget has no effect"):
        planned("1min")


def test_a_run_is_gone_on_with_at_its_own_length(here, machine):
    assert main(["m.py", "--budget", "9s", "--out", "run", "--quiet", "--jobs", "1"]) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["steps"], config["alphas"]) == (180, list(ALPHAS[0]))
    kept = (here / "run" / "run.toml").read_text()
    assert "steps = 180" in kept  # and not the budget, which another machine spends otherwise
    assert "budget" not in kept
    (here / "run" / "trials.csv").unlink()
    machine(0.001)
    assert main(["m.py", "--budget", "9s", "--out", "run", "--quiet", "--jobs", "1", "--resume"]) == 0
    assert json.loads((here / "run" / "config.json").read_text()) == config
    assert main(["m.py", "--budget", "9s", "--quiet", "--resume"]) == 2


def test_it_is_an_option_of_the_functions_and_of_the_command(here, machine, capsys):
    heard = []
    record = run_sweep("m.py", alphas=(1e-5,), budget=4.5, out=here / "run", listener=heard.append)
    assert record.manifest.steps == 150
    assert [event.text for event in heard if isinstance(event, Notice)] == [
        "4.5 s buy 1 alpha: 2 trials of 150 steps, after as many without masks (about 4.5 s)"
    ]
    assert main(["m.py", "--budget", "50s", "--jobs", "1", "--dry-run"]) == 0
    told = capsys.readouterr()
    assert "plan        4 trials of 1,000 steps" in told.out
    assert "sweeps of this length order about" in told.err
    assert main(["m.py", "--budget", "later", "--dry-run"]) == 2
    assert main(["m.py", "--budget", "later", "--fast-dev-run"]) == 2

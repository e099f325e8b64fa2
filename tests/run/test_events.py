"""The stream of events, and the ways of showing it."""

import io
import json
import math

import pytest
from rich.console import Console
from run_folders import make_run
from small_sweeps import FILE, TRAIN, mlp
from torch.utils.data import Dataset

from dst_analyze.run.events import (
    Notice,
    SweepStarted,
    TrialFailed,
    TrialFinished,
    TrialRetried,
    TrialStarted,
    TrialStep,
    to_json,
)
from dst_analyze.run.progress import Bars, JsonLines, watching
from dst_analyze.run.record import READING_COLUMNS, STEP_COLUMNS, TrialKey
from dst_analyze.sweep.engines.engine import InProcessEngine
from dst_analyze.sweep.engines.jobs import Trial
from dst_analyze.sweep.engines.process_engine import ProcessEngine
from dst_analyze.sweep.engines.resources import cores, default_jobs, threads_per_trial
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.run_sweep import run_plan, run_sweep

STANDING = "loss 0.5, accuracy 25.0%, 60.0% remain"
DENSE, MASKED = TrialKey(None, 0), TrialKey(1e-4, 1)
STORY = [
    SweepStarted("run", 3, 1, 100, 2, 1),
    TrialStarted(DENSE, 100),
    TrialStarted(MASKED, 100),
    TrialStep(DENSE, 50, 100, 0.5, None, 0.25),
    TrialStep(MASKED, 25, 100, 0.7, 0.875),
    TrialRetried(MASKED, "killed"),
    TrialStarted(MASKED, 100),
    TrialFinished(DENSE, 0.25, 0.75, None, 1.5),
    TrialFailed(MASKED, "diverged", "not finite \x1b[31m", 2.0),
    Notice("something"),
]


def told(manifest, *, terminal):
    text = io.StringIO()
    where = Console(file=text, force_terminal=terminal, width=150, markup=False, highlight=False, emoji=False)
    with watching(manifest, where) as emit:
        for event in STORY:
            emit(event)
            if terminal and isinstance(event, TrialStep):
                text.write(f"<{''.join(str(part) for part in _rows(emit))}>")
    return text.getvalue()


def _rows(emit):
    bars = next(cell.cell_contents for cell in emit.__closure__ if hasattr(cell.cell_contents, "rows"))
    return [
        f"{row.description} {row.completed:.0f}/{row.total:.0f} {row.fields['standing']};" for row in bars.rows.tasks
    ]


def test_lines_where_there_is_no_terminal(tmp_path):
    lines = told(make_run(tmp_path / "run", stand_in=True).manifest, terminal=False).splitlines()
    assert lines == [
        "STAND-IN DATA, because the model file has none: data",
        "all of it",
        "on cpu; thresholds learn at the rate of the weights",
        "3 trials of 100 steps, 1 of them done already, 2 at once",
        "alpha 1e-4, seed 1 starts again: killed",
        "dense, seed 0: loss 0.25, accuracy 75.0%, 1.5 s",
        "alpha 1e-4, seed 1 diverged: not finite \\x1b[31m",
        "something",
    ]


def test_bars_on_a_terminal(tmp_path):
    text = told(make_run(tmp_path / "run").manifest, terminal=True)
    assert "<1 of 3 trials 50/200 ;dense, seed 0 50/100 loss 0.5, accuracy 25.0%;alpha 1e-4, seed 1 0/100 ;>" in text
    assert "1 of 3 trials 75/200" in text
    assert "alpha 1e-4, seed 1 25/100 loss 0.7, 87.5% remain" in text
    assert "dense, seed 0: loss 0.25" in text


@pytest.mark.parametrize(("width", "shown"), [(80, "accuracy 25.0%, 60.0% remain"), (120, STANDING)])
def test_a_narrow_terminal_shows_what_fits(tmp_path, width, shown):
    bars = Bars(make_run(tmp_path / "run").manifest, Console(width=width, file=io.StringIO()))
    row = bars.rows.add_task("alpha 1e-5, seed 0", total=1500, completed=1234, standing=STANDING)
    task = bars.rows.tasks[bars.rows.task_ids.index(row)]
    assert str(bars.rows.columns[-1].render(task)) == shown


def test_events_are_lines_of_json():
    out = io.StringIO()
    emit = JsonLines(out)
    for event in STORY:
        emit(event)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert events[0]["event"] == "sweep_started"
    assert events[4] == {
        "event": "trial_step", "alpha": 1e-4, "seed": 1, "control": False,
        "step": 25, "steps": 100, "loss": 0.7, "remaining": 0.875, "score": None, "layers": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match="JSON"):
        to_json(TrialStep(DENSE, 1, 2, math.nan))


class Unsendable(Dataset):
    """Data that only this process can read."""

    def __init__(self):
        self.rows = lambda i: (TRAIN[0][i], TRAIN[1][i])

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.rows(index)


def test_workers_give_what_this_process_gives_and_say_when_they_cannot(tmp_path):
    options = {"alphas": [1e-3], "steps": 10}
    plans = [plan_sweep(mlp(), TRAIN, out=tmp_path / name, **options) for name in ("here", "workers")]
    here, there = run_plan(plans[0], engine=InProcessEngine()), run_plan(plans[1], engine=ProcessEngine(2))
    assert here.trials == there.trials
    assert here.frame.equals(there.frame)
    assert not plans[1].task.train_data.tensors[0].is_shared()  # numpy arrays may look at the caller's tensors
    heard = []
    record = run_sweep(mlp(), Unsendable(), out=tmp_path / "run", jobs=2, listener=heard.append, **options)
    assert record.complete
    assert [event.text for event in heard if isinstance(event, Notice) and "one training at a time" in event.text]


def test_data_that_cannot_travel_are_loaded_by_each_worker(tmp_path):
    (tmp_path / "m.py").write_text(
        "import torch\nfrom torch import nn\nfrom torch.utils.data import Dataset\n"
        "class Rows(Dataset):\n"
        "    def __init__(self):\n        self.rows = lambda i: (torch.full((4,), i / 64), i % 2)\n"
        "    def __len__(self):\n        return 64\n"
        "    def __getitem__(self, i):\n        return self.rows(i)\n"
        "def build_model():\n    return nn.Linear(4, 2)\n"
        "def train_data():\n    return Rows()\n"
    )
    heard, options = [], {"alphas": [1e-3], "steps": 6}
    here = run_sweep(tmp_path / "m.py", out=tmp_path / "here", **options)
    there = run_sweep(tmp_path / "m.py", out=tmp_path / "there", jobs=2, listener=heard.append, **options)
    assert [event.text for event in heard if isinstance(event, Notice) and "each worker loads its own" in event.text]
    assert here.trials == there.trials


ROWS = """
import torch
from torch import nn
from torch.utils.data import Dataset

class Rows(Dataset):
    def __init__(self):
        self.rows, self.much = torch.rand(64, 4, generator=torch.Generator().manual_seed(0)), bytes({bytes})
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return self.rows[i], int(self.rows[i].argmax())
{more}
def build_model():
    return nn.Linear(4, 4)

def train_data():
    return Rows()
"""
LOADER = """from torch.utils.data import DataLoader
    return DataLoader(Rows(), batch_size=16, shuffle=True, num_workers=2, persistent_workers={kept})"""
MADE_TO_BE_SENT = """
    def __getstate__(self):
        return [self.rows + 0 for _ in range(9)], self.much
    def __setstate__(self, state):
        (self.rows, *_), self.much = state
"""
UNREADABLE = """
    def __setstate__(self, state):
        raise RuntimeError("nobody reads this")
"""


@pytest.mark.parametrize("kept", [False, True])
def test_a_loader_may_have_workers_of_its_own(tmp_path, kept):
    loader = LOADER.format(kept=kept)
    (tmp_path / "m.py").write_text(ROWS.format(bytes=0, more="").replace("return Rows()", loader))
    heard, options = [], {"alphas": [1e-3], "steps": 6}
    there = run_sweep(tmp_path / "m.py", out=tmp_path / "there", jobs=2, listener=heard.append, **options)
    assert there.complete
    assert not [event for event in heard if isinstance(event, Notice)]
    assert there.trials == run_sweep(tmp_path / "m.py", out=tmp_path / "here", **options).trials


def test_a_loader_with_workers_that_cannot_travel_is_made_where_it_is_read(tmp_path):
    loader = LOADER.format(kept=True)
    rows = ROWS.format(bytes=0, more="").replace("bytes(0)", "lambda: 0").replace("return Rows()", loader)
    (tmp_path / "m.py").write_text(rows)
    heard, options = [], {"alphas": [1e-3], "steps": 6}
    there = run_sweep(tmp_path / "m.py", out=tmp_path / "there", jobs=2, listener=heard.append, **options)
    (said,) = [event.text for event in heard if isinstance(event, Notice)]  # once for all waves
    assert "each worker loads its own" in said
    assert there.trials == run_sweep(tmp_path / "m.py", out=tmp_path / "here", **options).trials


@pytest.mark.parametrize("more", ["", MADE_TO_BE_SENT])
def test_a_data_set_travels_with_tensors_that_live_no_longer_than_its_pickling(tmp_path, more):
    """Such as the state of the generator that shuffles it."""
    (tmp_path / "m.py").write_text(ROWS.format(bytes=0, more=more))
    heard, options = [], {"alphas": [1e-3], "steps": 6}
    there = run_sweep(tmp_path / "m.py", out=tmp_path / "there", jobs=2, listener=heard.append, **options)
    assert not [event for event in heard if isinstance(event, Notice)]
    assert there.trials == run_sweep(tmp_path / "m.py", out=tmp_path / "here", **options).trials


@pytest.mark.parametrize("size", [0, 10**7])
def test_a_worker_that_dies_over_its_task_is_told_of(tmp_path, size):
    """Before all of a large one has been sent, too."""
    (tmp_path / "m.py").write_text(ROWS.format(bytes=size, more=UNREADABLE))
    heard = []
    options = {"alphas": [1e-3], "steps": 6, "out": tmp_path / "run", "jobs": 2}
    assert run_sweep(tmp_path / "m.py", listener=heard.append, **options).complete
    assert [event.text for event in heard if isinstance(event, Notice) and "each worker loads its own" in event.text]


def test_what_a_file_brings_is_shared_with_workers_not_copied(tmp_path):
    (tmp_path / "m.py").write_text(FILE)
    plan = plan_sweep(tmp_path / "m.py", alphas=[1e-3], steps=2, out=tmp_path / "run")
    assert run_plan(plan, engine=ProcessEngine(2, plan.request)).complete
    assert plan.task.train_data.tensors[0].is_shared()


def test_threads_are_the_models_and_jobs_the_machines(monkeypatch):
    monkeypatch.setattr("dst_analyze.sweep.engines.resources.cores", lambda: 64)
    monkeypatch.setattr("torch.get_num_threads", lambda: 64)
    assert [threads_per_trial(int(macs), 64) for macs in (1e4, 1e7, 1e9)] == [1, 3, 8]
    assert default_jobs(8, job_count=4, params=1000) == 4
    assert default_jobs(8, job_count=40, params=1000) == 8
    assert default_jobs(1, job_count=4, params=10**13) == 1
    monkeypatch.setattr("dst_analyze.sweep.engines.resources.cores", lambda: 2)
    assert threads_per_trial(int(1e9), 64) == 1
    assert cores() >= 1


def test_a_failed_trial_has_an_empty_record():
    output = Trial(MASKED).failed("why", 1.0)
    assert output.result.status == "failed"
    assert list(output.readings.columns) == list(READING_COLUMNS)
    assert list(output.steps.columns) == list(STEP_COLUMNS)

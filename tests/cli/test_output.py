"""What reaches a terminal or a pipe, and what the exit code says when nothing does."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_folders import files_of, make_run
from small_sweeps import FILE

from dst_analyze.cli.main import main
from dst_analyze.cli.summary import summary
from dst_analyze.errors import DstError
from dst_analyze.pipeline import Outcome
from dst_analyze.ranking.load import rank_run
from dst_analyze.run.files.masks import pack_masks
from dst_analyze.run.files.paths import MASKS
from dst_analyze.slimming.artifacts import Suggestion
from dst_analyze.slimming.planning.plan_types import SlimPlan

PROGRAM = [sys.executable, "-m", "dst_analyze"]


@pytest.mark.parametrize("kind", ["csv", "json", "markdown", "table"])
def test_no_format_hands_control_characters_on(tmp_path, capsys, kind):
    make_run(tmp_path / "run", layers=("\x1b]0;evil\x07one", "two\u202e", "three"), seeds=2)
    assert main(["rank", str(tmp_path / "run"), "--format", kind]) == 0
    out = capsys.readouterr().out
    assert "three" in out
    assert not [c for c in out if not c.isprintable() and c != "\n"]


def test_the_next_command_can_be_typed(tmp_path, capsys):
    folder = tmp_path / "a run; rm -rf $HOME"
    record = make_run(folder, seeds=2)
    plan = SlimPlan(
        model="m", parameters={}, inputs=(), rule="density", asked={}, groups=(), frozen=(), params=2, new_params=1,
        macs=None, new_macs=None,
    )  # fmt: skip
    ranking, page = rank_run(record), folder / "report.html"
    rows = dict(summary(Outcome(record, ranking, Suggestion(plan, folder), None, page)))
    assert shlex.split(rows["next"]) == ["dst-analyze", "verify", str(folder)]
    rows = dict(summary(Outcome(record, ranking, DstError("none"), None, page)))
    assert shlex.split(rows["next"].partition(",")[0]) == ["dst-analyze", "inspect", "m.py"]


def shell(text, folder):
    line = text.replace("dst-analyze", shlex.join(PROGRAM)) + "; exit $?"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=folder, timeout=120)


@pytest.mark.parametrize("away", ["> /dev/full", ">&-", "| true; exit ${PIPESTATUS[0]}"])
def test_the_exit_code_says_whether_the_job_was_done(tmp_path, away):
    make_run(tmp_path / "run")
    done = shell(f"dst-analyze report run {away}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "run" / "report.html").exists()
    shown = shell(f"dst-analyze rank run {away}", tmp_path)  # to show it is all that this does
    assert shown.returncode == 1
    assert "error: the output cannot be written: " in shown.stderr
    assert "Traceback" not in shown.stderr


def test_errors_keep_their_code_where_nobody_hears_of_them(tmp_path):
    for away in ("2> /dev/full", "2>&-", "> /dev/full 2>&1"):
        assert shell(f"dst-analyze rank nowhere {away}", tmp_path).returncode == 2


SCARCE = """
import resource, sys
from dst_analyze.run.files.masks import read_masks
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 100_000_000,) * 2)
try:
    read_masks(sys.argv[1])
except BaseException as error:
    print(type(error).__name__)
"""


def test_low_memory_is_no_damaged_mask(tmp_path, monkeypatch, capsys):
    (tmp_path / MASKS).write_bytes(pack_masks({"fc": np.zeros((1 << 14, 1 << 14), bool)}))
    done = subprocess.run([sys.executable, "-c", SCARCE, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "MemoryError\n", done.stderr
    make_run(tmp_path / "run")

    def scarce(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr("dst_analyze.ranking.load.rank_layers", scarce)
    assert main(["rank", str(tmp_path / "run")]) == 1
    assert "error: memory ran short" in capsys.readouterr().err


def test_ranking_many_trials_parses_no_table_for_each(tmp_path, monkeypatch):
    record = make_run(tmp_path / "run", alphas=(1e-4, 1e-3, 1e-2), seeds=10)
    calls, read = [], pd.read_csv
    monkeypatch.setattr(pd, "read_csv", lambda *args, **how: calls.append(args) or read(*args, **how))
    assert main(["rank", str(tmp_path / "run")]) == 0
    assert len(record.trials) == 31
    assert len(calls) <= 4
    loads = "import sys, dst_analyze.ranking.load; sys.exit('scipy.stats' in sys.modules)"  # half a second
    assert subprocess.run([sys.executable, "-c", loads], timeout=60).returncode == 0


def test_the_same_job_leaves_the_same_bytes_but_times(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(FILE)
    job = ["m.py", "--alphas", "3e-3,1e-2", "--steps", "20", "--out", "run", "--quiet", "--jobs", "1", "--verify"]
    left = []
    for name in ("one", "two"):
        assert main([*job, "--verify-seeds", "1", "--target-params", "0.5", "--baselines", "magnitude"]) == 0
        assert {"latency.json", "verification.json", "baselines.json"} <= {path.name for path in Path("run").iterdir()}
        left.append(files_of(Path("run").rename(name)))
    assert left[0].keys() == left[1].keys()
    assert [name for name in left[0] if left[0][name] != left[1][name]] == []
    assert b"latency" not in left[0]["verification.json"]
    taken = json.loads(Path("two/latency.json").read_text())["milliseconds"]["dense"]
    assert f"<td>{taken:.3g}</td>" in Path("two/report.html").read_text()

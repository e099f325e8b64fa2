"""`make showcase`: the runs of reports/, what of them stands in git, and their README."""

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from small_sweeps import FILE

from dst_analyze.cli.main import main as dst_analyze

ROOT = Path(__file__).parents[2]


@pytest.fixture
def showcase(tmp_path, monkeypatch):
    """The script, with one tiny run; its commands run in this process."""
    spec = importlib.util.spec_from_file_location("showcase", ROOT / "experiments/showcase.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.py").write_text(FILE)
    monkeypatch.setattr(script, "RUNS", {"tiny": "m.py --alphas 3e-3,1e-2 --steps 20 --round-to 1 --jobs 1"})
    monkeypatch.setattr(script, "ALL_RUNS", "--verify --verify-seeds 1")
    called = []

    def call(words, root):
        called.append(words)
        assert dst_analyze([*words[1:]]) == 0

    monkeypatch.setattr(script, "call", call)
    return script, called


def test_a_run_is_made_pictured_and_told(showcase, tmp_path, inline):
    script, called = showcase
    script.main(["--root", str(tmp_path), "tiny"])
    run, text = tmp_path / "reports" / "tiny", (tmp_path / "reports" / "README.md").read_text()
    assert {path.name for path in run.iterdir()} >= set(script.KEPT)
    assert "<svg" in (run / "widths.svg").read_text()
    assert not (run / "figures").exists()
    command = "dst-analyze m.py --alphas 3e-3,1e-2 --steps 20 --round-to 1 --jobs 1 --verify --verify-seeds 1"
    assert f"{command} --out reports/tiny" in text
    assert "](tiny/report.html)" in text
    assert json.loads((run / "verdict.json").read_text())["answer"] in text
    count = len(called)
    script.main(["--root", str(tmp_path)])  # goes on where it was
    assert "--resume" in called[count]
    script.main(["--root", str(tmp_path), "--pages"])
    assert len(called) == count + 3  # the page and its picture only
    with pytest.raises(SystemExit):
        script.main(["nothing"])


def test_what_git_keeps_is_limited(showcase, tmp_path):
    script, _ = showcase
    run = tmp_path / "reports" / "tiny"
    run.mkdir(parents=True)
    for name in script.KEPT:
        (run / name).write_text("x" * 100)
    (run / "slim_model.safetensors").write_text("x" * 10_000_000)  # not kept
    assert script.check_size(tmp_path / "reports") == (len(script.KEPT), 100 * len(script.KEPT))
    (run / "report.html").write_text("x" * script.MOST_BYTES)
    with pytest.raises(SystemExit, match="too many"):
        script.check_size(tmp_path / "reports")


def test_git_ignores_all_but_what_is_kept(showcase):
    script, _ = showcase
    names = [*script.KEPT, "trials", "SHA256SUMS", "verified", "slim_model.safetensors", "manifest.json"]
    paths = [f"reports/new-net/{name}" for name in names]
    if not (ROOT / ".git").exists():
        pytest.skip("no clone")
    said = subprocess.run(["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True)
    assert said.stdout.split() == [f"reports/new-net/{name}" for name in names[len(script.KEPT) :]]

"""A part of `make torture`: a job on a disk that fails ends in an error, and the same command then ends it well."""

import json
import os
import random
import shutil
import threading
from contextlib import ExitStack, chdir

import pytest
from faulty_disk import FAULTS, FaultyDisk, run_apart
from torture import JOBS, WHOLE, Bench, files_of, patches

from dst_analyze import Verification, read_run
from dst_analyze.cli.main import main
from dst_analyze.errors import FolderError
from dst_analyze.report.page import left_out, render
from dst_analyze.run.files.atomic_io import replace_files
from dst_analyze.run.files.lock import locked
from dst_analyze.run.files.paths import DERIVED, EXPORTED, REPORT, SLIM_CALL
from dst_analyze.slimming.kept import read_plan, read_suggestion
from dst_analyze.slimming.proof.verify import verify_task_plan

SUMMED = [name for name in DERIVED if name not in (*EXPORTED, SLIM_CALL, REPORT)]
FEW = {"sweep": 2, "slim": 4, "verify": 2, "report": 3}
"""How many operations of each job fail here; `make torture` takes all."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with ExitStack() as stack:
        for each in patches():
            stack.enter_context(each)
        made = Bench(tmp_path_factory.mktemp("bench").resolve())
        made.prepare()
        yield made


@pytest.mark.parametrize("job", JOBS)
def test_a_disk_that_fails_costs_nothing_that_was_finished(bench, job):
    count, rng = len(bench.operations(job)), random.Random(os.environ.get("DST_KILL_SEED", job))
    assert count > 20
    for number, at in enumerate(sorted(rng.sample(range(count), FEW[job]))):
        fault = FAULTS[number % len(FAULTS)]
        assert bench.fault(job, fault, at) == "", (fault, at)


@pytest.mark.parametrize(
    ("name", "how"),
    [("plan.json", "cut"), ("slim_model.py", "cut"), ("manifest.json", "gone"), ("SHA256SUMS", "cut"),
     ("verification.json", "gone"), ("baselines.json", "flip"), ("groups.csv", "cut")],
)  # fmt: skip
def test_a_damaged_file_is_made_again(bench, name, how):
    assert bench.damage(name, how, random.Random(name)) == ""


def test_what_is_made_again_is_said_and_trials_are_left_alone(bench, capsys):
    run = bench.restore("after-sweep")
    before = {file: file.stat().st_mtime_ns for file in run.glob("trials/*/*")}
    (run / "slim_model.py").write_text((run / "slim_model.py").read_text()[:100])
    (run / "manifest.json").unlink()
    with chdir(bench.home):
        for name in (["rank", "run"], ["report", "run"], [*WHOLE]):
            assert main(name) == 2
            said = capsys.readouterr().err
            assert "manifest.json" in said
            assert "--resume" in said
            assert "--force" not in said
        assert main([*(arg for arg in JOBS["sweep"] if arg != "--quiet"), "--json"]) == 0
    told = [
        event["text"] for event in map(json.loads, capsys.readouterr().out.splitlines()) if event["event"] == "notice"
    ]
    assert any("manifest.json written again; whole trials are kept" in text for text in told)
    assert any("slim_model.py differs from its checksum: it is made again" in text for text in told)
    assert {file: file.stat().st_mtime_ns for file in run.glob("trials/*/*")} == before


@pytest.mark.parametrize("name", [*SUMMED, "baselines.json", "groups.csv"])
def test_a_flip_in_any_file_is_noticed(bench, name):
    run = bench.restore("after-sweep")
    data = bytearray((run / name).read_bytes())
    for at in {0, len(data) // 3, len(data) - 2}:
        flipped = bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]])
        (run / name).write_bytes(flipped)
        assert bench.noticed(run, name), at


def test_a_proof_of_another_plan_and_a_plan_of_another_sweep_are_said_and_not_shown(bench):
    run = bench.restore("after-sweep")
    record = read_run(run)
    plan, proof = read_suggestion(record).plan, read_suggestion(record).proof
    assert plan.sweep == record.sha256
    assert proof.plan == plan.sha256
    replace_files(run, {"plan.json": plan.model_copy(update={"notes": ("another",)}).as_bytes()})
    kept = read_suggestion(record)
    assert kept.plan.notes == ("another",)
    assert kept.proof is None
    assert kept.problems == ("verification.json proves another plan than plan.json",)
    assert "proves another plan than plan.json; the command" in " ".join(left_out(record, kept))
    replace_files(run, {"plan.json": plan.model_copy(update={"sweep": "0" * 64}).as_bytes()})
    kept = read_suggestion(record)
    assert (kept.plan, kept.proof) == (None, None)
    assert kept.problems == ("plan.json is of another sweep than the one in this folder",)
    with pytest.raises(FolderError, match="of another sweep"):
        read_plan(record)


def test_a_score_that_was_changed_is_not_believed(bench):
    run = bench.restore("before-verify")
    bench.do(JOBS["verify"])
    wanted = files_of(run)
    score = Verification.load(run).entry("slim").scores[0]
    kept = {file: json.loads(file.read_text()) for file in (run / "verified").glob("slim-*,seed=0.json")}  # by widths
    file = next(file for file, found in kept.items() if found["score"] == score)
    file.write_text(json.dumps(kept[file] | {"score": 0.99}))
    assert bench.do(JOBS["verify"]) == 0
    assert files_of(run) == wanted


def test_a_folder_is_locked_from_the_first_trial_to_the_report(bench, monkeypatch):
    """While the proof is trained, no other process may start over, slim or report; anybody may read."""
    bench.restore("before-sweep")
    codes, said = {}, {}

    def others(*args, **options):
        if not codes:
            for name, command in {
                "force": [*WHOLE, "--force"], "slim": JOBS["slim"], "verify": JOBS["verify"], "report": JOBS["report"],
                "rank": ["rank", "run"],
            }.items():  # fmt: skip
                log = bench.home / "log"
                codes[name] = run_apart(lambda command=command: main(command), FaultyDisk("/nowhere"), log)
                said[name] = log.read_text()
        return verify_task_plan(*args, **options)

    monkeypatch.setattr("dst_analyze.slimming.proving.verify_task_plan", others)
    assert bench.do(JOBS["sweep"]) == 0
    assert codes == {"force": 2, "slim": 2, "verify": 2, "report": 2, "rank": 0}
    for name in ("force", "slim", "verify", "report"):
        assert f"this run folder is being written by process {os.getpid()}" in said[name]
    assert bench.differs(bench.home / "run", "after-sweep") == ""


def test_commands_that_write_wait_for_nobody_and_say_so(bench, capsys):
    run = bench.restore("after-verify")
    held, done = threading.Event(), threading.Event()

    def hold():
        with locked(run):
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        with chdir(bench.home):
            for job in ("slim", "verify", "report"):
                assert main(JOBS[job]) == 2
                assert "being written by process" in capsys.readouterr().err
    finally:
        done.set()
        holder.join()


def test_the_source_is_written_like_every_file(bench):
    """No link is followed, no scraps of a killed process stay, and all files have one mode."""
    run = bench.restore("before-slim")
    mine = bench.home / "mine.py"
    mine.write_text("mine")
    (run / "slim_model.py").unlink()
    (run / "slim_model.py").symlink_to(mine)
    (run / ".plan.json.1.dst-partial").write_text("half")
    (run / "verified" / ".set.1.dst-partial").mkdir()
    assert bench.do(JOBS["slim"]) == 0
    assert mine.read_text() == "mine"
    assert bench.differs(run, "after-slim") == ""
    assert not list(run.rglob("*.dst-*"))


def test_a_set_that_was_committed_is_read_though_it_was_not_moved(bench):
    """As a process that was killed right then leaves it: the new plan, and no proof of the old one."""
    run = bench.restore("before-slim")
    operations = bench.operations("slim")
    commit = next(at for at, name in enumerate(operations) if name.startswith("rename .set"))
    bench.restore("before-slim")
    run_apart(lambda: bench._apart("slim"), FaultyDisk(str(run), "kill", commit), bench.home / "log")
    assert (run / ".commit").is_dir()
    assert (run / "verification.json").exists()
    record = read_run(run)
    kept = read_suggestion(record)
    assert kept.plan == read_suggestion(read_run(bench.home / "after-slim")).plan
    assert kept.proof is None
    assert kept.problems == ()


def test_a_folder_without_sums_of_what_was_derived_is_read(bench):
    run = bench.restore("after-sweep")
    shutil.rmtree(run)
    shutil.copytree(bench.home / "after-sweep", run)
    manifest = json.loads((run / "manifest.json").read_text())
    del manifest["sums"]
    head = ("config.json", "layers.csv", "graph.json", "inputs.json")
    (run / "SHA256SUMS").unlink()
    old = {name: (run / name).read_bytes() for name in head}
    replace_files(run, {**old, "manifest.json": json.dumps(manifest).encode()})
    for name in ("plan.json", "verification.json"):
        value = json.loads((run / name).read_text())
        del value["sweep" if name == "plan.json" else "plan"]
        (run / name).write_text(json.dumps(value))
    record = read_run(run)
    kept = read_suggestion(record)
    assert kept.plan is not None
    assert kept.proof is not None
    assert left_out(record, kept) == []
    assert render(record)
    (run / "verification.json").write_text((run / "verification.json").read_text()[:100])
    assert bench.do(JOBS["report"]) == 2
    at = JOBS["sweep"].index("--verify")
    assert bench.do([*JOBS["sweep"][:at], "--resume"]) == 0
    assert read_suggestion(record).proof == kept.proof.model_copy(update={"plan": kept.plan.sha256})


def test_a_plan_made_again_as_it_was_keeps_its_proof_without_training(bench, monkeypatch):
    run = bench.restore("after-sweep")
    (run / "plan.json").unlink()
    proof = (run / "verification.json").stat().st_mtime_ns
    at = JOBS["sweep"].index("--verify")
    assert bench.do([*JOBS["sweep"][:at], "--resume"]) == 0
    assert (run / "verification.json").stat().st_mtime_ns == proof
    assert bench.differs(run, "after-sweep") == ""


def test_the_page_says_what_it_leaves_out(bench):
    run = bench.restore("after-sweep")
    record = read_run(run)
    assert "proof" in render(record)
    (run / "verification.json").write_bytes((run / "verification.json").read_bytes().replace(b"0.", b"1.", 1))
    page = render(record)
    assert "<strong>Left out.</strong> verification.json differs from its checksum; the command that made" in page

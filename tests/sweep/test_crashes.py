"""Real kills of real processes: a resumed sweep ends with the results of an undisturbed one."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from crashing import ARGS, events_until, finish, finish_apart, gone, killing, members, start, trials_of, write
from run_folders import files_of

from dst_analyze.errors import FolderError
from dst_analyze.run.files.lock import locked
from dst_analyze.sweep.engines.forkserver import defer_sigint

ROOT = Path(__file__).parents[2]


def assert_part_of(files, whole):
    """Whatever files are there are as they must be; their checksums are a part of all."""
    sums = set(files.pop("SHA256SUMS").splitlines())
    assert sums <= set(whole["SHA256SUMS"].splitlines())
    assert files.items() <= whole.items()


def test_ctrl_c_is_deferred_in_critical_sections():
    """Though another thread takes the signal, as one of torch's or of the progress bar's may."""
    ended, done = threading.Event(), []

    def must_be_whole():
        with defer_sigint():
            signal.pthread_kill(another.ident, signal.SIGINT)
            time.sleep(0.05)
            done.append("the whole of it")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    another = threading.Thread(target=ended.wait)
    another.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            must_be_whole()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        ended.set()
        another.join()
    assert done == ["the whole of it"]


STARTS_A_WORKER = """
import os, sys
from multiprocessing import forkserver
from dst_analyze.sweep.engines.forkserver import context, restore_environment, start_forkserver

def settings():
    return "/".join(os.environ.get(name, "") for name in ("PYTHONSAFEPATH", "GOMP_SPINCOUNT"))

def show():
    inherited = settings()
    restore_environment()
    print(sys.modules["dst_analyze.errors"].__file__, inherited, settings())

if __name__ == "__main__":
    real = forkserver.set_forkserver_preload
    forkserver.set_forkserver_preload = lambda modules: real(["dst_analyze.errors"])  # torch takes seconds
    start_forkserver()
    worker = context().Process(target=show)
    worker.start()
    worker.join()
    print(settings())
"""


def test_workers_import_nothing_from_the_current_folder(tmp_path):
    """It may hold a module of the user's with the name of one of ours, or of torch's."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "run.py").write_text(STARTS_A_WORKER)
    (tmp_path / "dst_analyze").mkdir()
    (tmp_path / "dst_analyze" / "__init__.py").write_text("raise RuntimeError('not this one')")
    done = start_a_worker(tmp_path)
    assert done.stdout.split() == [str(ROOT / "dst_analyze" / "errors.py"), "1/5000", "/", "/"], done.stderr


def start_a_worker(folder, **settings):
    """Run `STARTS_A_WORKER`; return what its worker had in its environment, and what was left of it."""
    others = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "GOMP_SPINCOUNT")}
    environment = others | {"PYTHONPATH": str(ROOT)} | settings
    return subprocess.run([sys.executable, "bin/run.py"], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_users_own_threads_settings_stay(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "run.py").write_text(STARTS_A_WORKER)
    done = start_a_worker(tmp_path, GOMP_SPINCOUNT="7")
    assert done.stdout.split()[1:] == ["1/7", "/7", "/7"], done.stderr


def test_two_jobs_give_the_same_bytes_as_one(tmp_path, whole):
    write(tmp_path)
    events = finish_apart(tmp_path, *ARGS, "--jobs", "2")
    assert events[0]["jobs"] == 2
    assert [event["event"] for event in events].count("trial_finished") == 5
    assert [event["event"] for event in events[-3:]] == ["sweep_finished", "suggestion_written", "report_written"]
    assert files_of(tmp_path / "run") == whole
    assert {name.rpartition("/")[2] for name in whole} == {
        "config.json", "manifest.json", "layers.csv", "graph.json", "inputs.json", "SHA256SUMS", "table.csv",
        "trials.csv", "groups.csv", "run.toml", "trial.json", "record.csv", "steps.csv", "masks.safetensors",
        "plan.json", "changes.csv", "widths.csv", "torch_pruning.json", "slim_model.py", "slim_model.safetensors",
        "verdict.json", "summary.md", "slim_model.patch",
    }  # fmt: skip


def test_killed_at_random_moments_it_ends_as_if_undisturbed(tmp_path, whole):
    write(tmp_path)
    rng = random.Random(os.environ.get("DST_KILL_SEED", "kills"))
    kills = 0
    for _ in range(4):
        process = start(tmp_path, *ARGS, "--resume", "--jobs", str(rng.choice([1, 2])))
        left = rng.randrange(60)

        def countdown(event):
            nonlocal left
            left -= 1
            return left < 0

        events_until(process, countdown)
        time.sleep(rng.random() * 0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kills += process.returncode == -signal.SIGKILL
        assert gone(process.pid, 5)
    assert kills >= 3
    finish(tmp_path, *ARGS, "--resume")
    assert files_of(tmp_path / "run") == whole
    assert not list((tmp_path / "run").rglob("*.dst-*"))


def test_a_search_that_is_killed_finds_what_it_would_have_found(tmp_path, warm):
    searching = ("--target-remaining", "0.6,0.2", "--steps", "60", "--lr", "0.1")
    for folder in ("whole", "killed"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder)
    events, _ = finish(tmp_path / "whole", *searching, "--jobs", "2")
    assert [event for event in events if event["event"] == "sweep_extended"]
    process = start(tmp_path / "killed", *searching, "--jobs", "2")
    events_until(process, lambda event: event["event"] == "sweep_extended")  # in the middle of the search
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert gone(process.pid, 5)
    _, said = finish(tmp_path / "killed", *searching, code=2)
    assert "or more trials are missing" in said
    finish(tmp_path / "killed", *searching, "--resume", "--jobs", "2")
    assert files_of(tmp_path / "killed" / "run") == files_of(tmp_path / "whole" / "run")


def test_workers_die_with_a_parent_that_is_killed_alone_and_its_lock_is_free(tmp_path, whole):
    write(tmp_path, "time.sleep(0.05)")
    process = start(tmp_path, *ARGS, "--jobs", "2")
    events_until(process, lambda event: event["event"] == "trial_step")
    owner = json.loads((tmp_path / "run" / ".owner.json").read_text())
    assert owner["pid"] == process.pid
    with pytest.raises(FolderError) as error, locked(tmp_path / "run"):
        pass
    assert f"written by process {process.pid} on {owner['host']}, since {owner['since']}" in error.value.cause
    assert len(members(process.pid)) > 2
    process.kill()
    process.communicate()
    assert gone(process.pid, 5)
    with locked(tmp_path / "run"):  # a dead owner's lock is free
        pass


def test_ctrl_c_keeps_what_was_finished(tmp_path, whole):
    write(tmp_path)
    process = start(tmp_path, *ARGS, "--jobs", "2")
    finished = events_until(process, lambda event: event["event"] == "trial_finished")
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.rstrip().endswith("interrupted")
    assert "Traceback" not in err
    assert gone(process.pid, 1)
    name = f"{'dense' if finished['alpha'] is None else 'alpha=' + repr(finished['alpha'])},seed={finished['seed']}"
    kept = files_of(tmp_path / "run")
    assert f"trials/{name}/trial.json" in kept
    assert_part_of(kept, whole)


def test_a_killed_worker_is_tried_once_more(tmp_path, whole):
    write(tmp_path, killing("run_trial", 1))
    events, _ = finish(tmp_path, *ARGS, "--jobs", "1")
    retried = [event for event in events if event["event"] == "trial_retried"]
    assert [(event["alpha"], event["seed"]) for event in retried] == [(1e-3, 1)]
    assert "SIGKILL" in retried[0]["reason"]
    assert trials_of(files_of(tmp_path / "run"), 1) == trials_of(whole, 1)


def test_a_trial_whose_worker_keeps_dying_is_left_out_and_the_others_are_untouched(tmp_path, whole):
    write(tmp_path, killing("run_trial", 2))
    events, _ = finish(tmp_path, *ARGS, "--jobs", "2", code=1)
    (failed,) = [event for event in events if event["event"] == "trial_failed"]
    assert failed["status"] == "failed"
    assert "killed by SIGKILL, 2 times" in failed["reason"]
    after = files_of(tmp_path / "run")
    assert trials_of(after, 0) == trials_of(whole, 0)
    assert "Failed" in (tmp_path / "run" / "report.html").read_text()
    result = json.loads(after[f"trials/alpha={failed['alpha']!r},seed=1/trial.json"])
    assert result["status"] == "failed"
    events, _ = finish(tmp_path, *ARGS, "--retry-failed")
    assert events[0]["done"] == 4
    assert trials_of(files_of(tmp_path / "run"), 1) == trials_of(whole, 1)


@pytest.mark.parametrize("times", [1, 2])
def test_a_warm_up_whose_worker_is_killed_costs_time_only(tmp_path, whole, times):
    """It is tried once more; if that fails, too, each trial trains its own, to the same bytes."""
    write(tmp_path, killing("train_warm_up", times))
    events, _ = finish(tmp_path, *ARGS, "--jobs", "2")
    assert any("the warm-up of seed 1 starts again" in event.get("text", "") for event in events)
    assert files_of(tmp_path / "run").items() >= trials_of(whole, 1).items()


STRANGE = """if torch.initial_seed() == 1 and outputs.requires_grad:
    raise KeyError('the users own')
if torch.initial_seed() == 2 and outputs.requires_grad:
    return outputs.sum() * float('nan')"""


def test_trials_that_raise_or_diverge_are_left_out(tmp_path, whole):
    write(tmp_path, STRANGE)
    events, _ = finish(tmp_path, *ARGS, "--seeds", "3", code=1)
    failed = {seed: [e for e in events if e["event"] == "trial_failed" and e["seed"] == seed] for seed in (0, 1, 2)}
    assert [event["status"] for event in failed[1]] == ["failed"] * 2
    assert all("the users own" in event["reason"] and "m.py:" in event["reason"] for event in failed[1])
    assert [event["status"] for event in failed[2]] == ["diverged"] * 2
    assert not failed[0]
    assert trials_of(files_of(tmp_path / "run"), 0) == trials_of(whole, 0)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 kB, mounted for real."""
    disk = tmp_path / "run"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_leaves_no_half(tmp_path, whole, small_disk):
    write(tmp_path)
    events, err = finish(tmp_path, *ARGS, "--jobs", "1", code=2)
    assert "No space left on device" in err
    assert "hint: make room, then --resume" in err
    done = [event for event in events if event["event"] == "trial_finished"]
    assert len(list((small_disk / "trials").iterdir())) == len(done) > 0
    assert not list(small_disk.rglob("*.dst-*"))
    assert_part_of(files_of(small_disk), whole)
    subprocess.run(["mount", "-o", "remount,size=10m", str(small_disk)], check=True)
    finish(tmp_path, *ARGS, "--resume")
    assert files_of(small_disk) == whole


def test_a_read_only_folder_is_refused_before_training(tmp_path, warm, small_disk):
    write(tmp_path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    events, err = finish(tmp_path, *ARGS, code=2)
    assert events == []
    assert "cannot be written to: Read-only file system" in err

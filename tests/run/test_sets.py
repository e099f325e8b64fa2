"""Files that belong together: replaced as one set, whatever happens, and never through a link."""

import os
import threading

import pytest
from faulty_disk import KILLED, FaultyDisk, run_apart
from run_folders import files_of

from dst_analyze.errors import FolderError
from dst_analyze.run.derived import read_together
from dst_analyze.run.files.atomic_io import SUMS, broken, finish_commit, listed_sums, remove_leftovers, replace_files
from dst_analyze.run.files.safe_read import COMMIT, is_there, read_bytes

OLD = {"plan.json": b"the old plan", "proof.json": b"of the old plan", "kept.csv": b"kept"}
NEW = {"plan.json": b"the new plan", "source.py": b"of the new plan"}


def seen(folder):
    """What a reader sees, in the middle of whatever was left there."""
    return {name: read_bytes(folder / name, 1000) for name in {*OLD, *NEW} if is_there(folder / name)}


def replace(folder):
    replace_files(folder, NEW, removed=["proof.json"], unsummed={"page.html": b"a page"})


def test_a_set_replaces_and_removes_and_its_sums_follow(tmp_path):
    replace_files(tmp_path, OLD)
    replace(tmp_path)
    assert seen(tmp_path) == {**NEW, "kept.csv": b"kept"}
    assert (tmp_path / "page.html").read_bytes() == b"a page"
    assert sorted(listed_sums(tmp_path)) == ["kept.csv", "plan.json", "source.py"]
    assert not broken(tmp_path)
    (tmp_path / "plan.json").write_bytes(b"the new plam")
    assert broken(tmp_path) == "plan.json differs from its checksum"
    assert not broken(tmp_path, only="source.py")
    assert not broken(tmp_path, but=["plan.json"])


def count_operations(folder, log):
    replace_files(folder, OLD)
    assert run_apart(lambda: replace(folder) or 0, FaultyDisk(str(folder)), log) == 0
    return len(log.with_suffix(".ops").read_text().splitlines())


@pytest.mark.parametrize("faults", [("ENOSPC", "EIO"), ("kill",)])
def test_every_operation_may_fail_or_be_the_last(tmp_path, faults):
    (tmp_path / "whole").mkdir()
    count = count_operations(tmp_path / "whole", tmp_path / "log")
    assert count > 20
    both = []
    for at in range(count):
        folder = tmp_path / str(at)
        folder.mkdir()
        replace_files(folder, OLD)
        disk = FaultyDisk(str(folder), faults[at % len(faults)], at)
        code = run_apart(lambda folder=folder: replace(folder) or 0, disk, tmp_path / "log")
        assert (code == KILLED) == (faults == ("kill",))
        assert seen(folder) in (OLD, {**NEW, "kept.csv": b"kept"})
        both.append(seen(folder) == OLD)
        assert set(listed_sums(folder)) == set(seen(folder))
        replace(folder)
        remove_leftovers(folder)
        assert files_of(folder) == files_of(tmp_path / "whole")
    assert any(both)
    assert not all(both)


def test_a_set_replaces_a_link_and_leaves_its_target_alone(tmp_path):
    target = tmp_path / "mine.py"
    target.write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / "source.py").symlink_to(target)
    replace(run)
    assert target.read_text() == "mine"
    assert (run / "source.py").read_bytes() == NEW["source.py"]
    assert not (run / "source.py").is_symlink()
    assert len({(run / name).stat().st_mode for name in (*NEW, SUMS)}) == 1


def test_a_committed_set_of_a_stranger_is_not_followed_elsewhere(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    run.mkdir()
    other.mkdir()
    (other / "plan.json").write_text("mine")
    (run / COMMIT).symlink_to(other)
    finish_commit(run)
    assert (other / "plan.json").exists()
    assert not is_there(run / "plan.json")
    (run / COMMIT).unlink()
    (run / COMMIT).mkdir()
    (run / COMMIT / "removed").write_text("../other/plan.json\n/etc/passwd")
    os.symlink(other / "plan.json", run / COMMIT / "plan.json")
    with pytest.raises(OSError, match="links are not followed"):
        read_bytes(run / "plan.json", 1000)
    finish_commit(run)
    assert (other / "plan.json").read_text() == "mine"
    assert not (run / COMMIT).exists()


def test_what_cannot_be_written_names_the_file(tmp_path):
    with pytest.raises(FolderError, match=r"cannot write plan\.json: No such file"):
        replace(tmp_path / "nowhere")


def test_a_reader_never_sees_half_of_a_set(tmp_path):
    """Without a lock, while another process replaces the set again and again."""

    def write():
        for number in range(30):
            text = str(number).encode()
            replace_files(tmp_path, {"plan.json": text, **({} if number % 2 else {"proof.json": text})}, ["proof.json"])

    def pair():
        return [read_bytes(tmp_path / name, 100) if is_there(tmp_path / name) else b"" for name in OLD][:2]

    def read():
        try:
            return pair()
        except OSError as error:
            raise FolderError(str(error)) from error

    replace_files(tmp_path, {"plan.json": b"1"})
    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(read_together(tmp_path, read))
    writer.join()
    assert len(seen) > 5
    for plan, proof in seen:
        assert proof == (b"" if int(plan) % 2 else plan)

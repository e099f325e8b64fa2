"""The run folder: written whole or not at all, never over something else, and checked when it is read."""

import json
import os
import resource
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from run_folders import STRANGE_NAMES, files_of, make_run

from dst_analyze import read_run
from dst_analyze.errors import FolderError, OptionError
from dst_analyze.ranking.formats.table import export_table
from dst_analyze.ranking.rank import rank_layers
from dst_analyze.run.caveats import notes_of
from dst_analyze.run.config import SweepConfig
from dst_analyze.run.events import Notice
from dst_analyze.run.files.atomic_io import SUMS, sums_of, write_bytes, write_folder
from dst_analyze.run.files.lock import locked
from dst_analyze.run.files.masks import pack_masks, read_masks
from dst_analyze.run.files.paths import default_path
from dst_analyze.run.record import READING_COLUMNS, TrialKey, alpha_label, last_quarter


def test_what_is_written_is_read(tmp_path):
    record = make_run(tmp_path / "run", seeds=2)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        ".lock",
        "SHA256SUMS",
        "config.json",
        "layers.csv",
        "manifest.json",
        "trials",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert [t.key.name for t in record.trials] == [
        "dense,seed=0",
        *(f"alpha={alpha},seed={seed}" for alpha in record.alphas for seed in (0, 1)),
    ]
    assert list(record.frame.columns) == ["alpha", "seed", "control", *READING_COLUMNS]
    assert len(record.frame) == 2 * 2 * 4 * 2
    assert record.complete
    assert record.seconds == 5 * 1.5
    assert notes_of(record) == []


def test_a_trials_folder_tells_its_alpha_and_seed(tmp_path):
    make_run(tmp_path / "run", alphas=(1e-5,))
    assert sorted(p.name for p in (tmp_path / "run" / "trials").iterdir()) == ["alpha=1e-05,seed=0", "dense,seed=0"]
    assert TrialKey(1e-5, 0).name != TrialKey(1.00000001e-5, 0).name


def test_layer_names_survive_whatever_they_are(tmp_path):
    record = make_run(tmp_path / "run", layers=STRANGE_NAMES)
    assert list(record.layers["layer"]) == STRANGE_NAMES
    assert list(rank_layers(record).remaining().index) == STRANGE_NAMES
    assert rank_layers(record).remaining().notna().all(axis=None)
    assert "'=1+1" in list(export_table(record, rank_layers(record))["layer"])


def test_the_table_is_a_median_over_the_last_quarter(tmp_path):
    table = rank_layers(make_run(tmp_path / "run", seeds=2)).remaining()
    assert list(table.columns) == [1e-4, 1e-3]
    assert table.loc["conv1", 1e-4] == pytest.approx(0.5)
    assert table.loc["fc", 1e-3] == pytest.approx(0.5 / 3)


def test_late_looks_at_each_trial_by_itself():
    frame = pd.DataFrame({"alpha": [1, 1, 2, 2], "seed": 0, "step": [10, 20, 100, 200], "remaining": 1.0})
    assert list(last_quarter(frame)["step"]) == [20, 200]


def test_diverged_trials_are_left_out_and_named(tmp_path):
    record = make_run(tmp_path / "run", diverged=(1e-3,))
    assert not record.complete
    assert set(record.frame["alpha"]) == {1e-4}
    assert rank_layers(record).remaining()[1e-3].isna().all()
    assert [note.title for note in notes_of(record)] == ["Diverged"]
    everything = make_run(tmp_path / "all", diverged=(1e-4, 1e-3))
    assert rank_layers(everything).remaining().isna().all(axis=None)


def test_notes_say_what_numbers_do_not(tmp_path):
    record = make_run(tmp_path / "run", stand_in=True, resets={"fc": 3})
    assert [note.title for note in notes_of(record)] == ["Stand-in data", "Resets"]
    assert "6 times" in notes_of(record)[1].text


def test_a_complete_run_is_read_and_not_repeated(tmp_path):
    first = make_run(tmp_path / "run")
    before = files_of(tmp_path / "run", timings=True)
    for existing in ("refuse", "resume", "retry"):
        again = make_run(tmp_path / "run", existing=existing)
        assert again.trials == first.trials
    assert files_of(tmp_path / "run", timings=True) == before


def test_another_configuration_is_refused_with_the_difference(tmp_path):
    make_run(tmp_path / "run")
    before = files_of(tmp_path / "run", timings=True)
    for existing in ("refuse", "resume", "retry"):
        with pytest.raises(FolderError, match=r"another run") as error:
            make_run(tmp_path / "run", seeds=2, lr=0.1, existing=existing)
        assert "\n    seeds: [0] -> [0, 1]\n    lr: None -> 0.1" in error.value.cause
        with pytest.raises(FolderError, match=r"data\.sha256: '0' -> '1'"):
            make_run(tmp_path / "run", sha256="1", existing=existing)
    assert files_of(tmp_path / "run", timings=True) == before
    assert len(make_run(tmp_path / "run", seeds=2, existing="force").config.seeds) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_resume_finishes_what_is_missing(tmp_path):
    make_run(tmp_path / "whole")
    make_run(tmp_path / "run", only=0)
    make_run(tmp_path / "run", only=1)  # nothing was there yet: no --resume needed
    with pytest.raises(FolderError, match="in part: 2 of 3 trials are missing") as error:
        make_run(tmp_path / "run")
    assert "--resume" in error.value.hint
    with pytest.raises(FolderError, match="not complete: 2 of 3"):
        read_run(tmp_path / "run")
    stamp = (tmp_path / "run" / "trials" / "dense,seed=0" / "trial.json").stat()
    make_run(tmp_path / "run", existing="resume")
    assert (tmp_path / "run" / "trials" / "dense,seed=0" / "trial.json").stat() == stamp
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")


def test_retry_runs_failures_again_and_resume_leaves_them(tmp_path):
    make_run(tmp_path / "run", diverged=(1e-3,))
    assert not make_run(tmp_path / "run", existing="resume").complete
    assert make_run(tmp_path / "run", existing="retry").complete


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


DAMAGE = {
    "flipped": flip,
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "emptied": lambda file: file.write_bytes(b""),
    "gone": lambda file: file.unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["trial.json", "record.csv", "masks.safetensors", "SHA256SUMS"])
def test_a_damaged_trial_is_named_and_run_again(tmp_path, name, damage):
    run = tmp_path / "run"
    make_run(run)
    before = files_of(run)
    DAMAGE[damage](run / "trials" / "alpha=0.0001,seed=0" / name)
    for use in (lambda: read_run(run), lambda: make_run(run)):
        with pytest.raises(FolderError, match=r"alpha 1e-4, seed 0 cannot be used: \S+ (differs|is|cannot)") as error:
            use()
        assert "--resume" in error.value.hint
    heard = []
    make_run(run, existing="resume", notices=heard.append)
    assert [type(event) for event in heard] == [Notice]
    assert "alpha 1e-4, seed 0" in heard[0].text
    assert files_of(run) == before


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["config.json", "layers.csv"])
def test_a_damaged_head_is_named_and_written_again(tmp_path, name, damage):
    run = tmp_path / "run"
    make_run(run)
    before = files_of(run)
    DAMAGE[damage](run / name)
    with pytest.raises(FolderError, match=name):
        read_run(run)
    with pytest.raises(FolderError, match=r"cannot be continued|cannot be used"):
        make_run(run, existing="resume", lr=0.2)
    make_run(run, existing="resume")
    assert files_of(run) == before


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS", "config.json", "layers.csv"])
def test_a_damaged_head_is_written_again_beside_whole_trials(tmp_path, name, damage):
    run = tmp_path / "run"
    make_run(run)
    before = files_of(run, timings=True)
    stamps = {file: file.stat().st_mtime_ns for file in run.glob("trials/*/*")}
    DAMAGE[damage](run / name)
    for use in (lambda: read_run(run), lambda: make_run(run)):
        with pytest.raises(FolderError) as error:
            use()
        assert "--resume" in error.value.hint
        assert "--force" not in error.value.hint
    heard = []
    make_run(run, existing="resume", notices=heard.append)
    assert "written again; whole trials are kept" in heard[0].text
    assert files_of(run, timings=True) == before
    assert {file: file.stat().st_mtime_ns for file in run.glob("trials/*/*")} == stamps


@pytest.mark.parametrize("name", ["manifest.json", "config.json"])
def test_a_damaged_head_is_not_replaced_by_another(tmp_path, name):
    run = tmp_path / "run"
    make_run(run)
    (run / name).write_text((run / name).read_text()[:40])
    before = files_of(run)
    for other in ({"sha256": "1"}, {"lr": 0.1}):
        with pytest.raises(FolderError, match="cannot be continued") as error:
            make_run(run, existing="resume", **other)
        assert "--force" not in error.value.hint
        assert files_of(run) == before


@pytest.mark.parametrize("existing", ["refuse", "resume", "force"])
def test_other_peoples_files_are_left_alone(tmp_path, existing):
    home = tmp_path / "home"
    home.mkdir()
    (home / "manifest.json").write_text('{"name": "my web page"}')
    file = tmp_path / "file"
    file.write_text("text")
    lone = tmp_path / "lone"
    lone.mkdir()
    (lone / "config.json").write_text("{}")
    for path in (home, file, lone):
        with pytest.raises(FolderError, match="not a run folder"):
            make_run(path, existing=existing)
    assert file.read_text() == "text"
    assert (lone / "config.json").read_text() == "{}"
    with pytest.raises(FolderError, match="cannot create"):
        make_run(file / "below", existing=existing)


@pytest.mark.parametrize("place", ["notes.txt", ".notes.old", "trials/notes.txt", "trials/dense,seed=0/notes.txt"])
def test_force_deletes_nothing_that_is_not_the_runs(tmp_path, place):
    run = tmp_path / "run"
    make_run(run)
    (run / place).write_text("mine")
    with pytest.raises(FolderError, match=place):
        make_run(run, existing="force")
    (run / "trials" / "dense,seed=0" / "trial.json").unlink()
    if "dense" in place:
        with pytest.raises(FolderError, match=r"delete files that are not the run's: notes\.txt"):
            make_run(run, existing="resume")
    else:
        make_run(run, existing="resume")
    assert (run / place).read_text() == "mine"


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "run").mkdir()
    make_run(tmp_path / "run")


def test_force_through_a_link_replaces_the_folder_it_points_to(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    make_run(tmp_path / "link", seeds=2, existing="force")
    assert (tmp_path / "link").is_symlink()
    assert len(read_run(tmp_path / "run").config.seeds) == 2


def test_a_crash_keeps_what_was_finished_and_its_scraps_go(tmp_path):
    run = tmp_path / "run"
    make_run(run, only=1)
    scrap = run / "trials" / ".alpha=0.0001,seed=0.1.dst-partial"
    scrap.mkdir()
    (scrap / "trial.json").write_text("half")
    (run / ".config.json.1.dst-partial").write_text("half")
    make_run(run, existing="resume")
    make_run(tmp_path / "whole")
    assert files_of(run) == files_of(tmp_path / "whole")


def test_a_folder_in_use_names_its_owner(tmp_path):
    make_run(tmp_path / "run")
    for existing in ("refuse", "resume", "force"):
        with (
            locked(tmp_path / "run"),
            pytest.raises(FolderError, match=rf"written by process {os.getpid()} on \S+, since 20"),
        ):
            make_run(tmp_path / "run", existing=existing)
    make_run(tmp_path / "run")


def test_what_cannot_be_written_leaves_no_half(tmp_path):
    """A real full disk is in test_crashes.py; here, a file where a folder must go, and a limit on a file's size."""
    write_bytes(tmp_path / "file", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(FolderError, match="cannot write file: File too large") as error:
            write_bytes(tmp_path / "file", b"x" * 100)
        assert "--resume" in error.value.hint
        with pytest.raises(FolderError, match="cannot write folder"):
            write_folder(tmp_path / "folder", {"a": b"x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"file": b"old"}
    with pytest.raises(FolderError, match="Not a directory"):
        write_bytes(tmp_path / "file" / "below", b"")


def test_checksums_are_those_of_sha256sum(tmp_path):
    make_run(tmp_path / "run")
    for folder in (tmp_path / "run", *(tmp_path / "run" / "trials").iterdir()):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)
    assert sums_of({"a": b""}).startswith(b"e3b0c44298fc1c149afbf4c8996fb924")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
            lambda n: n != "__metadata__"
        ),
        arrays(bool, array_shapes(max_dims=4, max_side=9)),
        max_size=5,
    )
)
def test_masks_come_back_bit_for_bit(masks):
    packed = pack_masks(masks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "masks.safetensors"
        path.write_bytes(packed)
        read = read_masks(path)
    assert list(read) == list(masks)
    assert all((read[name] == masks[name]).all() and read[name].shape == masks[name].shape for name in masks)
    assert packed == pack_masks(masks)


def test_masks_take_a_bit_per_weight_and_are_checked(tmp_path):
    path = tmp_path / "masks.safetensors"
    path.write_bytes(pack_masks({"fc": np.ones((1000, 1000), bool)}))
    assert path.stat().st_size < 1000 * 1000 / 8 + 500
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FolderError, match="masks cannot be read"):
        read_masks(path)
    with pytest.raises(FolderError, match="there are no masks"):
        read_masks(tmp_path / "other")


def test_damage_is_named(tmp_path):
    run = tmp_path / "run"

    def damage(name, text, match):
        make_run(run, existing="force")
        file = run / name
        file.unlink() if text is None else file.write_text(text)
        folder = file.parent
        names = [line.split("  ")[1] for line in (folder / SUMS).read_text().splitlines()]
        kept = {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}
        (folder / SUMS).write_bytes(sums_of(kept))  # as if it had been written that way
        with pytest.raises(FolderError, match=match) as error:
            read_run(run)
        assert error.value.hint
        file.write_text("")

    config = json.loads(make_run(run).config.model_dump_json())
    manifest = json.loads((run / "manifest.json").read_text())
    damage("config.json", None, "missing")
    damage("config.json", '{"model"', "config.json cannot be used")
    damage("config.json", json.dumps({**config, "lr": "NaN"}), "lr")
    damage("config.json", json.dumps({**config, "unknown": 1}), "unknown")
    damage("trials/dense,seed=0/trial.json", "[]", "trial.json")
    other = (run / "trials" / "alpha=0.0001,seed=0" / "trial.json").read_text()
    damage("trials/dense,seed=0/trial.json", other, "trial.json is of alpha 1e-4")
    damage("trials/alpha=0.0001,seed=0/record.csv", "a,b\n1,2\n", "its columns are")
    damage("trials/alpha=0.0001,seed=0/record.csv", "step,layer,remaining\n1,x,many\n", "record.csv")
    damage("layers.csv", None, "SHA256SUMS is damaged")
    make_run(tmp_path / "newer")
    newer = {**manifest, "schema_version": 99, "from the future": 1}
    (tmp_path / "newer" / "manifest.json").write_text(json.dumps(newer, indent=2))
    for read in (lambda: read_run(tmp_path / "newer"), lambda: make_run(tmp_path / "newer", existing="resume")):
        with pytest.raises(FolderError, match="format 99, this version reads format 3") as error:
            read()
        assert "newer version" in error.value.hint
    (run / "manifest.json").unlink()
    with pytest.raises(FolderError, match="not a run folder"):
        read_run(run)
    with pytest.raises(FolderError, match="no such folder"):
        read_run(tmp_path / "nowhere")


def test_a_folder_is_named_by_its_configuration(tmp_path):
    config = SweepConfig.checked(model="m.py")
    path = default_path("../../etc/pass wd", config)
    assert path.parent.name == "reports"
    assert path.name == f"etc-pass-wd-{config.digest[:8]}"
    assert config.digest == SweepConfig.model_validate_json(config.model_dump_json()).digest
    assert config.digest != SweepConfig.checked(model="m.py", lr=0.1).digest
    assert SweepConfig.checked(model="m.py", model_args={"dims": (1, 2)}).model_args == {"dims": [1, 2]}


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"alphas": []}, "at least one"),
        ({"alphas": [0.0]}, "not a positive"),
        ({"alphas": [-1e-5]}, "not a positive"),
        ({"alphas": [float("nan")]}, "finite"),
        ({"alphas": [float("inf")]}, "finite"),
        ({"alphas": [1e-5, 1e-5]}, "twice"),
        ({"seeds": 0}, "at least one"),
        ({"seeds": [-1]}, "between 0"),
        ({"steps": 0}, "greater than or equal to 1"),
        ({"epochs": 2, "steps": 3}, "give one of them"),
        ({"lr": 0}, "greater than 0"),
        ({"threshold": "tensor"}, "'vector'"),
        ({"alfas": [1]}, "no option 'alfas'"),
    ],
)
def test_options_that_make_no_sense(options, cause):
    with pytest.raises(OptionError, match=cause) as error:
        SweepConfig.checked(model="m.py", **options)
    assert error.value.hint


def test_alphas_are_short_and_exact():
    assert [alpha_label(a) for a in (1e-7, 0.0001, 0.00025, 0.5, 1.0, 20.0)] == [
        "1e-7",
        "1e-4",
        "2.5e-4",
        "0.5",
        "1.0",
        "20.0",
    ]

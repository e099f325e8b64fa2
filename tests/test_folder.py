"""The run folder: written whole or not at all, never over something else, and checked when it is read."""

import json

import pandas as pd
import pytest

from dst_analyze.errors import FolderError, OptionError
from dst_analyze.ranking.table import export_table, remaining_table
from dst_analyze.sweep.folder import default_path, draft_folder, read_run, write_text
from dst_analyze.sweep.record import (
    READING_COLUMNS,
    STEP_COLUMNS,
    DataSummary,
    Manifest,
    ModelSummary,
    SkippedLayer,
    SweepConfig,
    TrialKey,
    TrialResult,
    alpha_label,
    late,
)

STRANGE_NAMES = ["NA", "0", "a,b", 'say "hi"', "two\nlines", "=1+1", "<img src=x onerror=alert(1)>", "层.$x_1$", "null"]


def make_run(
    path,
    *,
    layers=("conv1", "fc"),
    alphas=(1e-4, 1e-3),
    diverged=(),
    resets=None,
    stand_in=False,
    force=False,
    **options,
):
    """A small run folder, as a sweep would leave it: later layers keep less of their weights, larger alphas too."""
    config = SweepConfig.checked(model="m.py", alphas=alphas, **options)
    facts = pd.DataFrame(
        {
            "layer": layers,
            "kind": "Linear",
            "parameter": [f"{name}.weight" for name in layers],
            "shape": "[10, 10]",
            "params": 100,
            "macs": 1000,
            "macs_note": "",
            "output_shape": "[2, 10]",
            "rung": 1,
            "op": "linear",
        }
    )
    manifest = Manifest(
        versions={"dst-analyze": "0", "torch": "2"},
        model=ModelSummary(
            name="m",
            spec="m.py",
            sha256=None,
            params=220,
            macs=2000,
            rung=1,
            coverage="all of it",
            skipped=(SkippedLayer(name="norm.weight", reason="normalisation", params=20),),
            uncounted=("aten::strange",),
            notes=("a note",),
        ),
        data=DataSummary(description="data", stand_in=stand_in, score="accuracy", scored_on="test"),
        steps=40,
        optimizer="SGD",
    )
    with draft_folder(path, config, force=force) as draft:
        draft.write_head(config, manifest, facts)
        for key in config.trials():
            failed = key.alpha in diverged
            rows = [
                (step, name, 1 / (1 + i) if step < 30 else 0.5 / (1 + i + rank))
                for step in range(10, 41, 10)
                for i, name in enumerate(layers)
                for rank in ([config.alphas.index(key.alpha)] if key.alpha else [])
            ]
            result = TrialResult(
                alpha=key.alpha,
                seed=key.seed,
                status="diverged" if failed else "done",
                steps=7 if failed else 40,
                loss=None if failed else 0.1,
                score=None if failed else 0.9,
                remaining=0.4 if key.alpha and not failed else None,
                resets=(resets or {}) if key.alpha else {},
                seconds=1.5,
            )
            readings = pd.DataFrame(rows, columns=["step", "layer", "remaining"]).reindex(columns=READING_COLUMNS)
            draft.write_trial(result, readings, pd.DataFrame(columns=STEP_COLUMNS), b"")
        draft.commit()
    return read_run(path)


def test_what_is_written_is_read(tmp_path):
    record = make_run(tmp_path / "run", seeds=2)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.json",
        "layers.csv",
        "manifest.json",
        "trials",
    ]
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert [t.key for t in record.trials] == list(record.config.trials())
    assert list(record.frame.columns) == ["alpha", "seed", *READING_COLUMNS]
    assert len(record.frame) == 2 * 2 * 4 * 2
    assert record.complete
    assert record.notes() == []


def test_a_trials_folder_tells_its_alpha_and_seed(tmp_path):
    make_run(tmp_path / "run", alphas=(1e-5,))
    assert sorted(p.name for p in (tmp_path / "run" / "trials").iterdir()) == ["alpha=1e-05,seed=0", "dense,seed=0"]
    assert TrialKey(1e-5, 0).name != TrialKey(1.00000001e-5, 0).name


def test_layer_names_survive_whatever_they_are(tmp_path):
    record = make_run(tmp_path / "run", layers=STRANGE_NAMES)
    assert list(record.layers["layer"]) == STRANGE_NAMES
    assert list(remaining_table(record).index) == STRANGE_NAMES
    assert remaining_table(record).notna().all(axis=None)
    assert "'=1+1" in list(export_table(record)["layer"])


def test_the_table_is_a_median_over_the_last_quarter(tmp_path):
    table = remaining_table(make_run(tmp_path / "run", seeds=2))
    assert list(table.columns) == [1e-4, 1e-3]
    assert table.loc["conv1", 1e-4] == pytest.approx(0.5)
    assert table.loc["fc", 1e-3] == pytest.approx(0.5 / 3)


def test_late_looks_at_each_trial_by_itself():
    frame = pd.DataFrame({"alpha": [1, 1, 2, 2], "seed": 0, "step": [10, 20, 100, 200], "remaining": 1.0})
    assert list(late(frame)["step"]) == [20, 200]


def test_diverged_trials_are_left_out_and_named(tmp_path):
    record = make_run(tmp_path / "run", diverged=(1e-3,))
    assert not record.complete
    assert set(record.frame["alpha"]) == {1e-4}
    assert remaining_table(record)[1e-3].isna().all()
    assert [note.title for note in record.notes()] == ["Diverged"]
    everything = make_run(tmp_path / "all", diverged=(1e-4, 1e-3))
    assert remaining_table(everything).isna().all(axis=None)


def test_notes_say_what_numbers_do_not(tmp_path):
    record = make_run(tmp_path / "run", stand_in=True, resets={"fc": 3})
    assert [note.title for note in record.notes()] == ["Stand-in data", "Resets"]
    assert "6 times" in record.notes()[1].text


def test_a_run_is_not_repeated_by_accident(tmp_path):
    make_run(tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").stat()
    with pytest.raises(FolderError, match="has been run already") as error:
        make_run(tmp_path / "run")
    assert "--force" in error.value.hint
    with pytest.raises(FolderError, match=r"another run \(seeds \[0\] -> \[0, 1\]\)"):
        make_run(tmp_path / "run", seeds=2)
    assert (tmp_path / "run" / "manifest.json").stat() == before
    assert len(make_run(tmp_path / "run", seeds=2, force=True).config.seeds) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("force", [False, True])
def test_other_peoples_files_are_left_alone(tmp_path, force):
    home = tmp_path / "home"
    home.mkdir()
    (home / "manifest.json").write_text('{"name": "my web page"}')
    with pytest.raises(FolderError, match="not a run folder"):
        make_run(home, force=force)
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(FolderError, match="not a run folder"):
        make_run(file, force=force)
    assert file.read_text() == "text"
    with pytest.raises(FolderError, match="cannot create"):
        make_run(file / "below", force=force)
    run = tmp_path / "run"
    make_run(run)
    (run / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"notes\.txt" if force else "already"):
        make_run(run, force=force)
    assert (run / "notes.txt").read_text() == "mine"


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "run").mkdir()
    make_run(tmp_path / "run")


def test_force_through_a_link_replaces_the_folder_it_points_to(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "link").symlink_to("run")
    make_run(tmp_path / "link", seeds=2, force=True)
    assert (tmp_path / "link").is_symlink()
    assert len(read_run(tmp_path / "run").config.seeds) == 2


def test_a_crash_leaves_nothing_behind(tmp_path):
    make_run(tmp_path / "run")
    config = SweepConfig.checked(model="m.py")
    for final in ("run", "new"):
        with pytest.raises(KeyboardInterrupt), draft_folder(tmp_path / final, config, force=True) as draft:  # noqa: PT012
            (draft.path / "config.json").write_text("half")
            raise KeyboardInterrupt
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    read_run(tmp_path / "run")


def test_a_finished_run_survives_a_name_that_was_taken_meanwhile(tmp_path):
    config = SweepConfig.checked(model="m.py")
    with pytest.raises(FolderError, match="its name") as error, draft_folder(tmp_path / "run", config) as draft:  # noqa: PT012
        write_text(draft.path / "config.json", "{}")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "other").write_text("")
        draft.commit()
    assert str(draft.path) in error.value.hint
    assert (draft.path / "config.json").exists()


def test_damage_is_named(tmp_path):
    run = tmp_path / "run"

    def damage(name, text, match):
        make_run(run, force=True)
        file = run / name
        file.unlink() if text is None else file.write_text(text)
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
    damage("trials/alpha=0.0001,seed=0/record.csv", "a,b\n1,2\n", "its columns are")
    damage("trials/alpha=0.0001,seed=0/record.csv", "step,layer,remaining\n1,x,many\n", "record.csv")
    damage("layers.csv", None, "missing")
    damage("manifest.json", None, "not a run folder")
    make_run(tmp_path / "newer")
    (tmp_path / "newer" / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}, indent=2))
    for read in (lambda: read_run(tmp_path / "newer"), lambda: make_run(tmp_path / "newer")):
        with pytest.raises(FolderError, match="format 99, this version reads format 1"):
            read()
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

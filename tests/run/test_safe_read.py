"""A run folder from a stranger: whatever is in it, reading ends well or in a plain error, and touches nothing else."""

import json
import math
import os
import shutil
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_folders import make_run
from safetensors.numpy import save

from dst_analyze import read_run
from dst_analyze.baselines.values import METHODS, Baselines, Measurement
from dst_analyze.cli.main import main
from dst_analyze.errors import DstError
from dst_analyze.ranking.load import rank_run, ranking_of
from dst_analyze.run.config import MOST_TRIALS
from dst_analyze.run.files.atomic_io import SUMS, sums_of
from dst_analyze.run.files.masks import pack_masks, read_masks
from dst_analyze.slimming.planning.plan_types import GroupPlan, SlimPlan
from dst_analyze.slimming.proof.result import Entry, Verification

READING = ("rank", "report", "compare")
"""The commands that never run a model's code, on one folder."""


def stranger(path):
    """A small complete run with all that can be in one."""
    make_run(path, layers=("conv1", "conv2", "fc"), alphas=(1e-4, 1e-3, 1e-2), seeds=2)
    group = GroupPlan(group="conv1", layers=("conv1",), width=8, new_width=4, removed=(0, 1, 2, 3), units=8)
    SlimPlan(
        model="m", parameters={"conv1.weight": (10, 10)}, inputs=(), rule="density", asked={"params": 0.5},
        groups=(group,), frozen=(), params=220, new_params=110, macs=2000, new_macs=1000,
    ).save(path / "plan.json")  # fmt: skip
    entries = [
        Entry(name=name, about="a model", params=1, macs=1, latency_ms=1.0, memory=1, scores=(0.9, 0.8))
        for name in ("dense", "slim", "uniform")
    ]
    found = Verification(score="accuracy", steps=1, seeds=(0, 1), entries=tuple(entries))
    (path / "verification.json").write_text(found.model_dump_json())
    ways = [
        Measurement(method=method, setting=0.5, seed=0, values={"conv1": 0.5, "conv2": 0.4, "fc": 0.9})
        for method in METHODS
    ]
    (path / "baselines.json").write_text(Baselines(steps=1, samples=1, measured=tuple(ways)).model_dump_json())
    (path / "groups.csv").write_text("layer,group\nconv1,a\nconv2,a\n")
    (path / "changes.csv").write_text("layer,before,after\nconv1,nn.Linear(1),nn.Linear(2)\n")
    (path / ".lock").unlink()
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return stranger(tmp_path_factory.mktemp("original") / "run")


def resealed(file):
    """The checksums beside a file, as a stranger would write them."""
    sums = file.parent / SUMS
    if sums.exists() and file.name != SUMS:
        names = [line.partition("  ")[2] for line in sums.read_text().splitlines()]
        sums.write_bytes(sums_of({name: (file.parent / name).read_bytes() for name in names}))


# --- any mutation -----------------------------------------------------------------------------------------------------

HOSTILE = [
    "NaN", "-Infinity", "1e999", "-1", "0", "1" * 400, "null", "true", "[]", "{}", '""', '"../../etc/passwd"',
    '"\\u0000"', '"\\ud800"', "[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, '"\u202e<script>"',
    "99999999999",
]  # fmt: skip
CELLS = [
    "",
    "NaN",
    "inf",
    "-1",
    "1e999",
    "x",
    '"',
    "a\nb",
    "=1+1",
    "9" * 400,
    "\x00",
    "../..",
    "0.5,0.5",
    "true",
    "1e-400",
]


@st.composite
def mutations(draw):
    """How a file is changed: bytes anywhere, a value of its JSON, a cell of its table."""
    kind = draw(st.sampled_from(["flip", "cut", "insert", "value", "value", "value", "cell", "cell", "lines"]))
    return kind, draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 10_000))


def mutated(data, mutation, *, table):
    kind, where, pick = mutation
    at = int(where * max(len(data), 1))
    if kind == "flip":
        return data[:at] + bytes([pick % 256]) + data[at + 1 :]
    if kind == "cut":
        return data[:at]
    if kind == "insert":
        return data[:at] + HOSTILE[pick % len(HOSTILE)].encode("utf-8", "surrogatepass") + data[at:]
    lines = data.decode("utf-8", "replace").split("\n")
    if kind == "lines":
        line = lines.pop(int(where * len(lines)))
        return "\n".join([*lines, *[line] * (pick % 3)]).encode()
    if table or kind == "cell":
        row = int(where * len(lines))
        cells = lines[row].split(",")
        cells[pick % len(cells)] = CELLS[pick % len(CELLS)]
        lines[row] = ",".join(cells)
        return "\n".join(lines).encode("utf-8", "replace")
    spots = [i for i, byte in enumerate(data) if byte == ord(":")]
    if not spots:
        return data
    start = spots[int(where * len(spots))] + 1
    end = next((i for i in range(start, len(data)) if data[i : i + 1] in b",\n}"), len(data))
    return data[:start] + HOSTILE[pick % len(HOSTILE)].encode("utf-8", "surrogatepass") + data[end:]


FILES = [
    "manifest.json", "config.json", "layers.csv", SUMS, "groups.csv",
    *(f"trials/alpha=0.001,seed=0/{name}" for name in ("trial.json", "record.csv", "steps.csv", "timing.json", SUMS)),
    "trials/dense,seed=0/trial.json",
]  # fmt: skip
ONLY_THE_PAGE = ["plan.json", "changes.csv", "verification.json"]


def error_of(read):
    """The error that reading ends in, if it does; any other exception is a bug."""
    try:
        read()
    except DstError as error:
        return error
    return None


def changed_copy(original, name, mutation, seal):
    home = Path(tempfile.mkdtemp())
    shutil.copytree(original, home / "run")
    file = home / "run" / name
    file.write_bytes(mutated(file.read_bytes(), mutation, table=name.endswith(".csv")))
    if seal:
        resealed(file)
    return home


@settings(max_examples=int(os.environ.get("DST_FUZZ", "60")), deadline=None, derandomize="DST_FUZZ" not in os.environ,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(st.sampled_from(FILES), mutations(), st.booleans())
def test_reading_ends_well_or_in_an_error(original, name, mutation, seal):
    home = changed_copy(original, name, mutation, seal)
    error = error_of(lambda: rank_run(read_run(home / "run")).text(80))
    assert error is None or (error.exit_code == 2 and error.hint)
    assert [entry.name for entry in home.iterdir()] == ["run"]
    shutil.rmtree(home)


@settings(max_examples=int(os.environ.get("DST_FUZZ", "10")), deadline=None, derandomize="DST_FUZZ" not in os.environ,
          suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip
@given(st.sampled_from([*ONLY_THE_PAGE, *FILES]), mutations())
def test_so_does_the_report(original, name, mutation):
    home = changed_copy(original, name, mutation, seal=True)
    before = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    assert main(["report", str(home / "run")]) in (0, 2)
    after = {file: file.read_bytes() for file in home.rglob("*") if file.is_file()}
    made = {
        home / "run" / name
        for name in (
            "report.html",
            "table.csv",
            "trials.csv",
            "widths.csv",
            "verdict.json",
            "summary.md",
            ".lock",
            SUMS,
        )
    }
    assert {file for file in after if after[file] != before.get(file)} <= made
    assert set(before) <= set(after)
    shutil.rmtree(home)


TABLE = "layer,alpha,remaining,seed,params,group,null,control,resets\n" + "".join(
    f"{name},{alpha},{ratio},{seed},100,,0.5,false,0\n"
    for alpha, ratio in (("1e-4", 0.9), ("1e-3", 0.5), ("1e-2", 0.1))
    for seed in range(2)
    for name in ("one", "two", "three")
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(mutations())
def test_so_does_any_table(mutation):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratios.csv"
        path.write_bytes(mutated(TABLE.encode(), mutation, table=True))
        error = error_of(lambda: ranking_of(path).text(80))
    assert error is None or (error.exit_code == 2 and error.hint)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 1 << 63), st.lists(st.integers(-2, 1 << 50), max_size=4))
def test_masks_of_any_bytes_and_any_claim(noise, length, shape):
    about = json.dumps({"shapes": {"fc": shape}})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "masks.safetensors"
        for data in (
            noise,
            length.to_bytes(8, "little") + noise,
            save({"fc": np.zeros(4, np.uint8)}, {"masks": about}),
        ):
            path.write_bytes(data)
            error = error_of(partial(read_masks, path))
            assert error is None or "masks cannot be read" in error.cause
            assert error is not None or math.prod(read_masks(path)["fc"].shape) <= 32


# --- what a stranger would think of ---------------------------------------------------------------------------------


def refused(run, capsys, said):
    for command in READING:
        assert main([command, *[str(run)] * (2 if command == "compare" else 1)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.splitlines()) <= 6
        assert "Traceback" not in error


@pytest.fixture
def run(original, tmp_path):
    (tmp_path / "secret.json").write_text((original / "config.json").read_text())
    (tmp_path / "secret.json").chmod(0o600)
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.mark.parametrize(
    "name", ["manifest.json", "config.json", "layers.csv", SUMS, "trials/dense,seed=0/trial.json", "groups.csv"]
)
def test_links_are_not_followed(run, capsys, name):
    secret = run.parent / "secret.json"
    secret.write_bytes((run / name).read_bytes())
    (run / name).unlink()
    (run / name).symlink_to(secret)
    refused(run, capsys, "not a run folder" if name == "manifest.json" else "")


@pytest.mark.parametrize("name", ["trials", "trials/alpha=0.001,seed=0"])
def test_folders_that_are_links_are_not_followed(run, capsys, name):
    moved = run.parent / "elsewhere"
    (run / name).rename(moved)
    (run / name).symlink_to(moved)
    refused(run, capsys, "links are not followed")


def test_a_folder_that_the_user_has_linked_is_read(run, capsys):
    (run.parent / "link").symlink_to(run)
    assert main(["rank", str(run.parent / "link")]) == 0


def test_checksums_name_no_file_elsewhere(run, capsys):
    for name in ("../secret.json", "/etc/passwd", "..", "."):
        sums = (run / SUMS).read_text()
        (run / SUMS).write_text(f"{sums}{'0' * 64}  {name}\n")
        refused(run, capsys, f"{SUMS} is damaged")
        (run / SUMS).write_text(sums)


def test_pages_replace_links_and_never_what_they_lead_to(run, capsys):
    secret = run.parent / "secret.json"
    before = secret.read_bytes()
    for name in ("report.html", "table.csv", f".report.html.{os.getpid()}.dst-partial"):
        (run / name).symlink_to(secret)
    assert main(["report", str(run)]) == 0
    assert secret.read_bytes() == before
    assert not (run / "report.html").is_symlink()


def test_a_pipe_a_device_and_a_file_of_terabytes_are_refused(run, capsys):
    config = run / "config.json"
    text = config.read_bytes()
    config.unlink()
    os.mkfifo(config)
    refused(run, capsys, "not a plain file")
    config.unlink()
    with config.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    refused(run, capsys, "larger than 64 MB")
    config.write_bytes(text)
    table = run / "trials" / "alpha=0.001,seed=0" / "record.csv"
    with table.open("ab") as file:
        file.truncate(1 << 40)
    refused(run, capsys, "record.csv cannot be read: it is larger than")
    assert main(["rank", "/dev/zero"]) == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seeds": list(range(MOST_TRIALS + 1))}, f"more than {MOST_TRIALS}"),
        ({"model_args": {"a": math.nan}}, "model_args"),
        ({"lr": math.inf}, "lr"),
        ({"alphas": [1e-4, math.nan]}, "alphas"),
    ],
)
def test_numbers_that_are_none_and_trials_without_end(run, capsys, change, said):
    config = json.loads((run / "config.json").read_text()) | change
    (run / "config.json").write_text(json.dumps(config))
    resealed(run / "config.json")
    refused(run, capsys, said)


@pytest.mark.parametrize("nested", ["[", '{"a":'])
def test_deep_nesting_is_refused(run, capsys, nested):
    close = {"[": "]", '{"a":': "}"}[nested]
    deep = nested * 100_000 + "1" + close * 100_000
    (run / "config.json").write_text('{"model": "m.py", "model_args": {"x": ' + deep + "}}")
    resealed(run / "config.json")
    refused(run, capsys, "recursion limit")


def test_a_table_with_nan_in_it_is_refused(run, capsys):
    table = run / "trials" / "alpha=0.001,seed=0" / "record.csv"
    lines = table.read_text().splitlines()
    for word in ("nan", "inf", "1e999"):
        cells = lines[1].split(",")
        cells[2] = word
        table.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
        resealed(table)
        refused(run, capsys, "record.csv cannot be used")


def test_masks_do_not_claim_more_than_there_is(tmp_path):
    path = tmp_path / "masks.safetensors"
    about = json.dumps({"shapes": {"fc": [1 << 20, 1 << 20, 1 << 10]}})
    path.write_bytes(save({"fc": np.packbits(np.ones(64, bool))}, {"masks": about}))
    with pytest.raises(DstError, match="8 bytes are no mask of shape"):
        read_masks(path)
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(DstError, match="masks cannot be read"):
        read_masks(path)
    path.write_bytes(pack_masks({"fc": np.ones((3, 5), bool)}))
    assert read_masks(path)["fc"].all()


def test_a_lock_that_is_a_link_empties_nothing(run, capsys, tmp_path, inline):
    secret = run.parent / "secret.json"
    before = secret.read_bytes()
    (run / ".lock").symlink_to(secret)
    (tmp_path / "m.py").write_text("from torch import nn\nmodel = nn.Linear(64, 10)\n")
    assert main([str(tmp_path / "m.py"), "--out", str(run), "--force"]) == 2
    assert "the lock is a link" in capsys.readouterr().err
    assert secret.read_bytes() == before

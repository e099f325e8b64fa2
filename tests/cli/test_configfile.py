"""Options in a file: what it may say, that the command line wins, and that a run can be had again from its own."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_sweeps import FILE

from dst_analyze.cli.configfile import ONCE, as_toml, key_of, read_options, sections
from dst_analyze.cli.main import commands, main
from dst_analyze.errors import OptionError

ANALYZE = commands.commands["analyze"]


@pytest.fixture
def here(tmp_path, monkeypatch, inline):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "m.py").write_text(FILE)
    return tmp_path


def printed(capsys, *args):
    assert main([*args, "--print-config"]) == 0
    return capsys.readouterr().out


def test_a_file_of_options_in_sections_or_flat(here, capsys):
    (here / "run.toml").write_text(
        'model = "m.py"\nsteps = 30\nbatch_size = 8\n'
        "[sweep]\nalphas = [1e-3, 1e-2]\nuntil-stable = true\n"
        '[training]\nlr = 1\noptimizer = "adam"\n[slimmer-architecture]\nkeep = ["head*"]\n'
    )
    text = printed(capsys, "--config", "run.toml")
    for line in (
        'model = "m.py"', "steps = 30", "batch-size = 8", "alphas = [0.001, 0.01]", "until-stable = true", "lr = 1.0",
        'optimizer = "adam"', 'keep = ["head*"]',
    ):  # fmt: skip
        assert line in text.splitlines()
    (here / "again.toml").write_text(text)
    assert printed(capsys, "--config", "again.toml") == text
    won = printed(capsys, "other.py", "--config", "run.toml", "--alphas", "0.5", "--lr", "2")
    assert 'model = "other.py"' in won
    assert "alphas = [0.5]" in won
    assert "lr = 2.0" in won
    assert "steps = 30" in won


def test_every_option_is_in_the_file_or_for_one_call(capsys):
    keys = [key_of(option) for group in sections(ANALYZE).values() for option in group]
    assert len(keys) == len(set(keys))
    assert {*keys, *ONCE} == {key_of(option) for option in ANALYZE.params}


TEXT = st.text(min_size=1)


@given(TEXT, st.lists(TEXT, max_size=3), st.floats(allow_nan=False), st.integers(1, 10**9))
def test_what_is_written_is_read(model, keep, lr, steps):
    values = {"model": model, "keep": tuple(keep), "lr": lr, "steps": steps, "amp": True, "alphas": (lr, 1e-5)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        text = as_toml(ANALYZE, values)
        path.write_text(text, encoding="utf-8")
        read = read_options(path, ANALYZE)
    assert read["model"] == model
    assert tuple(read.get("keep", ())) == tuple(keep)
    assert (read["lr"], read["steps"], read["amp"]) == (lr, steps, True)
    assert tuple(map(float, read["alphas"].split(","))) == (lr, 1e-5)


@pytest.mark.parametrize(
    ("text", "cause", "place", "hint"),
    [
        ('model = "m.py"\nlearning-rte = 1\n', "no option 'learning-rte'", "run.toml:2, learning-rte", "--help"),
        ("[sweep]\nstps = 1\n", "no option 'stps'", "run.toml:2, stps", "did you mean steps?"),
        ("[sweeep]\nsteps = 1\n", "no option 'sweeep'", "run.toml", "did you mean sweep?"),
        ("\n\nsteps = 2.5\n", "steps is 2.5, not a whole number", "run.toml:3, steps", "a whole number"),
        ("steps = true\n", "steps is True, not a whole number", "run.toml:1", "a whole number"),
        ('lr = "fast"\n', "lr is 'fast', not a number", "run.toml:1, lr", "a number"),
        ("amp = 1\n", "amp is 1, not true or false", "run.toml:1", "true or false"),
        ('alphas = ["a"]\n', "alphas is ['a'], not a list of numbers", "run.toml:1", "[1e-5, 1e-4]"),
        ('keep = "head*"\n', "keep is 'head*', not a list of texts", "run.toml:1", '["conv*"]'),
        ('schedule = "stairs"\n', "schedule is 'stairs', not one of", "run.toml:1", "'cosine'"),
        ("model = 3\n", "model is 3, not a text in quotes", "run.toml:1", "quotes"),
        ("steps = 1\n[sweep]\nsteps = 2\n", "'steps' is set twice", "run.toml:3", "once"),
        ("dry-run = true\n", "no option 'dry-run'", "run.toml:1", "for the command line only"),
        ("steps = \n", "not TOML: Invalid value", "run.toml:1", "--print-config"),
        ("a" * 2_000_000, "too large", "run.toml", "--print-config"),
        ("x = " + "[" * 100_000, "not TOML", "run.toml", "--print-config"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(here, capsys, text, cause, place, hint):
    (here / "run.toml").write_text(text)
    assert main(["m.py", "--config", "run.toml"]) == 2
    error = capsys.readouterr().err
    lines = error.splitlines()
    assert cause in lines[0]
    assert place in lines[1]
    assert lines[1].startswith("  at ")
    assert lines[-1].startswith("hint: ")
    assert hint in lines[-1]
    assert len(lines) == 3
    assert not (here / "reports").exists()


def test_files_that_are_not_there_or_not_toml(here, capsys):
    assert main(["m.py", "--config", "nowhere.toml"]) == 2
    assert "cannot be read: No such file" in capsys.readouterr().err
    with pytest.raises(OptionError, match="cannot be read"):
        read_options(here, ANALYZE)


def test_a_run_keeps_its_options_and_can_be_had_again(here, capsys):
    args = ["m.py", "--alphas", "1e-3,1e-2", "--steps", "4", "--jobs", "1", "--quiet"]
    assert main([*args, "--out", "one", "--model-arg", "hidden=16", "--target-params", "0.4"]) == 0
    text = (here / "one" / "run.toml").read_text()
    assert 'model-arg = ["hidden=16"]' in text
    assert "target-params = 0.4" in text
    assert "out" not in text
    assert "jobs" not in text
    assert main(["--config", "one", "--out", "two", "--jobs", "1", "--quiet"]) == 0
    for name in ("config.json", "table.csv", "run.toml", "manifest.json"):
        assert (here / "one" / name).read_bytes() == (here / "two" / name).read_bytes()
    assert json.loads((here / "two" / "config.json").read_text())["model_args"] == {"hidden": 16}
    assert main(["--config", "one/config.json", "--quiet"]) == 2
    assert "hint: the options of this run are in one/run.toml" in capsys.readouterr().err
    assert main(["--config", "one", "--out", "one", "--force", "--quiet", "--jobs", "1"]) == 0  # the file is the run's

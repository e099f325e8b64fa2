"""The command line as a user meets it: commands, exit codes, and errors with cause, place and hint."""

import json
import os
import re
import subprocess
import sys
import webbrowser
from pathlib import Path

import click
import pytest
from small_sweeps import FILE

from dst_analyze.cli.main import commands, main
from dst_analyze.cli.terminal import elide, escape_control, short
from dst_analyze.run.config import DEFAULT_BATCH_SIZE
from dst_analyze.run.defaults import DEFAULT_STEPS, FULL_LENGTH
from dst_analyze.sweep.training.recipe import LEARNING_RATES
from dst_analyze.version import __version__

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "dst_analyze" / "examples" / "demo.py")
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "80"}
HOSTILE = "\x1b[31m[bold]evil[/bold]"

SMALL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.a_first_layer_with_a_name_that_is_very_much_longer_than_any_terminal_is_wide = nn.Linear(64, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, 10)
    def forward(self, x):
        (x,) = [layer(x) for layer in list(self.children())[:1]]
        return self.last(self.norm(x).relu())
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A new folder with a small model in it, and 80 columns without colour."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / "small.py").write_text(SMALL)
    return tmp_path


def command(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "dst_analyze", *args], capture_output=True, text=True, env=ENV, timeout=120, **options
    )


def test_a_loaders_workers_find_the_users_file_where_nothing_is_forked(tmp_path):
    """As on a Mac: they are new processes that import what they are sent by its module's name."""
    (tmp_path / "m.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Rows(Dataset):\n    def __len__(self):\n        return 32\n"
        "    def __getitem__(self, i):\n        return torch.full((3, 5), i / 32), i % 2\n"
        "def build_model():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(15, 2))\n"
        "def train_data():\n"
        "    how = {'multiprocessing_context': 'spawn', 'persistent_workers': True}\n"
        "    return DataLoader(Rows(), batch_size=8, num_workers=1, **how)\n"
    )
    done = command("m.py", "--alphas", "1e-3", "--steps", "3", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 batches of a DataLoader" in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.py"]  # no bytecode either


MISSION = ("--alphas", "1e-7,1e-6,1e-5")


def ending(out):
    """The last lines of a run, by what stands before each; the first of those that share a name."""
    rows = {}
    for line in out.rpartition("\n\n")[2].splitlines():
        rows.setdefault(line[:12].strip(), line[12:])
    return rows


def test_the_missions_command_gives_an_answer(tmp_path, monkeypatch, capsys, inline):
    """The demo with three alphas and nothing else but fewer steps: a ranking, a slim model, a report."""
    args = [DEMO, *MISSION, "--steps", "250", "-v"]
    done = command(*args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^layer +params +MACs +1e-7 +1e-6 +1e-5$", done.stdout, re.MULTILINE)
    rows = dict(re.findall(r"^(conv\d|fc\d|all layers)((?: +[\d.k]+)+)$", done.stdout, re.MULTILINE))
    assert list(rows) == ["conv1", "conv2", "conv3", "fc1", "fc2", "all layers"]
    weak, middle, strong = map(float, rows["all layers"].split()[-3:])
    assert weak > middle > strong
    assert strong < 80
    assert re.search(r"^accuracy % \(dense: \d+\.\d\) +\d", done.stdout, re.MULTILINE)
    assert re.search(r"^Verdict: (weakly )?consistent\.$", done.stdout, re.MULTILINE)
    tables = done.stdout.split("\n\n")[:2]
    assert max(len(line) for table in tables for line in table.splitlines()[1:]) <= 80
    folder = next((tmp_path / "reports").iterdir())
    assert re.fullmatch(r"demo-[0-9a-f]{8}", folder.name)
    end = ending(done.stdout)
    assert next(iter(end)) == "answer"  # nothing went wrong
    assert re.fullmatch(r"demo: .* could go; not proven yet", end["answer"])
    assert re.match(r"57\.5k → \d.* parameters, MACs to \d+ %; the sweep's masks suggest that \d", end["saving"])
    assert "of its weights go at no loss" in end["redundant"]
    assert end["how sure"].startswith(("high: ", "some: "))
    assert end["report"] == f"reports/{folder.name}/report.html"
    assert end["slim model"] == f"reports/{folder.name}/slim_model.py"
    assert end["next"] == f"dst-analyze verify reports/{folder.name}"
    names = {p.name for p in folder.iterdir()} - {"slim_model.patch"}  # whose numbers may not stand in the file
    assert sorted(names) == sorted(
        [
            ".lock", "SHA256SUMS", "changes.csv", "config.json", "graph.json", "groups.csv", "inputs.json",
            "layers.csv",
            "manifest.json", "plan.json", "report.html", "run.toml", "slim_model.py", "slim_model.safetensors",
            "summary.md", "table.csv", "torch_pruning.json", "trials", "trials.csv", "verdict.json", "widths.csv",
        ]
    )  # fmt: skip
    assert "dense, seed 0" in done.stderr

    monkeypatch.chdir(tmp_path)
    before = (folder / "trials").stat().st_mtime_ns
    assert main(args) == 0
    again = capsys.readouterr()
    assert "4 trials of 250 steps, 4 of them done already: the run is complete" in again.err
    assert f"reports/{folder.name}/report.html" in again.out
    assert (folder / "trials").stat().st_mtime_ns == before


def test_alphas_that_prune_nothing_are_said_first_and_the_last_line_mends_it(here, capsys, inline):
    (here / "m.py").write_text(FILE)
    args = ["m.py", *MISSION, "--alpha-scale", "1", "--steps", "60", "--lr", "0.1", "--out", "run", "--jobs", "1"]
    assert main([*args, "--quiet", "-v"]) == 0
    out = capsys.readouterr().out
    assert "Nothing was pruned" in out
    assert "Verdict: no ranking." in out
    end = ending(out)
    assert next(iter(end)) == "WARNING"
    assert "nothing was pruned" in end["WARNING"]
    assert "no slimmer architecture" in end["answer"]
    assert end["next"].startswith("dst-analyze m.py --alphas 3e-6,3e-5,3e-4 --alpha-scale 1 --steps 60 --lr 0.1")
    assert not (here / "run" / "plan.json").exists()


def test_stand_in_data_are_said_first(here, capsys, inline):
    (here / "m.py").write_text(
        "from torch import nn\ndef build_model():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))\n"
    )
    assert main(["m.py", "--alphas", "1e-5,1e-4", "--steps", "200", "--out", "run", "--jobs", "1", "--quiet"]) == 0
    end = ending(capsys.readouterr().out)
    assert next(iter(end)) == "WARNING"
    assert "stand-in data" in end["WARNING"]
    assert end["next"].startswith("dst-analyze m.py --alphas 1e-5,1e-4 --steps 200 --data NAME")


def test_a_table_is_the_same_every_time(here, capsys, inline):
    for out in ("one", "two"):
        assert main([DEMO, "--alphas", "2e-3", "--steps", "12", "--out", out, "--quiet"]) == 0
    assert (here / "one" / "table.csv").read_bytes() == (here / "two" / "table.csv").read_bytes()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\nreport  ") == 2


def test_a_billion_parameters_are_inspected_in_a_gigabyte(tmp_path):
    layers = "[nn.Linear(8192, 8192) for _ in range(15)]"
    (tmp_path / "big.py").write_text(f"from torch import nn\ndef build_model():\n    return nn.Sequential(*{layers})\n")
    code = (
        "import sys; from dst_analyze.cli.main import main; code = main(['inspect', 'big.py']);"
        "print('peak', open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "1,006,755,840 parameters" in done.stdout
    assert int(done.stdout.split("peak")[1]) < 1_000_000  # kilobytes


def test_help_is_one_screen_and_help_all_has_every_option_in_one_line_each(capsys):
    assert main(["--help"]) == 0
    common = capsys.readouterr().out
    assert len(common.splitlines()) <= 30
    assert max(map(len, common.splitlines())) < 80
    for name in ("inspect", "report", "--alphas", "--help-all", "dst-analyze MODEL [OPTIONS]"):
        assert name in common
    assert main([]) == 0
    assert main(["model.py", "--help"]) == 0
    assert capsys.readouterr().out == 2 * common
    assert main(["model.py", "--help-all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for option in (one for one in commands.commands["analyze"].params if isinstance(one, click.Option)):
        names = ", ".join(sorted(option.opts, key=len))
        (line,) = [line for line in lines if line.startswith(f"  {names} ")]
        assert re.search(r"  \S.*[.\])]$", line)  # its text ends there
    assert [line for line in lines if line.startswith("Training:")]
    assert main(["inspect", "--help"]) == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(commands.commands) - {"analyze"}))
def test_help_of_a_command_is_one_screen_with_an_option_a_line(name, capsys):
    assert main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    rows = lines[lines.index("Options:") + 1 :]
    assert all(row.startswith("  -") for row in rows)


def test_help_names_the_defaults_that_are_used(capsys):
    assert main(["--help-all"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for value in (DEFAULT_STEPS, DEFAULT_BATCH_SIZE):
        assert f"[default: {value}]" in text
    assert f"[default: {LEARNING_RATES['sgd']}; {LEARNING_RATES['adam']} for Adam]" in text
    assert f"[default: {FULL_LENGTH} / steps]" in text


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"dst-analyze {__version__} (torch ")


def test_inspect_shows_every_layer(here, capsys):
    assert main(["inspect", "small.py", "--model-arg", "hidden=16"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("small: 2 layers, 1,242 parameters, 1,184 MACs per sample, called with float32[2, 64]")
    assert re.search(r"^a_first_lay.*…\S+ +Linear +16x64 +1\.02k +1\.02k +[12]$", out, re.MULTILINE)
    assert max(map(len, out.split("layer ")[1].splitlines()[:4])) <= 80
    assert re.search(r"^skipped, 32 parameters: normalisation.*: norm.weight, norm.bias$", out, re.MULTILINE)
    assert "100.0% of the matmul and convolution weights can be masked" in out
    assert re.search(r"^rung \d: ", out, re.MULTILINE)


def test_inspect_for_machines(here, capsys):
    assert main(["inspect", "small.py", "--json", "--exclude", "last"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["model"] == "small"
    assert [layer["shape"] for layer in seen["layers"]] == [[8, 64]]
    assert seen["layers"][0]["macs"] == 512
    assert {"last", "norm.weight"} <= {entry["name"].removesuffix(".weight") for entry in seen["skipped"]} | {
        "norm.weight"
    }
    assert 0 < seen["coverage"]["weights"] < 1


def test_inspect_needs_values_only_where_the_model_does(here, capsys):
    (here / "values.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        return self.b(x) if self.a.weight.abs().sum() > 0 else self.a(x)\n"
    )
    assert main(["inspect", "values.py"]) == 0
    assert "4 MACs" not in capsys.readouterr().err


def test_the_report_is_made_again(here, capsys, inline):
    assert main(["small.py", "--alphas", "1e-3", "--steps", "4", "--out", "run", "--quiet", "-v"]) == 0
    assert "! Stand-in data: " in capsys.readouterr().out
    html = (here / "run" / "report.html").read_bytes()
    (here / "run" / "report.html").unlink()
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out == "run/report.html\n"
    assert (here / "run" / "report.html").read_bytes() == html
    assert b"Stand-in data" in html


RATIOS = "layer,alpha,remaining,seed,params\n" + "".join(
    f"{name},{alpha},{ratio**power},{seed},100\n"
    for power, alpha in enumerate(("1e-4", "1e-3", "1e-2"), 1)
    for seed in range(3)
    for name, ratio in (("one", 0.9), ("two", 0.7), (HOSTILE, 0.4), ("four", 0.2))
)


def test_ratios_from_elsewhere_are_ranked_and_compared(here, capsys):
    (here / "ratios.csv").write_text(RATIOS)
    assert main(["rank", "ratios.csv"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^four +redundant +1 +1 ", out, re.MULTILINE)
    assert "Verdict: consistent." in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["rank", "ratios.csv", "--format", "json", "--by", "params", "--top", "2"]) == 0
    assert len(json.loads(capsys.readouterr().out)["table"]["rows"]) == 2
    assert main(["rank", "ratios.csv", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith('"layer","position","label","rank"')
    assert main(["rank", "ratios.csv", "--format", "markdown", "--by", "macs"]) == 0
    assert "| four | redundant |" in capsys.readouterr().out
    (here / "other.csv").write_text(RATIOS.replace("two,", "zwei,"))
    assert main(["compare", "ratios.csv", "other.csv"]) == 0
    out = capsys.readouterr().out
    assert "Verdict: the runs agree." in out
    assert re.search(r"^two \* +3 +3 +0 ", out, re.MULTILINE)
    assert "\x1b" not in out
    assert main(["rank", "ratios.csv", "--top", "0"]) == 2


def test_a_diverged_sweep_is_shown_and_exits_1(here, capsys, inline):
    args = ["small.py", "--alphas", "1e-3", "--steps", "10", "--lr", "1e20", "--out", "run"]
    assert main([*args, "-v"]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("! Diverged: ") == 2
    assert "STAND-IN DATA" in captured.err
    assert (here / "run" / "report.html").exists()
    assert main(["small.py", "--alphas", "1e-3", "--steps", "3", "--out", "run", "--force", "--quiet"]) == 0


def test_debug_shows_the_traceback(here, capsys):
    assert main(["inspect", "nowhere.py", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "error: " in err


def test_an_error_of_the_users_code_shows_its_frames(here, capsys):
    (here / "broken.py").write_text("def helper():\n    return 1 / 0\n\ndef build_model():\n    return helper()\n")
    assert main(["inspect", "broken.py"]) == 2
    err = capsys.readouterr().err
    assert "return 1 / 0" in err
    assert "broken.py:2" in err
    assert "click" not in err


def test_what_nobody_foresaw_is_one_line_too(here, capsys, monkeypatch, inline):
    def fail(*args, **options):
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr("dst_analyze.sweep.planning.budget.plan_sweep", fail)
    assert main(["small.py"]) == 1
    err = capsys.readouterr().err
    assert (
        err == "error: RuntimeError: \\x1b[31m[bold]evil[/bold]\nhint: run with --debug to see where this comes from\n"
    )


def test_hostile_names_are_inert(here, capsys, inline):
    (here / "evil.py").write_text(
        "from torch import nn\n"
        "model = nn.Sequential(nn.Flatten())\n"
        f"model.add_module({HOSTILE!r}, nn.Linear(64, 12))\n"
        "model.add_module('\\u202eback', nn.Linear(12, 10))\n"
    )
    assert main(["inspect", "evil.py"]) == 0
    assert main(["evil.py", "--steps", "3", "--alphas", "1e-3", "--out", "run"]) == 0
    assert main([f"{HOSTILE}.py"]) == 2
    captured = capsys.readouterr()
    for text in (captured.out, captured.err):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "[bold]evil" in text


def test_text_helpers():
    assert escape_control("a\x1b[0m\tb\nc\u2028") == "a\\x1b[0m\\tb\nc\\u2028"
    assert elide("layer1.0.conv1", 20) == "layer1.0.conv1"
    assert elide("layer1.0.some.very.long.name.conv1", 13) == "layer1….conv1"
    assert len(elide("x" * 100, 12)) == 12
    assert elide("two\nlines", 20) == "two\\nlines"
    assert [short(n) for n in (0, 999, 1000, 12345, 999_500, 1.5e9, None, float("nan"))] == [
        "0", "999", "1.00k", "12.3k", "1.00M", "1.50G", "–", "–",
    ]  # fmt: skip


def test_every_command_takes_debug():
    assert all(any("--debug" in option.opts for option in each.params) for each in commands.commands.values())


@pytest.mark.parametrize("name", sorted(set(commands.commands) - {"analyze"}))
def test_help_has_examples_and_imports_no_torch(name, capsys):
    assert main([name, "--help"]) == 0
    assert re.search(rf"^ +dst-analyze {name} \S", capsys.readouterr().out, re.MULTILINE)


def test_asking_costs_nothing():
    code = "import sys; from dst_analyze.cli.main import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    for args in (["--help"], ["--version"], ["m.py", "--steps", "3", "--print-config"]):
        done = subprocess.run([sys.executable, "-c", code, *args], env=ENV, capture_output=True, text=True)
        assert done.stdout.endswith("False\n"), done.stderr


@pytest.fixture
def shown(here, monkeypatch):
    """What a browser was asked to open."""
    script = here / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" >> {here}/shown\n')
    script.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(script))
    monkeypatch.setattr(webbrowser, "_tryorder", None)
    monkeypatch.setattr(webbrowser, "_browsers", {})
    return here / "shown"


def test_the_end_of_a_run_is_ten_lines_and_the_page(here, shown, capsys, inline):
    (here / "m.py").write_text(FILE)
    args = ["m.py", "--alphas", "1e-3,1e-2", "--steps", "60", "--out", "run", "--jobs", "1"]
    assert main([*args, "--open", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    summary = captured.out.rpartition("\n\n")[2].splitlines()
    rows = {line[:12].strip(): line[12:] for line in summary}
    assert len(summary) <= 10
    model, _, said = rows["answer"].partition(": ")
    assert model == "m"
    assert re.fullmatch(r".* could go; not proven yet", said)
    assert re.match(r"1\.81k → \d+ parameters, MACs to \d+ %; .*\d+ %", rows["saving"])
    assert "redundant" in rows
    assert re.match(r"(high|some|low): ", rows["how sure"])
    assert (rows["report"], rows["slim model"]) == ("run/report.html", "run/slim_model.py")
    assert rows["next"] == "dst-analyze verify run"
    assert shown.read_text() == f"{(here / 'run' / 'report.html').as_uri()}\n"
    assert main(["report", "run", "--open"]) == 0
    assert len(shown.read_text().splitlines()) == 2
    monkeyed = capsys.readouterr()
    assert monkeyed.out == "run/report.html\n"
    assert main([*args, "--json"]) == 0
    assert all(json.loads(line)["event"] for line in capsys.readouterr().out.splitlines())


def completions(words, monkeypatch, capsys):
    monkeypatch.setenv("_DST_ANALYZE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


def test_shells_complete_commands_options_and_files(monkeypatch, capsys):
    assert completions("dst-analyze ver", monkeypatch, capsys) == ["plain,verify", "file,ver"]
    assert completions("dst-analyze --alphas", monkeypatch, capsys) == ["plain,--alphas"]
    assert completions("dst-analyze m.py --sched", monkeypatch, capsys) == ["plain,--schedule"]
    assert completions("dst-analyze m.py --schedule co", monkeypatch, capsys) == ["plain,cosine", "plain,constant"]
    assert completions("dst-analyze inspect torchv", monkeypatch, capsys) == ["plain,torchvision:", "file,torchv"]
    assert completions("dst-analyze rank --form", monkeypatch, capsys) == ["plain,--format"]
    monkeypatch.setenv("_DST_ANALYZE_COMPLETE", "zsh_source")
    with pytest.raises(SystemExit):
        main([])
    assert "#compdef dst-analyze" in capsys.readouterr().out

"""Whose code is run: a model that has changed since its sweep is not, nor one of another user's folder unasked."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from commands import run_here
from run_folders import make_run

from dst_analyze.cli.main import main
from dst_analyze.run.header import refuse_difference
from dst_analyze.run.reader import read_run
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.planning.reload import why_untrusted

MODEL = """
import importlib
import torch
from pathlib import Path
from torch import nn
from helper import activation
from parts.deep import WIDTH

with Path("log").open("a") as log:
    log.write("x")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        importlib.import_module("la" + "te")
        self.one, self.two = nn.Linear(64, WIDTH), nn.Linear(WIDTH, 10)
    def forward(self, x):
        return self.two(activation(self.one(x)))

def train_data():
    return torch.rand(128, 64), torch.arange(128) % 10
"""
FILES = {
    "m.py": MODEL,
    "helper.py": "import torch\n\ndef activation(x):\n    return torch.relu(x)\n",
    "late.py": "",
    "parts/__init__.py": "",
    "parts/deep.py": "from .deeper import WIDTH\n",
    "parts/deeper.py": "WIDTH = 16\n",
    "other.py": "",
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory, inline_module):
    """A folder with a run in it, and the model that it is of; tests change copies of it."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "parts").mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    done = run_here(folder, "m.py", "--alphas", "1e-3,1e-2", "--steps", "6", "--alpha-scale", "1e5", "--out", "run")
    assert done.returncode == 0, done.stderr
    (folder / "log").unlink()
    return folder


@pytest.fixture
def here(swept, tmp_path, monkeypatch):
    """A copy of that folder, and the current one."""
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return tmp_path


def test_a_run_keeps_the_files_of_its_model(here, capsys):
    kept = json.loads(Path("run/manifest.json").read_text())["model"]["files"]
    assert list(kept) == sorted(set(FILES) - {"other.py"})
    assert main(["slim", "run", "--out", "elsewhere"]) == 0, capsys.readouterr().err
    assert Path("log").exists()  # of this user, in this folder, unchanged: nobody is asked


@pytest.mark.parametrize("name", ["m.py", "helper.py", "late.py", "parts/deeper.py"])
def test_code_that_has_changed_is_not_run(here, capsys, name):
    Path(name).write_text(FILES[name].replace("relu", "tanh").replace("16", "15") + "\n# more\n")
    for command in ("slim", "verify"):
        capsys.readouterr()
        assert main([command, "run", "--trust"]) == 2
        error = capsys.readouterr().err
        assert f"its code has changed since: {name}" in error
        assert "hint: " in error
    assert not Path("log").exists()
    Path(name).write_text(FILES[name])
    Path("other.py").write_text("print('nobody imports this')")
    assert main(["slim", "run", "--out", "elsewhere"]) == 0


def test_a_helper_that_is_gone_is_a_change(here, capsys):
    Path("late.py").unlink()
    assert main(["slim", "run"]) == 2
    assert "changed since: late.py" in capsys.readouterr().err
    assert not Path("log").exists()


def test_nor_is_it_resumed_with_other_helpers(here, capsys):
    Path("helper.py").write_text(FILES["helper.py"].replace("relu", "tanh"))
    assert main(["m.py", "--alphas", "1e-3,1e-2", "--steps", "6", "--alpha-scale", "1e5", "--out", "run"]) == 2
    assert "model.files.helper.py" in capsys.readouterr().err


def without_files():
    manifest = json.loads(Path("run/manifest.json").read_text())
    del manifest["model"]["files"]
    Path("run/manifest.json").write_text(json.dumps(manifest))
    sums = Path("run/SHA256SUMS")
    from dst_analyze.run.files.atomic_io import sums_of

    names = [line.partition("  ")[2] for line in sums.read_text().splitlines()]
    sums.write_bytes(sums_of({name: (Path("run") / name).read_bytes() for name in names}))


def test_a_run_from_before_files_were_kept_goes_by_its_models_file(here, capsys):
    without_files()
    assert read_run("run").manifest.model.files == {}
    assert main(["slim", "run", "--out", "elsewhere"]) == 0
    assert main(["m.py", "--alphas", "1e-3,1e-2", "--steps", "6", "--alpha-scale", "1e5", "--out", "run"]) == 0
    Path("log").unlink()
    Path("m.py").write_text(MODEL + "# more")
    assert main(["slim", "run"]) == 2
    assert not Path("log").exists()


def test_the_same_files_are_found_whatever_was_imported_before(here):
    """As in a notebook, where another model of the same folder has been there first."""
    Path("n.py").write_text("import helper, other\nfrom torch import nn\nmodel = nn.Linear(64, 10)\n")
    plan_sweep("n.py", alphas=(1e-3,), steps=2)
    again = plan_sweep("m.py", alphas=(1e-3, 1e-2), steps=6, alpha_scale=1e5, out="run")
    refuse_difference(here, read_run("run").manifest.model, again.manifest.model, "model")


def test_a_model_elsewhere_is_asked_about(here, capsys, monkeypatch):
    (here / "away").mkdir()
    monkeypatch.chdir(here / "away")
    Path("../run/config.json").write_text(Path("../run/config.json").read_text().replace('"m.py"', '"../m.py"'))
    sums = Path("../run/SHA256SUMS")
    from dst_analyze.run.files.atomic_io import sums_of

    names = [line.partition("  ")[2] for line in sums.read_text().splitlines()]
    sums.write_bytes(sums_of({name: (Path("../run") / name).read_bytes() for name in names}))
    for command in ("slim", "verify"):
        assert main([command, "../run"]) == 2
        error = capsys.readouterr().err
        assert f"{here / 'm.py'}, outside the current directory" in error
        assert "hint: --trust" in error
    assert not Path("log").exists()
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda text, **how: asked.append(text) or len(asked) > 1)
    assert main(["slim", "../run", "--out", "elsewhere"]) == 2
    assert not Path("log").exists()
    assert main(["slim", "../run", "--out", "elsewhere"]) == 0
    assert main(["slim", "../run", "--out", "elsewhere", "--trust"]) == 0
    assert len(asked) == 2
    assert str(here / "m.py") in asked[0]


def test_so_is_another_users_folder(here, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert main(["slim", "run"]) == 2
    error = capsys.readouterr().err
    assert "run is another user's" in error
    assert str(here / "m.py") in error
    assert not Path("log").exists()
    assert main(["slim", "run", "--out", "elsewhere", "--trust"]) == 0


@pytest.mark.parametrize("spec", ["example:demo", "torchvision:resnet18", "package.module:Net", "m.py", "sub/m.py:Net"])
def test_what_is_named_by_a_module_or_lies_below_is_not_elsewhere(tmp_path, monkeypatch, spec):
    monkeypatch.chdir(tmp_path)
    record = make_run(tmp_path / "run")
    assert why_untrusted(record) == ""
    changed = record.config.model_copy(update={"model": spec})
    assert why_untrusted(type(record)(**{**vars(record), "config": changed})) == ""


@pytest.mark.parametrize("leave", ["os._exit(3)", "from os import _exit; _exit(3)"])
def test_a_model_that_ends_the_program_is_named(tmp_path, monkeypatch, capsys, inline, leave):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("m.py").write_text(f"import os\nfrom torch import nn\n{leave}\nmodel = nn.Linear(64, 10)\n")
    assert main(["inspect", "m.py"]) == 2
    error = capsys.readouterr().err
    assert "m.py called os._exit(3)" in error
    assert "at m.py:3" in error
    Path("m.py").write_text("import os\nfrom torch import nn\ndef build_model():\n    os._exit(4)\n")
    assert main(["m.py", "--steps", "2"]) == 2
    assert "called os._exit(4)" in capsys.readouterr().err
    assert os._exit.__module__ == "posix"


def test_processes_of_a_model_may_leave(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    Path("m.py").write_text(
        "import os\nfrom torch import nn\npid = os.fork()\nif not pid:\n    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\nmodel = nn.Linear(64, 10)\n"
    )
    assert main(["inspect", "m.py"]) == 0, capsys.readouterr().err

"""The catalogue of bad inputs: each is refused before training, in six lines at most, with cause, place and hint."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest
from run_folders import make_run

from dst_analyze.cli.main import main
from dst_analyze.sweep.planning.plan import plan_sweep

ROOT = Path(__file__).parents[2]

NET = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, width, 3), nn.BatchNorm2d(width)
        self.head = nn.Linear(width * 36, 10)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().flatten(1))

X, Y = torch.rand(640, 1, 8, 8), torch.arange(640) % 10
"""


def net(extra=""):
    return NET + dedent(extra)


GOOD = net("train_data = (X, Y)")
FLAT = "nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))"


@dataclass(frozen=True)
class Bad:
    """A model file, the arguments after its name, and what the error must say."""

    cause: str
    at: str
    hint: str
    file: str = GOOD
    args: list[str] = field(default_factory=list)
    spec: str = "m.py"


CATALOGUE = {
    # --- the file ---
    "missing": Bad("There is no file nowhere.py", "nowhere.py", "m.py", spec="nowhere.py"),
    "a directory": Bad("folder is a folder, not a Python file", "folder", "folder/inner.py", spec="folder"),
    "no such module": Bad("There is no module 'no_such.module'", "", "a model is given as", spec="no_such.module:Net"),
    "syntax error": Bad("'(' was never closed", "m.py:2", "an error in the file itself", "import torch\nx = (1,\n"),
    "import error inside": Bad(
        "No module named 'not_there'", "m.py:2", "pip install not_there", "import torch\nimport not_there\n"
    ),
    "raises at import": Bad(
        "raised ZeroDivisionError: division by zero", "m.py:2", "importable by itself", "def f():\n    1 / 0\nf()\n"
    ),
    "exits at import": Bad("called sys.exit(3)", "m.py:2", "__main__", "import sys\nsys.exit(3)\n"),
    "no model": Bad("m.py defines no model", "m.py", "build_model()", "x = 1\n"),
    "several models": Bad("2 classes that could be the model: Net, B", "m.py", "m.py:B", net("class B(Net): ...")),
    "arguments needed": Bad(
        "m.py:Deep needs an argument: depth", "m.py", "--model-arg depth=",
        net("class Deep(Net):\n    def __init__(self, depth): ...\n"), spec="m.py:Deep",
    ),
    "unknown argument": Bad("takes no argument 'widht'", "m.py", "width", args=["--model-arg", "widht=3"]),
    "argument without a value": Bad("name=value", "--model-arg", "depth=16", args=["--model-arg", "width"]),
    "wrong return type": Bad(
        "build_model returned a dict, not an nn.Module", "m.py", "the model alone",
        net("def build_model():\n    return {}"),
    ),
    "build raises deep down": Bad(
        "raised RuntimeError: no", "m.py:18", "it was called as m.py:build_model()",
        net("""
            def down(n):
                if not n:
                    raise RuntimeError("no")
                down(n - 1)
            def build_model():
                down(20)
        """),
    ),
    # --- the model ---
    "nothing maskable": Bad(
        "no weight reaches a matmul or a convolution", "m.py", "inspect",
        net("model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64))\ntrain_data = (X, Y)"),
    ),
    "all left out": Bad("leave no layer", "m.py", "inspect", args=["--exclude", "*"]),
    "no such layer": Bad("--include 'fc*' matches no layer", "m.py", "conv", args=["--include", "fc*"]),
    "all frozen": Bad(
        "every parameter of the model is frozen", "m.py", "requires_grad_",
        net("model = Net().requires_grad_(False)\ntrain_data = (X, Y)"),
    ),
    "lazy parameters": Bad(
        "parameters without a shape yet: 1.weight", "m.py", "run the model once",
        net("model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))\ntrain_data = (X, Y)"),
    ),
    "complex": Bad(
        "1.weight: dtype torch.complex64", "m.py", "inspect",
        net("model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, dtype=torch.cfloat))\ntrain_data = (X.cfloat(), Y)"),
    ),
    "integer weights": Bad(
        "w: dtype torch.int8", "m.py", "inspect",
        net("""
            class Int(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.w = nn.Parameter(torch.ones(10, 64, dtype=torch.int8), requires_grad=False)
                def forward(self, x):
                    return x.flatten(1) @ self.w.float().T
            model, train_data = Int(), (X, Y)
        """),
    ),
    "quantised": Bad(
        "it is quantised (Linear)", "m.py", "inspect",
        net("""
            import warnings
            def build_model():
                torch.backends.quantized.engine = torch.backends.quantized.supported_engines[-1]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
                    return torch.ao.quantization.quantize_dynamic(flat, {nn.Linear})
            train_data = (X, Y)
        """),
    ),
    "already masked": Bad(
        "masked already", "MaskedModel", "unmasked()",
        net("from dst_analyze import mask_model\nmodel = mask_model(Net(), X[:2])\ntrain_data = (X, Y)"),
    ),
    # --- the data ---
    "wrong input shape": Bad(
        "the training data do not fit the model", "m.py:12",
        "given float32[64, 3, 8, 8]; expected samples of [1, 8, 8]",
        net("train_data = (X.repeat(1, 3, 1, 1), Y)"),
    ),
    "another shape than the example": Bad(
        "a training step on the first batch raised RuntimeError", "m.py:12",
        "given float32[64, 3, 8, 8]; the example inputs are float32[2, 1, 8, 8]",
        net("example_inputs, train_data = X[:2], (X.repeat(1, 3, 1, 1), Y)"),
    ),
    "no data": Bad("which is not data", "train_data() of m.py", "DataLoader", net("train_data = 7")),
    "test data only": Bad("no train_data()", "m.py", "train_data()", net("test_data = (X, Y)")),
    "data raise": Bad(
        "train_data() raised FileNotFoundError", "m.py:16", "train_data() returns",
        net("def train_data():\n    return torch.load('nowhere')"),
    ),
    "empty loader": Bad(
        "no batches", "train_data() of m.py", "drop_last",
        net("train_data = DataLoader(TensorDataset(X, Y), batch_size=999, drop_last=True)"),
    ),
    "no samples": Bad("its tensors are empty", "train_data() of m.py", "samples", net("train_data = (X[:0], Y[:0])")),
    "lengths differ": Bad("different lengths", "train_data() of m.py", "row", net("train_data = (X, Y[:9])")),
    "NaN in data": Bad(
        "NaN in 2 of 640 samples, the first of them in sample 600", "train_data() of m.py", "nan_to_num",
        net("X[600:602, 0, 3, 3] = torch.nan\ntrain_data = (X, Y)"),
    ),
    "NaN in test data": Bad(
        "NaN in 1 of 640 samples", "test_data()", "nan_to_num",
        net("train_data = (X.clone(), Y)\nX[5] = torch.nan\ntest_data = (X, Y)"),
    ),
    "NaN from a loader": Bad(
        "NaN in 1 of 64 samples", "train_data() of m.py", "nan_to_num",
        net("X[5] = torch.nan\ntrain_data = DataLoader(TensorDataset(X, Y), batch_size=64)"),
    ),
    "labels out of range": Bad(
        "labels run from 0 to 10, the model has scores for 10 classes, 0 to 9", "train_data() of m.py", "from 0",
        net("Y[600] = 10\ntrain_data = (X, Y)"),
    ),
    "labels below zero": Bad("labels run from -1 to 8", "train_data()", "from 0", net("train_data = (X, Y - 1)")),
    "integers into a convolution": Bad(
        "should be the same", "m.py:12", "images.float() / 255", net("train_data = ((X * 255).byte(), Y)")
    ),
    "targets of another size": Bad(
        "outputs of shape [64, 10] cannot be compared", "train_data() of m.py", "loss(outputs, batch)",
        net("train_data = (X, torch.rand(640, 3))"),
    ),
    "batch of one": Bad(
        "Expected more than 1 value per channel", "m.py", "--batch-size 2",
        net(f"model, train_data = {FLAT}, (X, Y)"), ["--batch-size", "1"],
    ),
    "batches have their size": Bad(
        "--batch-size has no effect", "train_data() of m.py", "loader",
        net("train_data = DataLoader(TensorDataset(X, Y), batch_size=64)"), ["--batch-size", "8"],
    ),
    "loss is no number": Bad(
        "cannot be differentiated: float", "loss(outputs, batch) of m.py", "one tensor",
        net("train_data = (X, Y)\ndef loss(outputs, batch):\n    return 0.5"),
    ),
    "unknown data": Bad("'imagenet'", "--data", "imagefolder", args=["--data", "imagenet"]),
    # --- options ---
    "alphas zero": Bad("0.0 is not a positive number", "--alphas", "1e-5", args=["--alphas", "0"]),
    "alphas negative": Bad("-1.0 is not a positive number", "--alphas", "1e-5", args=["--alphas", "-1"]),
    "alphas NaN": Bad("finite", "--alphas, given as nan", "1e-5", args=["--alphas", "nan"]),
    "alphas unparsable": Bad("'a,b' is not a list of numbers", "--alphas", "--help", args=["--alphas", "a,b"]),
    "alphas empty": Bad("'' is not a list of numbers", "--alphas", "--help", args=["--alphas", ""]),
    "alphas duplicate": Bad("1e-05 is given twice", "--alphas", "1e-5", args=["--alphas", "1e-5,1e-5"]),
    "target above one": Bad("1.5 is not a share", "--target-remaining", "0.5", args=["--target-remaining", "1.5"]),
    "seeds 0": Bad("at least one is needed", "--seeds", "count", args=["--seeds", "0"]),
    "epochs 0": Bad("greater than or equal to 1", "--epochs, given as 0", "from 1", args=["--epochs", "0"]),
    "steps 0": Bad("greater than or equal to 1", "--steps, given as 0", "from 1", args=["--steps", "0"]),
    "steps and epochs": Bad("give one of them", "--epochs", "one of", args=["--steps", "2", "--epochs", "1"]),
    "rate 0": Bad("greater than 0", "--lr, given as 0.0", "--help", args=["--lr", "0"]),
    "jobs 0": Bad("0 trials at once", "--jobs", "from 1", args=["--jobs", "0"]),
    "unknown device": Bad("'tpu' is not one of 'auto', 'cpu'", "--device", "--help", args=["--device", "tpu"]),
    "no such device": Bad("no mps device", "--device", "available: auto", args=["--device", "mps"]),
    "unknown choice": Bad("'row' is not one of", "--threshold", "--help", args=["--threshold", "row"]),
    "force and resume": Bad("exclude each other", "--force", "one of them", args=["--force", "--resume"]),
    "a share above one": Bad("not a share", "--target-params", "0.5", args=["--target-params", "1.5"]),
    "misspelt option": Bad("there is no option --alfas", "dst-analyze m.py", "--alphas", args=["--alfas", "1"]),
    "two models": Bad("unexpected extra argument", "dst-analyze m.py more.py", "--help", args=["more.py"]),
    # --- the folder ---
    "unwritable folder": Bad("cannot be written to", "/proc/run", "--out", args=["--out", "/proc/run"]),
    "below a file": Bad("m.py is not a folder", "m.py/run", "--out", args=["--out", "m.py/run"]),
    "a file": Bad("not a run folder", "m.py", "--out", args=["--out", "m.py"]),
    "somebody's folder": Bad("not a run folder", "folder", "--out", args=["--out", "folder", "--force"]),
    "folder of another run": Bad("holds another run", "another", "--force", args=["--out", "another"]),
    "folder newer than this": Bad("in format 99", "newer", "newer version", args=["--out", "newer"]),
    "out of memory, the model": Bad(
        "ran out of memory", "m.py:16", "parameters; the model has 750G",
        net("def build_model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10**10), nn.Linear(10**10, 10))"),
    ),
    "out of memory, two samples": Bad(
        "can't allocate memory", "train_data() of m.py", "two samples need more",
        net("model, train_data = nn.Sequential(nn.Upsample(scale_factor=30000), nn.Linear(8, 10)), (X, Y)"),
    ),
}  # fmt: skip

OTHERS = {
    "misspelt command": (["inspct", "m.py"], "unexpected extra argument", "did you mean `dst-analyze inspect`?"),
    "no model to inspect": (["inspect"], "Missing argument 'MODEL'", "--help"),
    "inspect nothing": (["inspect", "nowhere.py"], "There is no file", "m.py"),
    "report of nothing": (["report", "nowhere"], "no such folder", "manifest.json"),
    "report of any folder": (["report", "folder"], "not a run folder", "manifest.json"),
    "rank nothing": (["rank", "nowhere"], "no such folder or file", "run folder"),
    "rank any folder": (["rank", "folder"], "not a run folder", "manifest.json"),
    "rank any file": (["rank", "m.py"], "no column layer", "columns layer, alpha, remaining"),
    "rank by beauty": (["rank", "m.py", "--by", "beauty"], "'beauty' is not one of", "--help"),
    "rank newer": (["rank", "newer"], "format 99", "newer version"),
    "compare nothing": (["compare"], "Missing argument", "--help"),
    "compare with nothing": (["compare", "nowhere", "m.py"], "no such folder or file", "run folder"),
    "slim nothing": (["slim", "nowhere"], "no such folder", "manifest.json"),
    "slim a run of another model": (["slim", "another"], "holds another run", "--out"),
    "verify without a plan": (["verify", "another"], "no plan", "slim"),
}


@pytest.fixture
def here(tmp_path, monkeypatch, inline):
    """A folder with other people's things in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.py").write_text("")
    make_run(tmp_path / "another")
    make_run(tmp_path / "newer")
    manifest = tmp_path / "newer" / "manifest.json"
    manifest.write_text(re.sub(r'"schema_version": \d+', '"schema_version": 99', manifest.read_text()))
    return tmp_path


def contents(folder):
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def check(error, cause, place, hint):
    """Cause, place, at most three lines of the user's own, hint; six lines in all, and no traceback."""
    lines = error.splitlines()
    assert lines[0].startswith("error: "), error
    assert cause in lines[0]
    assert len(lines) <= 6, error
    assert lines[-1].startswith("hint: ")
    assert hint in lines[-1]
    at = [line for line in lines if line.startswith("  at ")]
    assert len(at) == 1, error
    assert place in at[0]
    assert "Traceback" not in error
    assert "site-packages" not in error


@pytest.mark.parametrize("name", CATALOGUE)
def test_bad_input(here, capfd, name):
    bad = CATALOGUE[name]
    (here / "m.py").write_text(bad.file)
    before = contents(here)
    assert main([bad.spec, *bad.args]) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    check(_without_torchs_own(captured.err), bad.cause, bad.at, bad.hint)
    assert contents(here) == before


def _without_torchs_own(text):
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("[W"))


@pytest.mark.parametrize("name", OTHERS)
def test_bad_input_of_other_commands(here, capfd, name):
    args, cause, hint = OTHERS[name]
    (here / "m.py").write_text(GOOD)
    before = contents(here)
    assert main(args) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    check(captured.err, cause, "", hint)
    assert contents(here) == before


def test_a_single_alpha_is_no_error_but_said_to_prove_nothing(here):
    (here / "m.py").write_text(GOOD)
    for options, said in (({}, True), ({"seeds": 2}, False), ({"alphas": [1e-3, 1e-2]}, False)):
        plan = plan_sweep("m.py", **{"alphas": [1e-3], **options})
        assert plan.manifest.warning.startswith("One alpha and one seed make one trial") is said


LIMITED = """
import resource, sys
import dst_analyze.sweep.planning.plan
from dst_analyze.cli.main import main
from dst_analyze.sweep.planning.plan import plan_sweep
from dst_analyze.sweep.engines.resources import free_memory
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages + 2_000_000_000,) * 2)
sys.exit(main(sys.argv[1:]))
"""


def command(*args, code=None):
    start = ["-c", code] if code else ["-m", "dst_analyze"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    return subprocess.run([sys.executable, *start, *args], capture_output=True, text=True, env=env, timeout=120)


def test_out_of_memory_tells_the_batch_that_would_fit(here):
    pooled = "nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)"
    wide = f"nn.Sequential(nn.Conv2d(1, 512, 3, padding=1), {pooled})"
    (here / "m.py").write_text(net(f"X = torch.rand(640, 1, 40, 40)\nmodel, train_data = {wide}, (X, Y)"))
    done = command("m.py", "--batch-size", "640", "--engine", "ray", code=LIMITED)
    assert done.returncode == 2, done.stderr
    check(done.stderr, "ran out of memory", "m.py", "--batch-size")
    fits = int(re.search(r"--batch-size (\d+) fits", done.stderr)[1])
    assert 2 <= fits < 640
    smaller = command("m.py", "--batch-size", str(fits), "--engine", "ray", "--ray-address", "ray://", code=LIMITED)
    assert "ran out of memory" not in smaller.stderr


@pytest.mark.parametrize("name", ["missing", "labels out of range"])
def test_bad_input_as_a_process(here, name):
    bad = CATALOGUE[name]
    (here / "m.py").write_text(bad.file)
    done = command(bad.spec, *bad.args)
    assert (done.returncode, done.stdout) == (2, "")
    check(done.stderr, bad.cause, bad.at, bad.hint)

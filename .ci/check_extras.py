"""Installs each extra alone, and runs the one thing that it is for.

    python .ci/check_extras.py dist/*.whl [ray mlflow ...]   # all, unless some are named
    python .ci/check_extras.py dist/*.whl --core ENVIRONMENT # an environment that has the wheel and no extra

First the wheel is installed without extras, as constraints.txt pins it, and each thing is asked for there: the answer
must be an error that names the extra. Then every extra gets an environment of its own. Where uv is on the path it
fills them, in seconds; else each sees the core's packages, so that torch is installed once. The extra ``test`` is
everything: `make test` is its check.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEMO = ["-m", "dst_analyze", "example:demo", "--fast-dev-run", "--quiet", "--out", "run"]
STUDY = "from dst_analyze.examples import {0}; {0}.EPOCHS = 1; print({0}.main('run'))"
NOTEBOOK = """
import nbformat
from nbclient import NotebookClient
code = "import dst_analyze, pandas\\n" + (
    "dst_analyze.rank_layers(pandas.DataFrame({'layer': ['a', 'b'] * 2, 'alpha': [1e-6] * 2 + [1e-5] * 2, "
    "'remaining': [0.9, 0.3, 0.5, 0.1]}))"
)
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
NotebookClient(notebook, timeout=300).execute()
assert "text/html" in notebook.cells[0].outputs[0].data
import jupyterlab
"""


@dataclass(frozen=True)
class Use:
    """What an extra is for: arguments of python, a file that they must leave, and whether the core says what lacks."""

    arguments: list[str]
    leaves: str = ""
    core_names_it: bool = True


USES = {
    "ray": Use([*DEMO, "--engine", "ray"], "run-fast-dev-run/report.html"),
    "tensorboard": Use([*DEMO, "--tensorboard"], "run-fast-dev-run/tensorboard"),
    "wandb": Use([*DEMO, "--wandb", "check"], "wandb"),
    "mlflow": Use([*DEMO, "--mlflow", "file:runs"], "runs"),
    "onnx": Use([*DEMO, "--format", "onnx"], "run-fast-dev-run/slim_model.onnx"),
    "lightning": Use(["-c", STUDY.format("lightning_mnist")], "run/report.html"),
    "transformers": Use(["-c", STUDY.format("hf_text_classification")], "run/report.html"),
    "notebooks": Use(["-c", NOTEBOOK], core_names_it=False),
    "docs": Use(["-m", "mkdocs", "build", "--strict", "--site-dir", "site"], "site/index.html", core_names_it=False),
}
SURROUNDINGS = {
    "WANDB_MODE": "offline",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "NO_MKDOCS_2_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # by default its workers wait for all other programs of the machine
}


def install(python: Path, *what: str) -> None:
    """Install into an environment what constraints.txt pins."""
    uv = shutil.which("uv")
    pip = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
    subprocess.run([*pip, "--quiet", "-c", ROOT / "constraints.txt", *what], check=True)


def new_environment(folder: Path, core: Path | None = None) -> Path:
    """Return the Python of a new environment; without uv it sees the packages of ``core``."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if core is not None and not shutil.which("uv"):
        (inner,), (outer,) = ((one / "lib").glob("python*/site-packages") for one in (folder, core))
        (inner / "core.pth").write_text(f"{outer}\n")
    return folder / "bin" / "python"


def run(python: Path, use: Use, home: Path) -> subprocess.CompletedProcess[str]:
    """Run what an extra is for in a folder; the site is built where its sources are."""
    home.mkdir()
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | SURROUNDINGS
    arguments = [str(home / "site") if word == "site" else word for word in use.arguments]
    where = ROOT if "mkdocs" in arguments else home
    return subprocess.run(
        [python, *arguments], cwd=where, env=surroundings, capture_output=True, text=True, timeout=900
    )


def check_core(python: Path, name: str, home: Path) -> None:
    """Without its extra, a thing ends with an error that says how to install it."""
    found = run(python, USES[name], home)
    if found.returncode == 0 or f"pip install 'dst-analyze[{name}]'" not in found.stderr + found.stdout:
        sys.exit(f"{name}: the core ends with {found.returncode} and says {found.stdout[-500:]}{found.stderr[-1500:]}")


def check_extra(python: Path, name: str, home: Path) -> None:
    """With its extra, a thing works and leaves what it should."""
    found = run(python, USES[name], home)
    if found.returncode or not (home / USES[name].leaves).exists():
        sys.exit(f"{name}: ended with {found.returncode}: {found.stdout[-500:]}{found.stderr[-2500:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("extras", nargs="*", default=list(USES))
    parser.add_argument("--core", type=Path)
    asked = parser.parse_intermixed_args()
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    if declared != {*USES, "test"}:
        sys.exit(f"pyproject.toml has the extras {sorted(declared)}; this script knows {sorted(USES)}")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        core = asked.core.resolve() if asked.core else home / "core"
        if not asked.core:
            install(new_environment(core), str(asked.wheel.resolve()))
        for name in asked.extras:
            if USES[name].core_names_it:
                check_core(core / "bin" / "python", name, home / f"without-{name}")
            python = new_environment(home / name, core)
            install(python, f"{asked.wheel.resolve()}[{name}]")
            check_extra(python, name, home / f"with-{name}")
            shutil.rmtree(home / name)
            print(f"{name}: installed alone, and works", flush=True)


if __name__ == "__main__":
    main()

"""What `make dist` checks: wheel and sdist carry all they need, and the wheel works in an environment of its own.

    python .ci/check_dist.py dist/*.tar.gz dist/*.whl             # as constraints.txt pins it
    python .ci/check_dist.py dist/*.whl --borrow                  # with this environment's dependencies, in seconds
    python .ci/check_dist.py dist/*.whl --lowest                  # at the lower ends of pyproject's ranges, but torch's
    python .ci/check_dist.py dist/*.whl --python python3.13 --without-torch

Without torch only what needs none is tried: help, and ranking and report of a kept run. It is for Pythons for which
there is no small CPU build of torch at hand.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dst_analyze"
NEEDED = ("pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "mkdocs.yml", "docs", "tests", "dst_analyze")
TORCH = ("torch", "torchvision")


def check_wheel(wheel: Path) -> None:
    """Every file of the package, templates and examples too, and nothing beside it."""
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
    if inside != files_of_the_package():
        there = files_of_the_package()
        sys.exit(f"missing from the wheel: {sorted(there - inside)}; not of the package: {sorted(inside - there)}")


def check_sdist(sdist: Path) -> None:
    """The package with its tests and documentation, and no run folders."""
    with tarfile.open(sdist) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    missing = files_of_the_package() - inside | set(NEEDED) - {name.partition("/")[0] for name in inside}
    if missing or any(name.startswith("reports/") for name in inside):
        sys.exit(f"missing from {sdist.name}: {sorted(missing)}, or it has run folders")
    print(f"{sdist.name}: {len(inside)} files")


def files_of_the_package() -> set[str]:
    """Return the names of the package's files, as archives should have them."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in files}


def requirements() -> list[str]:
    """Return the dependencies as pyproject.toml states them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [str(row) for row in project["dependencies"]]


def lowest(requirement: str) -> str:
    """Return ``name==X.Y.*`` for ``name>=X.Y``: the newest fixes of the oldest series that is promised."""
    name, _, version = requirement.partition(">=")
    return requirement if name in TORCH else f"{name}=={version}.*"


def check_installed(wheel: Path, asked: argparse.Namespace) -> None:
    """The command answers and looks at an example, far from the sources and without the extras of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        subprocess.run([asked.python, "-m", "venv", home / "venv"], check=True)
        python, command = home / "venv" / "bin" / "python", home / "venv" / "bin" / "dst-analyze"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = ["-c", ROOT / "constraints.txt"]
        if asked.borrow:
            (site,) = (home / "venv" / "lib").glob("python*/site-packages")
            (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
            subprocess.run([*pip, "--no-deps", wheel], check=True)
        elif asked.without_torch:
            others = [row for row in requirements() if re.split(r"[>=<]", row)[0] not in TORCH]
            subprocess.run([*pip, *others], check=True)
            subprocess.run([*pip, "--no-deps", wheel], check=True)
        elif asked.lowest:
            (home / "torch.txt").write_text(
                "\n".join(row for row in (ROOT / "constraints.txt").read_text().splitlines() if row.startswith(TORCH))
            )
            subprocess.run([*pip, "-c", home / "torch.txt", *map(lowest, requirements()), wheel], check=True)
        else:
            subprocess.run([*pip, *pinned, wheel], check=True)
        said = run_without_torch(command, home) if asked.without_torch else run_example(wheel, python, command, home)
        print(f"{wheel.name}: {said}")


def run_example(wheel: Path, python: Path, command: Path, home: Path) -> str:
    """Run the installed command on its example to the report, and return what was done."""
    version = subprocess.run([command, "--version"], cwd=home, capture_output=True, text=True, check=True).stdout
    if wheel.name.split("-")[1] not in version:
        sys.exit(f"{wheel.name} says that it is {version}")
    where = "import dst_analyze, pathlib; print(pathlib.Path(dst_analyze.__file__).parent)"
    package = subprocess.run([python, "-c", where], cwd=home, capture_output=True, text=True, check=True).stdout
    demo = Path(package.strip()) / "examples" / "demo.py"
    run = [command, demo, "--fast-dev-run", "--out", home / "run", "--quiet"]
    subprocess.run(run, cwd=home, check=True, stdout=subprocess.DEVNULL)
    if not (home / "run-fast-dev-run" / "report.html").exists():
        sys.exit("the installed command wrote no report")
    return f"{version.strip()}, installed, ran the example and wrote its report"


def run_without_torch(command: Path, home: Path) -> str:
    """Rank and report a run, made by the project's own .venv, where torch is not installed; return what was done."""
    demo = ["example:demo", "--steps", "60", "--alphas", "1e-6,1e-5", "--jobs", "1", "--quiet", "--out", home / "run"]
    subprocess.run([ROOT / ".venv/bin/dst-analyze", *demo], cwd=home, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(home / "run", home / "same")
    (home / "run" / "report.html").unlink()
    for words in (["--help-all"], ["rank", "run"], ["report", "run"], ["compare", "run", "same"]):
        subprocess.run([command, *words], cwd=home, check=True, stdout=subprocess.DEVNULL)
    if not (home / "run" / "report.html").exists():
        sys.exit("the installed command wrote no report")
    found = subprocess.run([home / "venv/bin/python", "--version"], capture_output=True, text=True, check=True).stdout
    return f"{found.strip()} without torch: help, ranking, comparison and report of a kept run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--borrow", action="store_true")
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--without-torch", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    asked = parser.parse_args()
    for path in (path.resolve() for path in asked.archives):
        if path.suffix == ".gz":
            check_sdist(path)
        else:
            check_wheel(path)
            check_installed(path, asked)


if __name__ == "__main__":
    main()

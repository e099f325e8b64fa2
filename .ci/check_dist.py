"""What `make dist` checks: the wheel carries all it needs and nothing else, and works in an environment of its own.

Usage: python .ci/check_dist.py dist/*.whl [--borrow]; the option borrows the dependencies of the
environment it runs in, where a clean installation would take minutes.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dst_analyze"


def check_contents(wheel: Path) -> None:
    """Every file of the package, templates and examples too, and nothing beside it."""
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    there = {str(path.relative_to(ROOT)) for path in files}
    if inside != there:
        sys.exit(f"missing from the wheel: {sorted(there - inside)}; not of the package: {sorted(inside - there)}")


def check_installed(wheel: Path, *, borrowed: bool) -> None:
    """The command answers and looks at an example, far from the sources and without the extras of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "venv", with_pip=True)
        if borrowed:
            (site,) = (home / "venv" / "lib").glob("python*/site-packages")
            (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        python, command = home / "venv" / "bin" / "python", home / "venv" / "bin" / "dst-analyze"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        subprocess.run([*pip, *(["--no-deps"] if borrowed else []), wheel], check=True)
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
        print(f"{wheel.name}: {version.strip()}, installed, ran the example and wrote its report")


if __name__ == "__main__":
    paths = [Path(name).resolve() for name in sys.argv[1:] if not name.startswith("-")]
    for path in paths:
        check_contents(path)
        check_installed(path, borrowed="--borrow" in sys.argv)

"""The notebooks run as they stand, each in a kernel of its own, and what they keep is fit to be shown."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
sys.path.insert(0, str(FOLDER))

from execute import NOTEBOOKS, executed  # noqa: E402

# The kernel's sockets and a Ray that a notebook starts are left to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels import the package under test, and draw as they do for a reader."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parent))
    monkeypatch.delenv("MPLBACKEND", raising=False)


def test_there_are_five() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("12345")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    """An error in a cell raises."""
    if path.name.startswith("5"):
        pytest.importorskip("ray")
    kept, now = nbformat.read(path, as_version=4), executed(path, tmp_path)
    assert [cell.source for cell in kept.cells] == [cell.source for cell in now.cells]
    assert [bool(cell.outputs) for cell in code(kept)] == [bool(cell.outputs) for cell in code(now)]


def code(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_kept_and_tell_nothing_of_the_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert all(cell.execution_count for cell in code(notebook))
    assert not [output for cell in code(notebook) for output in cell.outputs if output.get("name") == "stderr"]
    for output in (output for cell in code(notebook) for output in cell.outputs):
        assert output.output_type != "error"
        data = output.get("data", {})
        text = " ".join([output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")])
        assert not re.search(r"/(home|root|tmp|usr|work)/|ipykernel_|\b20\d\d-\d\d-\d\d", text)
    assert "execution" not in str([cell.metadata for cell in notebook.cells])

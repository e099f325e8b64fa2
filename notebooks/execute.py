"""Run the notebooks and keep their outputs: ``python notebooks/execute.py [NAME ...]``, or all of them.

Paths, versions and dates are not kept. Times that a page shows are, so a second run changes those alone.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NOTEBOOKS = tuple(sorted(FOLDER.glob("*.ipynb")))
_PATIENCE = 900  # seconds for one cell: a busy machine is no error


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook run from its first cell to its last in a kernel of its own, with ``folder`` as its folder."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=_PATIENCE, resources=resources, record_timing=False).execute()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook.cells:
        cell.metadata = {}
        if "outputs" in cell:  # Ray asks for widgets where a kernel has none
            cell.outputs = [output for output in cell.outputs if "ipywidgets" not in output.get("text", "")]
        for output in cell.get("outputs", ()):
            for holder in (output, output.get("data", {})):
                for kind in ("text", "text/plain", "text/html"):
                    if isinstance(holder.get(kind), str):
                        holder[kind] = _without_places(holder[kind])
    return notebook


def _without_places(text: str) -> str:
    """Paths of this machine as they would be anywhere: inside an installed package, or in a cell."""
    text = re.sub(r"/[^\s<>'\"]*/site-packages/", "", text)
    return re.sub(r"/[^\s<>'\"]*/ipykernel_\d+/\d+\.py", "cell", text)


def main(names: list[str]) -> None:
    # Ray keeps a token in the home folder unless it is given one.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # its workers wait for every other program otherwise
    for path in [FOLDER / name for name in names] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(path, Path(folder)), path)
        print(path.name)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The site builds without a warning, and has every page of docs, the notebooks, the options and the public names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import dst_analyze
from dst_analyze.cli.default_group import DEFAULT
from dst_analyze.cli.main import commands

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Text(HTMLParser):
    """The text of a page, and the addresses it links to or loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.text, self.loaded = "", list[str]()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("img", "script", "link"):
            self.loaded += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_page_of_docs_is_there_and_in_the_navigation(site: Path) -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert (site / name).with_suffix(".html").exists()
        assert re.search(rf"[-:] {re.escape(name)}\n", menu), f"{name} has no place in mkdocs.yml"


def test_tutorials_show_the_notebooks_with_their_pictures(site: Path) -> None:
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        page = Text(site / "tutorials" / f"{notebook.stem}.html")
        assert "import" in page.text
        for picture in (name for name in page.loaded if name.endswith(".png")):
            assert (site / "tutorials" / picture).resolve().exists()
    assert list((site / "tutorials").glob("2-*.png"))


def test_the_reference_has_every_option_and_every_public_name(site: Path) -> None:
    options = Text(site / "reference" / "options.html").text
    for name, command in commands.commands.items():
        assert name == DEFAULT or f"dst-analyze {name}" in options
        for option in (parameter for parameter in command.params if parameter.opts[0].startswith("--")):
            assert option.opts[0] in options
    api = (site / "reference" / "api.html").read_text()
    for name in set(dst_analyze.__all__) - {"__version__"}:
        assert re.search(rf'id="dst_analyze\.[\w.]*\b{name}"', api), f"{name} is missing in docs/reference/api.md"


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not [name for name in Text(page).loaded if re.match(r"https?:|//", name)]

"""Files that platforms read: they parse, and say the same as pyproject.toml and the Makefile."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dst_analyze.version import __version__

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SUPPORTED = [row.rpartition(" ")[2] for row in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", row)]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_pythons_are_the_same_everywhere() -> None:
    assert SUPPORTED[0] == PROJECT["requires-python"].removeprefix(">=")
    assert read(".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"] == SUPPORTED
    assert re.findall(r"3\.\d+", (ROOT / "docs/badges/python.svg").read_text().partition("<g")[2]) == SUPPORTED


def test_other_badges_are_true() -> None:
    assert f">{PROJECT['license']}<" in (ROOT / "docs/badges/licence.svg").read_text()
    assert ">strict<" in (ROOT / "docs/badges/typed.svg").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["strict"]
    assert (ROOT / "dst_analyze/py.typed").exists()


def test_the_changelog_has_this_version() -> None:
    titles = re.findall(r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert __version__ in titles


def test_every_extra_has_a_use_that_is_checked() -> None:
    text = (ROOT / ".ci" / "check_extras.py").read_text()
    assert all(f'"{extra}": Use(' in text for extra in PROJECT["optional-dependencies"] if extra != "test")


def test_workflows_run_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    steps = [step for job in read(".github/workflows/ci.yml")["jobs"].values() for step in job["steps"]]
    targets = [step["run"].split()[1] for step in steps if "run" in step]
    assert set(targets) == {"lint", "test", "docs", "dist"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_hooks_are_the_commands_of_make_lint() -> None:
    (local,) = read(".pre-commit-config.yaml")["repos"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in local["hooks"]:
        assert f"$(BIN)/{hook['entry'].removeprefix('.venv/bin/').split()[0]}" in makefile


def test_the_citation_is_the_paper_of_the_readme() -> None:
    citation = read("CITATION.cff")
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert citation["version"] == __version__
    paper = citation["preferred-citation"]
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert paper["title"] in readme
    assert all(f"{author['given-names']} {author['family-names']}" in readme for author in paper["authors"])


@pytest.mark.parametrize("name", ["bug", "wish"])
def test_issue_forms_have_what_the_platform_needs(name: str) -> None:
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    assert all(part["attributes"]["label"] for part in form["body"])


def test_updates_leave_the_pinned_torch_alone() -> None:
    (pip,) = [one for one in read(".github/dependabot.yml")["updates"] if one["package-ecosystem"] == "pip"]
    assert {"torch", "torchvision"} == {one["dependency-name"] for one in pip["ignore"]}

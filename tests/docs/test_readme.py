"""README and docs tell the truth: their code runs, their commands exist, their links lead somewhere."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import torch

from dst_analyze.cli.configfile import read_options
from dst_analyze.cli.default_group import DEFAULT
from dst_analyze.cli.main import commands, main
from dst_analyze.model.loading.load import load_model

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KINDS = {"python", "console", "text", "toml"}  # `text` is a picture of something, not something to run
TINY = ["--steps", "20", "--alphas", "1e-2,3e-2", "--jobs", "1", "--quiet", "--force"]


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(kind: str) -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text()
        matches = re.finditer(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        found += [Block(page, text[: match.start()].count("\n") + 1, match[1], match[2]) for match in matches]
    assert {block.kind for block in found} <= KINDS, "a block of a kind that no test runs"
    return [block for block in found if block.kind == kind]


MODEL_FILE = next(block for block in blocks("python") if "def build_model" in block.text)
OPTIONS_FILE = next(block for block in blocks("toml") if block.page.name == "command-line.md")
COMMANDS = {  # each once, where it stands first
    line.partition("#")[0].strip(): block
    for block in reversed(blocks("console"))
    for line in re.sub(r" *\\\n *", " ", block.text).splitlines()
    if line.strip()
}
ONLY_CHECKED = {"--data", "--engine", "--budget", "--epochs"}  # options of commands that take too long to run here


# Lightning's own: a deprecation in torch's pytree, advice on workers and on logging.
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec", "ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval")
@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_runs_as_it_stands(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block), "exec"), {"__name__": "__main__"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, inline_module: pytest.MonkeyPatch) -> Path:
    """A folder with the model file of docs, weights for it, a run of it, and a slimmer architecture from that run."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "mymodel.py").write_text(MODEL_FILE.text)
    (folder / "run.toml").write_text(OPTIONS_FILE.text)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", sys.path.copy())
        assert main(["mymodel.py", *TINY, "--out", "run"]) == 0
        torch.save(load_model("mymodel.py").model.state_dict(), "trained.pt")
        for name in ("one", "two"):
            shutil.copytree("run", f"reports/{name}")
    return folder


@pytest.mark.parametrize("line", COMMANDS, ids=[f"{block}-{line}" for line, block in COMMANDS.items()])
def test_commands_do_what_they_say(line: str, place: Path, monkeypatch: pytest.MonkeyPatch, inline: None) -> None:
    """Those that need nothing from elsewhere are run, on a small run; of the others the options are checked."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    program, *words = shlex.split(line.partition(" >")[0])
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    assert program == "dst-analyze"
    words = ["run" if word.startswith("reports/mymodel-") else word for word in words]
    name = words[0] if words[0] in commands.commands else DEFAULT
    if name == DEFAULT and words != ["--list-examples"]:
        commands.commands[DEFAULT].make_context("dst-analyze", list(words))
        if ONLY_CHECKED & set(words) or words[0] != "mymodel.py":
            return
        words = [*words, *TINY] if "--alphas" not in words else [*words, *TINY[:2], *TINY[4:]]
    assert main(words) == 0


def test_every_option_that_is_named_is_one() -> None:
    known = {"--help"} | {
        option for command in [commands, *commands.commands.values()] for option in options_of(command)
    }
    for page in PAGES:
        for option in re.findall(r"`(--[a-z-]+)", page.read_text()):
            assert option in known, f"{option} in {page.name}"


def options_of(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts]


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\](?:\(|: )([^)\s]+)", page.read_text()):
            if not target.startswith("http"):
                path, _, anchor = target.partition("#")
                there = page.parent / path if path else page
                assert there.exists(), f"{target} in {page.name}"
                if anchor:
                    heads = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                    assert anchor in [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads]


def test_the_file_of_options_is_one_the_program_reads(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(OPTIONS_FILE.text)
    read = read_options(tmp_path / "run.toml", commands.commands[DEFAULT])
    assert read == {"model": "mymodel.py", "alphas": "1e-06,1e-05", "lr": 0.1, "schedule": "cosine"}


def test_prose_has_short_lines() -> None:
    """Tables and code may need more."""
    for page in PAGES:
        prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for line in prose.splitlines():
            assert len(line) <= 100 or line.lstrip().startswith(("|", "![")), f"{page.name}: {line}"


def test_prose_has_short_sentences() -> None:
    """At most 25 words, a colon or semicolon counted as an end."""
    for page in PAGES:
        prose = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        lines = ("" if re.match(r" *\||\[\w+\]: | {4}", line) else line for line in prose.splitlines())
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:-|\d+\.) )|\n(?=#)", "\n".join(lines)):
            text = re.sub(r"\]\([^)]*\)", "]", " ".join(paragraph.split()))
            for sentence in re.split(r"(?<=[.!?:;])[\s*\")]+(?=\S)", text):
                words = [word for word in sentence.split() if re.search(r"\w", word)]
                assert len(words) <= 25, f"{page.name}: {sentence}"

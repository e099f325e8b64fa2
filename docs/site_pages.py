"""Pages of the site that are made at build: the front page, the tutorials and the options of the command line.

``mkdocs.yml`` names this file under ``hooks``. The front page is README.md, the tutorials are the notebooks with the
outputs they keep (nothing is run), and the options are read off the click commands.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from posixpath import relpath

import click
import griffe
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

from dst_analyze.cli.default_group import DEFAULT
from dst_analyze.cli.main import commands
from dst_analyze.cli.option_types import section_of

FRONT = "---\nhide: [navigation]\n---\n"  # a menu of one entry says nothing
DOCS = Path(__file__).parent
ROOT = DOCS.parent
LINK = re.compile(r"\[([^\]\[]*)\](\(|: )([^)\s#]+)(#[^)\s]*)?(\)?)")
BY_NAME = re.compile(r"\[([^\]\[]*)\]\[(\w+)\]")
DEFINITION = re.compile(r"^\[(\w+)\]: (\S+)\n?", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, for mkdocs."""
    made: dict[str, str | bytes] = {
        "index.md": FRONT + _relinked((ROOT / "README.md").read_text(encoding="utf-8"), ROOT, "index.md"),
        "reference/options.md": options_page(),
    }
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        made |= tutorial(notebook)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, *, page: object, **_: object) -> str:
    """Point links to files outside of docs to the pages made of them, for mkdocs."""
    name = page.file.src_uri  # type: ignore[attr-defined]
    return markdown if page.file.generated_by else _relinked(markdown, (DOCS / name).parent, name)  # type: ignore[attr-defined]


def _relinked(markdown: str, folder: Path, name: str) -> str:
    """Return the text of a page with its links for the site.

    Files outside of docs that no page is made of are named without a link.
    """

    def replaced(found: re.Match[str]) -> str:
        text, opening, target, anchor, closing = found[1], found[2], found[3], found[4] or "", found[5]
        if ":" in target:
            return found[0]
        path = Path(os.path.normpath(folder / target))
        if path.parent.name == "notebooks" and path.suffix == ".ipynb":
            target = f"tutorials/{path.stem}.md"
        elif path.name == "notebooks":
            target = "tutorials/1-quickstart.md"
        elif path == ROOT / "README.md":
            target = "index.md"
        elif path.is_relative_to(DOCS) and path != DOCS:
            target = path.relative_to(DOCS).as_posix()
        elif path.exists():
            return text
        else:
            return found[0]  # a picture of a notebook, or a mistake that mkdocs will tell
        return f"[{text}]{opening}{relpath(target, Path(name).parent.as_posix())}{anchor}{closing}"

    inline = DEFINITION.sub("", BY_NAME.sub(partial(_inline, dict(DEFINITION.findall(markdown))), markdown))
    return LINK.sub(replaced, inline)


def _inline(targets: dict[str, str], found: re.Match[str]) -> str:
    """Return a link that has its target with it, in place of one that names a definition."""
    return f"[{found[1]}]({targets[found[2]]})" if found[2] in targets else found[0]


def tutorial(path: Path) -> dict[str, str | bytes]:
    """Return the page of a notebook, and its pictures, by name."""
    notebook = nbformat.read(path, as_version=4)
    body, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": path.stem})
    name = f"tutorials/{path.stem}.md"
    body = re.sub(r"<style scoped>.*?</style>", "", body, flags=re.DOTALL).replace(' border="1" class="dataframe"', "")
    return {name: _relinked(body, path.parent, name)} | {
        f"tutorials/{picture}": content for picture, content in resources["outputs"].items()
    }


def options_page() -> str:
    """Return the page of commands and options, a table for each section of the help."""
    lines = ["# Commands and options", "", "Made from the commands themselves, when this site is built.", ""]
    for name, command in sorted(commands.commands.items(), key=lambda item: (item[0] != DEFAULT, item[0])):
        usage = "dst-analyze MODEL" if name == DEFAULT else " ".join([f"dst-analyze {name}", *_arguments(command)])
        about = (command.help or "").partition("\b")[0]
        lines += [f"## `{usage}`", "", " ".join(about.split()), ""]
        for title, options in _sections(command).items():
            anchor = re.sub(r"\W+", "-", f"{name} {title.lower()}")
            lines += [f"### {title} {{ #{anchor} }}", ""]
            lines += ["| option | what it does |", "|---|---|", *map(_row, options), ""]
    return "\n".join(lines)


def _arguments(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield parameter.make_metavar(click.Context(command))


def _sections(command: click.Command) -> dict[str, list[click.Option]]:
    found: dict[str, list[click.Option]] = {}
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            found.setdefault(section_of(option), []).append(option)
    return found


def _row(option: click.Option) -> str:
    shown = option.get_help_record(click.Context(click.Command("any")))
    assert shown is not None, f"{option.name} has no help"
    about = " ".join(shown[1].split()).replace("[", r"\[").replace("|", r"\|")
    return f"| `{shown[0].replace('|', chr(92) + '|')}` | {about} |"


class ExampleSections(griffe.Extension):
    """Docstrings say ``Example:``; griffe shows code as code under ``Examples:``."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the section of one docstring, for griffe."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
